"""The steps that say which ids are possible at all, and the bias on single ones.

In: a distribution and the ids before. Out: one with fewer ids, or (bias) other logits.
But: a constraint is never softened. One that leaves nothing is an error (EmptySupport), not a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from glassbox.errors import ParameterError
from glassbox.policy.distribution import Distribution
from glassbox.policy.step import Past, Scope, like
from glassbox.types import I64


def known_ids(param: str, ids: Sequence[int] | I64, vocab: int) -> I64:
    """As an array, all of them in the vocabulary."""
    found = np.asarray(ids, dtype=np.int64)
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < vocab:
        wrong = int(found[(found < 0) | (found >= vocab)][0])
        raise ParameterError(param, wrong, f"an id of the vocabulary, from 0 to {vocab - 1}")
    return found


@dataclass(frozen=True)
class ForcedIds:
    """output token n is forced_ids[n], while there is one: every other id gets p = 0

    Source: transformers, ForcedBOSTokenLogitsProcessor, for more than one position
    """

    name: ClassVar[str] = "forced_ids"
    argmax_invariant: ClassVar[bool] = False
    ids: tuple[int, ...]

    @property
    def params(self) -> Mapping[str, float]:
        return {"ids": len(self.ids)}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        n = len(past.output_ids)
        if n >= len(self.ids):
            return before
        return before.narrowed(before.among(known_ids("forced_ids", self.ids[n : n + 1], before.vocab)))


@dataclass(frozen=True)
class _Listed:
    """What steps about a list of ids share."""

    ids: tuple[int, ...]

    @cached_property
    def listed(self) -> I64:
        return np.array(self.ids, dtype=np.int64)

    @property
    def params(self) -> Mapping[str, float]:
        return {"ids": len(self.ids)}


@dataclass(frozen=True)
class AllowedIds(_Listed):
    """p_i = 0 unless i is in allowed_ids

    Source: vLLM, SamplingParams.allowed_token_ids
    """

    name: ClassVar[str] = "allowed_ids"
    argmax_invariant: ClassVar[bool] = False

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        stay = before.among(known_ids("allowed_ids", self.listed, before.vocab))
        return before if len(stay) == before.size else before.narrowed(stay)


@dataclass(frozen=True)
class BannedIds(_Listed):
    """p_i = 0 if i is in banned_ids

    Source: transformers, SuppressTokensLogitsProcessor
    """

    name: ClassVar[str] = "banned_ids"
    argmax_invariant: ClassVar[bool] = False

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        return before.without(known_ids("banned_ids", self.listed, before.vocab))


@dataclass(frozen=True)
class BeginSuppressIds:
    """p_i = 0 if i is in begin_suppress_ids and this is the first output token

    Source: transformers, SuppressTokensAtBeginLogitsProcessor
    """

    name: ClassVar[str] = "begin_suppress_ids"
    argmax_invariant: ClassVar[bool] = False
    ids: tuple[int, ...]

    @property
    def params(self) -> Mapping[str, float]:
        return {"ids": len(self.ids)}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        ids = known_ids("begin_suppress_ids", self.ids, before.vocab)
        return before if len(past.output_ids) else before.without(ids)


@dataclass(frozen=True)
class BannedSequences:
    """p_i = 0 if (a, …, z, i) is in banned_sequences and the ids of the scope end with a, …, z

    Source: transformers, NoBadWordsLogitsProcessor (scope prompt+output); vLLM, bad_words (scope output)
    """

    name: ClassVar[str] = "banned_sequences"
    argmax_invariant: ClassVar[bool] = False
    sequences: tuple[tuple[int, ...], ...]
    scope: Scope

    @property
    def params(self) -> Mapping[str, float]:
        return {"sequences": len(self.sequences)}

    @cached_property
    def listed(self) -> I64:
        return np.array([i for s in self.sequences for i in s], dtype=np.int64)

    @cached_property
    def by_head(self) -> dict[tuple[int, ...], list[int]]:
        found: dict[tuple[int, ...], list[int]] = {}
        for *head, last in self.sequences:
            found.setdefault(tuple(head), []).append(last)
        return found

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        known_ids("banned_sequences", self.listed, before.vocab)
        longest = max(map(len, self.by_head))
        seen = past.within(self.scope)[-longest:].tolist() if longest else []
        gone: list[int] = []
        for n in range(len(seen) + 1):
            gone += self.by_head.get(tuple(seen[len(seen) - n :]), ())
        return before.without(np.array(gone, dtype=np.int64)).noted(banned=len(set(gone)))


@dataclass(frozen=True)
class MinTokens:
    """p_i = 0 if i ends the text (eos_ids) and fewer than min_tokens were made

    Source: transformers, MinNewTokensLengthLogitsProcessor
    """

    name: ClassVar[str] = "min_tokens"
    argmax_invariant: ClassVar[bool] = False
    min_tokens: int
    eos_ids: tuple[int, ...]

    @property
    def params(self) -> Mapping[str, float]:
        return {"min_tokens": self.min_tokens}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        ids = known_ids("eos_ids", self.eos_ids, before.vocab)
        return before if len(past.output_ids) >= self.min_tokens else before.without(ids)


@dataclass(frozen=True)
class LogitBias:
    """logit_i <- logit_i + bias_i, in float32; the bias of ids (a, …, z, i) counts for i where the ids before end with
    a, …, z

    Source: OpenAI's API, logit_bias; transformers, SequenceBiasLogitsProcessor
    """

    name: ClassVar[str] = "logit_bias"
    argmax_invariant: ClassVar[bool] = False
    bias: tuple[tuple[int, float], ...]  # ascending ids
    sequences: tuple[tuple[tuple[int, ...], float], ...] = ()  # each of two ids or more

    @property
    def params(self) -> Mapping[str, float]:
        return {"ids": len(self.bias)} | ({"sequences": len(self.sequences)} if self.sequences else {})

    @cached_property
    def listed(self) -> I64:
        return np.array([*(i for i, _ in self.bias), *(i for s, _ in self.sequences for i in s)], dtype=np.int64)

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        known_ids("logit_bias", self.listed, before.vocab)
        now = self._now(past)
        ids = np.array(sorted(now), dtype=np.int64)
        at = before.among(ids)
        old = before.scaled_at(at)
        added = np.array([now[i] for i in before.ids_at(at).tolist()], dtype=np.float64)
        return before.rewritten(at, old + like(added, old))

    def _now(self, past: Past) -> dict[int, float]:
        """What is added at this position, by id."""
        now = dict(self.bias)
        if self.sequences:
            seen = past.everything[-max(len(s) for s, _ in self.sequences) :].tolist()
            for (*head, last), b in self.sequences:
                if seen[-len(head) :] == head:
                    now[last] = now.get(last, 0.0) + b
        return now
