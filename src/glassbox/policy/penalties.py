"""The steps that look back: what has been said gets less likely.

In: a distribution and the ids before. Out: one with other logits (no-repeat n-gram: fewer ids).
But: a penalty is not shift invariant and not meant to be; it acts on the logits as the model gave them, in float32 as
in other engines. (Behind a temperature it acts on logit / T, in float64.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glassbox.policy.constrain import known_ids
from glassbox.policy.distribution import Distribution
from glassbox.policy.step import EVERYTHING, Past, Scope, like
from glassbox.types import I64

_MOST = float(np.finfo(np.float32).max) / 4  # that DRY takes off


def counted(before: Distribution, past: Past, scope: Scope) -> tuple[I64, I64]:
    """(positions of the ids alive that the scope has, how often it has each)."""
    ids, counts = past.counts(scope)
    known_ids("prompt_ids or output_ids", ids, before.vocab)
    at = before.among(ids)
    return at, counts[np.searchsorted(ids, before.ids_at(at))]


@dataclass(frozen=True)
class RepetitionPenalty:
    """logit_i <- logit_i / r if logit_i > 0, else logit_i r, once for each i in the scope, in float32

    Source: Keskar et al., "CTRL", 2019, with the multiplication for logits below 0 that transformers#2303 added
    """

    name: ClassVar[str] = "repetition_penalty"
    argmax_invariant: ClassVar[bool] = False
    penalty: float
    scope: Scope

    @property
    def params(self) -> Mapping[str, float]:
        return {"repetition_penalty": self.penalty}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        at, _ = counted(before, past, self.scope)
        old = before.scaled_at(at)
        with np.errstate(over="ignore"):  # what overflows is refused by name, or not possible
            return before.rewritten(at, np.where(old > 0, old / self.penalty, old * self.penalty))


@dataclass(frozen=True)
class FrequencyPenalty:
    """logit_i <- logit_i - frequency_penalty count_i, with counts in the scope, in float32

    Source: OpenAI's API, frequency_penalty
    """

    name: ClassVar[str] = "frequency_penalty"
    argmax_invariant: ClassVar[bool] = False
    penalty: float
    scope: Scope

    @property
    def params(self) -> Mapping[str, float]:
        return {"frequency_penalty": self.penalty}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        at, counts = counted(before, past, self.scope)
        old = before.scaled_at(at)
        return before.rewritten(at, old - self.penalty * like(counts, old))


@dataclass(frozen=True)
class RelativeFrequencyPenalty:
    """logit_i <- logit_i - frequency_penalty count_i / n, with counts among all n ids, prompt included, in float32

    Source: TGI, HeterogeneousFrequencyPenaltyLogitsProcessor. It fades as the text grows
    """

    name: ClassVar[str] = "frequency_penalty"
    argmax_invariant: ClassVar[bool] = False
    penalty: float

    @property
    def params(self) -> Mapping[str, float]:
        return {"frequency_penalty": self.penalty}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        at, counts = counted(before, past, EVERYTHING)
        old = before.scaled_at(at)
        share = like(counts, old) / max(1, past.position)
        return before.rewritten(at, old - share * self.penalty)


@dataclass(frozen=True)
class PresencePenalty:
    """logit_i <- logit_i - presence_penalty for each i in the scope, in float32

    Source: OpenAI's API, presence_penalty
    """

    name: ClassVar[str] = "presence_penalty"
    argmax_invariant: ClassVar[bool] = False
    penalty: float
    scope: Scope

    @property
    def params(self) -> Mapping[str, float]:
        return {"presence_penalty": self.penalty}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        at, _ = counted(before, past, self.scope)
        old = before.scaled_at(at)
        return before.rewritten(at, old - self.penalty)


@dataclass(frozen=True)
class NoRepeatNgram:
    """p_i = 0 if the last n - 1 ids and i are an n-gram that prompt and output already have

    Source: Paulus, Xiong & Socher, "A Deep Reinforced Model for Abstractive Summarization", ICLR 2018 (n = 3);
    transformers, NoRepeatNGramLogitsProcessor
    """

    name: ClassVar[str] = "no_repeat_ngram"
    argmax_invariant: ClassVar[bool] = False
    size: int

    @property
    def params(self) -> Mapping[str, float]:
        return {"no_repeat_ngram_size": self.size}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        seen = known_ids("prompt_ids or output_ids", past.everything, before.vocab)
        last = self.size - 1
        begin = np.arange(max(0, len(seen) - last))  # where an n-gram can begin
        for j in range(last if len(begin) else 0):
            begin = begin[seen[begin + j] == seen[len(seen) - last + j]]
        gone = seen[begin + last]
        return before.without(gone).noted(banned=len(np.unique(gone)))


@dataclass(frozen=True)
class Dry:
    """logit_i <- logit_i - multiplier base^(m - allowed_length), in float32, where the m >= allowed_length last ids
    stood before with i after them (m as long as possible; it does not reach across a sequence breaker)

    Source: p-e-w, "DRY: A modern repetition penalty", text-generation-webui#5677
    """

    name: ClassVar[str] = "dry"
    argmax_invariant: ClassVar[bool] = False
    multiplier: float
    base: float
    allowed_length: int
    breakers: tuple[int, ...]
    scope: Scope

    @property
    def params(self) -> Mapping[str, float]:
        return {
            "dry_multiplier": self.multiplier, "dry_base": self.base, "dry_allowed_length": self.allowed_length,
        }  # fmt: skip

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        ids, lengths = self._matches(known_ids("prompt_ids or output_ids", past.within(self.scope), before.vocab))
        at = before.among(ids)
        matched = lengths[np.searchsorted(ids, before.ids_at(at))]
        old = before.scaled_at(at)
        with np.errstate(over="ignore"):
            penalty = self.multiplier * np.power(self.base, (matched - self.allowed_length).astype(np.float64))
            # As much as float32 can say: it makes an id as unlikely as can be, not impossible.
            penalty = np.minimum(penalty, _MOST)
        return before.rewritten(at, old - like(penalty, old))

    @property
    def _longest(self) -> int:
        """No longer match costs more: so a text that only repeats itself is not walked from end to end."""
        growth, room = math.log(self.base), math.log(_MOST) - math.log(self.multiplier)
        return self.allowed_length + (math.ceil(room / growth) if growth else 0)

    def _matches(self, seen: I64) -> tuple[I64, I64]:
        """(ids ascending, the longest match before each), only matches that are long enough."""
        broken = np.isin(seen, self.breakers)
        reach = int(np.argmax(broken[::-1])) if broken.any() else len(seen)  # ids since the last breaker
        end = np.flatnonzero(~broken[1:])  # a match ends here, and what follows it is no breaker
        best = np.zeros(int(seen.max()) + 1 if len(seen) else 0, dtype=np.int64)
        for m in range(1, min(reach, self._longest) + 1):  # matches of length m, from those of length m - 1
            end = end[end >= m - 1]
            end = end[seen[end - m + 1] == seen[len(seen) - m]]
            if not len(end):
                break
            best[seen[end + 1]] = m
        ids = np.flatnonzero(best >= self.allowed_length)
        return ids, best[ids]


@dataclass(frozen=True)
class LengthDecay:
    """logit_i <- logit_i + |logit_i| (factor^(n - start) - 1) for i that ends the text (eos_ids), in float32, once n,
    the number of output tokens, is beyond start

    Source: transformers, ExponentialDecayLengthPenalty
    """

    name: ClassVar[str] = "length_decay"
    argmax_invariant: ClassVar[bool] = False
    start: int
    factor: float
    eos_ids: tuple[int, ...]

    @property
    def params(self) -> Mapping[str, float]:
        return {"start": self.start, "factor": self.factor}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        at = before.among(known_ids("eos_ids", self.eos_ids, before.vocab))
        beyond = len(past.output_ids) - self.start
        if beyond <= 0:
            return before
        old = before.scaled_at(at)
        with np.errstate(over="ignore"):
            grown = like(np.power(np.full(1, self.factor), beyond) - 1.0, old)
            return before.rewritten(at, old + np.abs(old) * grown)
