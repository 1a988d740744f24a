"""The steps that cut by how flat the distribution is (typical, epsilon, eta, top-n-sigma, top-h), and XTC, which
cuts at the other end.

In: a distribution. Out: a part of it, renormalised. What a step measured on the way stands in its row of the ledger.
But: none looks at the ids before. Those that compare with a threshold of their own state the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glassbox.errors import ParameterError
from glassbox.policy import philox
from glassbox.policy.constrain import known_ids
from glassbox.policy.distribution import Distribution
from glassbox.policy.logits import Logits
from glassbox.policy.ranking import Ranking
from glassbox.policy.softmax import exp
from glassbox.policy.step import Past
from glassbox.policy.truncate import TOP_P_TOLERANCE, at_least

CUT_TOLERANCE = 1e-9
"""Epsilon and eta compare log p, top-h a sum of entropy in nats, and forgive this much; top-n-sigma and XTC forgive
this part of their threshold. It is more than float64 loses over any vocabulary and less than anybody means."""


@dataclass(frozen=True)
class Typical:
    """keep the smallest set with sum p_i >= typical_p - 1e-9, taken in the order of |-log p_i - H|, least first

    Source: Meister, Pimentel, Wiher & Cotterell, "Locally Typical Sampling", TACL 2023
    """

    name: ClassVar[str] = "typical"
    argmax_invariant: ClassVar[bool] = False  # the best may be too certain to be typical
    mass: float
    min_keep: int = 1

    @property
    def params(self) -> Mapping[str, float]:
        return {"typical_p": self.mass}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        surprise = math.log1p(before.rest) - before.z_at(np.arange(before.size))  # [n], -log p
        ranking = Ranking(Logits(-np.abs(surprise - before.entropy)))
        needed = (self.mass - TOP_P_TOLERANCE) * before.total
        for order in ranking.growing():
            found = int(np.searchsorted(np.cumsum(before.weights_at(order)), needed, side="left"))
            count = max(self.min_keep, found + 1)
            if count < before.size and count <= len(order):
                return before.keep(np.sort(order[:count]), is_sorted=before.ranking.is_sorted)
        return before


@dataclass(frozen=True)
class Epsilon:
    """keep every token with log p_i >= log(epsilon) - 1e-9, and the best

    Source: Hewitt, Manning & Liang, "Truncation Sampling as Language Model Desmoothing", Findings of EMNLP 2022
    """

    name: ClassVar[str] = "epsilon"
    argmax_invariant: ClassVar[bool] = True
    epsilon: float
    min_keep: int = 1

    @property
    def params(self) -> Mapping[str, float]:
        return {"epsilon_cutoff": self.epsilon}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        return at_least(before, math.log(self.epsilon) - CUT_TOLERANCE + math.log1p(before.rest), self.min_keep)


@dataclass(frozen=True)
class Eta:
    """keep every token with log p_i >= log(eta) - 1e-9, eta = min(e, sqrt(e) exp(-H)), e = eta_cutoff; and the best

    Source: Hewitt, Manning & Liang, "Truncation Sampling as Language Model Desmoothing", Findings of EMNLP 2022
    """

    name: ClassVar[str] = "eta"
    argmax_invariant: ClassVar[bool] = True
    epsilon: float
    min_keep: int = 1

    @property
    def params(self) -> Mapping[str, float]:
        return {"eta_cutoff": self.epsilon}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        log_eta = min(math.log(self.epsilon), 0.5 * math.log(self.epsilon) - before.entropy)
        after = at_least(before, log_eta - CUT_TOLERANCE + math.log1p(before.rest), self.min_keep)
        return after.noted(eta=math.exp(log_eta))


@dataclass(frozen=True)
class TopNSigma:
    """keep every token with logit_i >= max - n sigma (1 + 1e-9), sigma the standard deviation of the logits alive

    Source: Tang et al., "Top-nσ: Eliminating Noise in Logit Space for Robust Token Sampling of LLM", ACL 2025
    """

    name: ClassVar[str] = "top_n_sigma"
    argmax_invariant: ClassVar[bool] = True
    n: float

    @property
    def params(self) -> Mapping[str, float]:
        return {"top_n_sigma": self.n}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        # Of logits, not of z: a temperature divides both sides alike. Off the best, so no digits are lost.
        sigma = float((before.logits.astype(np.float64) - before.shift).std())
        return at_least(before, -self.n * sigma * before.beta * (1.0 + CUT_TOLERANCE), 1).noted(
            sigma=sigma * before.beta
        )


@dataclass(frozen=True)
class TopH:
    """keep the longest run of best tokens with sum -p_i log p_i <= top_h H + 1e-9, and the best (with top_h_limit = m:
    p and H are those of the m best, renormalised)

    Source: Potraghloo et al., "Top-H Decoding", NeurIPS 2025, in the form of transformers, TopHLogitsWarper
    """

    name: ClassVar[str] = "top_h"
    argmax_invariant: ClassVar[bool] = True
    top_h: float
    limit: int = 0

    @property
    def params(self) -> Mapping[str, float]:
        return {"top_h": self.top_h}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        limited = 0 < self.limit < before.size
        of = before.keep_first(self.limit) if limited else before
        most = self.top_h * of.entropy + CUT_TOLERANCE
        log_total = math.log1p(of.rest)
        for order in of.ranking.growing():
            logp = of.z_at(order) - log_total
            count = max(1, int(np.searchsorted(np.cumsum(-exp(logp) * logp), most, side="right")))
            if count < len(order):
                return before.keep_first(count)
        return before.keep_first(of.size) if limited else before


@dataclass(frozen=True)
class Xtc:
    """with probability xtc_probability (when u < it) remove every token with p_i >= xtc_threshold (1 - 1e-9) but the
    least likely of them; u is Philox of (seed, sequence, position) with purpose 1 (with xtc_strict: p_i > it, and what
    ties with the least likely stays; xtc_spared_ids always do)

    Source: p-e-w, "Exclude Top Choices (XTC)", text-generation-webui#6335
    """

    name: ClassVar[str] = "xtc"
    argmax_invariant: ClassVar[bool] = False
    probability: float
    threshold: float
    min_keep: int = 1
    strict: bool = False
    spared: tuple[int, ...] = ()

    @property
    def params(self) -> Mapping[str, float]:
        return {"xtc_probability": self.probability, "xtc_threshold": self.threshold}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        if past.seed is None:
            raise ParameterError("seed", None, "given: the step xtc draws a number")
        u = philox.uniform(past.seed, past.sequence, past.position, philox.XTC)
        top = self._top(before) if u < self.probability else 0
        if top < 2 or before.size - (top - 1) < self.min_keep:
            return before.noted(u=u)
        stay = np.ones(before.size, dtype=np.bool_)
        if self.strict:
            stay = before.logits <= before.logits[before.ranking.first(top)[-1]]
        else:
            stay[before.ranking.first(top - 1)] = False
        if self.spared:
            stay[before.among(known_ids("xtc_spared_ids", self.spared, before.vocab))] = True
        if stay.all():
            return before.noted(u=u)
        return before.keep(np.flatnonzero(stay), is_sorted=before.ranking.is_sorted).noted(u=u)

    def _top(self, before: Distribution) -> int:
        """How many have p >= threshold (strict: more than that)."""
        least = self.threshold * (1.0 + (CUT_TOLERANCE if self.strict else -CUT_TOLERANCE)) * before.total
        for order in before.ranking.growing():
            count = int(np.count_nonzero(before.best_weights(len(order)) >= least))
            if count < len(order):
                return count
        return before.size
