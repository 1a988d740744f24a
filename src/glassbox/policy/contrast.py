"""The steps that set the model's row of logits against others: another prompt's, earlier layers', and what the
candidates would make of the sequence.

In: a distribution, and the other rows as `Past.views`. Out: the same ids (DoLa: the likelier ones) with other logits;
of contrastive search one id.
But: no model here. passes.py runs it, as `needs` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from glassbox.errors import NonFiniteLogits, ParameterError
from glassbox.policy.distribution import Distribution
from glassbox.policy.softmax import exp, log_softmax
from glassbox.policy.step import Past, Views, like
from glassbox.types import F32, F64, I64

DOLA_RELATIVE_TOP = 0.1  # of the best one's probability

T = TypeVar("T")


@dataclass(frozen=True)
class Guidance:
    """logit_i <- n_i + guidance_scale (c_i - n_i), in float32: c the log-softmax of the logits, n that of the model's
    logits of the same output behind negative_ids (none given: behind the prompt's last id)

    Source: Sanchez et al., "Stay on topic with Classifier-Free Guidance", ICML 2024, in the form of transformers,
    UnbatchedClassifierFreeGuidanceLogitsProcessor
    """

    name: ClassVar[str] = "guidance"
    argmax_invariant: ClassVar[bool] = False
    needs: ClassVar[str] = "negative"
    scale: float

    @property
    def params(self) -> Mapping[str, float]:
        return {"guidance_scale": self.scale}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        negative = _given(self.name, _views(self.name, past).negative)
        at = np.arange(before.size)
        ids, conditional = before.ids_at(at), log_softmax(before.scaled_at(at))  # [n]
        unconditional = _log_softmax(self.name, negative, past)[ids]
        found = unconditional + self.scale * (conditional - unconditional)
        return before.rewritten(at, like(found, before.logits))


@dataclass(frozen=True)
class Dola:
    """keep every token with log p_i >= log p_max + log 0.1, logit_i <- log p_i - log q_i, in float32: q of the one of
    dola_layers that is farthest from p, by 1/2 KL(m || p) + 1/2 KL(m || q), m = (p + q) / 2; its logits are the
    final norm's and the head's of what enters that layer (with dola_normed false: the head's alone)

    Source: Chuang et al., "DoLa: Decoding by Contrasting Layers Improves Factuality", ICLR 2024, in the form of
    transformers, _dola_select_contrast, which is that of the authors' code
    """

    name: ClassVar[str] = "dola"
    argmax_invariant: ClassVar[bool] = False
    needs: ClassVar[str] = "layers"

    @property
    def params(self) -> Mapping[str, float]:
        return {"relative_top": DOLA_RELATIVE_TOP}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        layers = _views(self.name, past).layers
        if not layers:
            raise _missing(self.name)
        at = _ascending(before)
        ids, p = before.ids_at(at), log_softmax(before.scaled_at(at))  # [n]
        rows = {layer: _log_softmax(self.name, row, past, ids) for layer, row in sorted(layers.items())}
        apart = {layer: _apart(p, q) for layer, q in rows.items()}
        chosen = max(apart, key=lambda layer: apart[layer])  # of equal ones the first
        kept = np.flatnonzero(p >= p.max() + math.log(DOLA_RELATIVE_TOP))
        contrast = like((p - rows[chosen])[kept], before.logits)
        after = Distribution.weigh(contrast, vocab=before.vocab, ids=ids[kept])
        return after.noted(layer=chosen, divergence=apart[chosen], changed=len(kept))


@dataclass(frozen=True)
class ContrastiveSearch:
    """keep the one of the top_k best with the largest (1 - penalty_alpha) p_i - penalty_alpha s_i: p as it was before
    the tail was cut, s_i the largest cosine between the last hidden state (after the final norm) of token i and that
    of any token before

    Source: Su et al., "A Contrastive Framework for Neural Text Generation", NeurIPS 2022
    """

    name: ClassVar[str] = "contrastive"
    argmax_invariant: ClassVar[bool] = False
    needs: ClassVar[str] = "candidates"
    alpha: float
    top_k: int

    @property
    def params(self) -> Mapping[str, float]:
        return {"penalty_alpha": self.alpha, "top_k": self.top_k}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        similarity = _given(self.name, _views(self.name, past).similarity)
        best = before.ranking.first(min(self.top_k, before.size))  # [k]
        p = before.weights_at(best) / (before.base or before).total
        alike = similarity(before.ids_at(best))
        score = (1.0 - self.alpha) * p - self.alpha * alike
        at = int(score.argmax())  # of equal ones the likelier
        kept = before.keep(best[at : at + 1], is_sorted=True)
        return kept.noted(p=float(p[at]), similarity=float(alike[at]), score=float(score[at]), rank=at)


def _ascending(d: Distribution) -> I64:
    """The positions in the order of their ids."""
    at = np.arange(d.size)
    return at if d.ids is None or not d.ranking.is_sorted else np.argsort(d.ids)


def _log_softmax(name: str, row: F32, past: Past, ids: I64 | None = None) -> F64:
    """Of a row of the model's, or of these ids in it; a row that has none is refused as the model's own would be."""
    bad = np.flatnonzero(~np.isfinite(row))
    if len(bad):
        raise NonFiniteLogits(f"policy step {name!r}", position=int(bad[0]), at=len(past.output_ids))
    return log_softmax(row if ids is None else row[ids])


def _apart(p: F64, q: F64) -> float:
    """1/2 KL(m || p) + 1/2 KL(m || q) of logarithms, in nats: what the authors' code takes for Jensen and Shannon's."""
    m = np.logaddexp(p, q) - math.log(2)
    with np.errstate(under="ignore"):
        return float((exp(m) * (m - 0.5 * (p + q))).sum())


def _views(name: str, past: Past) -> Views:
    if past.views is None:
        raise _missing(name)
    return past.views


def _given(name: str, value: T | None) -> T:
    if value is None:
        raise _missing(name)
    return value


def _missing(name: str) -> ParameterError:
    shown: Any = None
    return ParameterError("views", shown, f"given: step {name!r} needs further passes of the model")
