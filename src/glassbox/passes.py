"""More passes of the model that a policy asks for: another prompt's logits, early layers' logits, what candidates do.

In: the ids of one sequence and its cache, at each token. Out: `Views` for the policy's steps.
But: nothing is chosen here, and the sequence's own cache is never written to: what is tried runs on forks of it. The
passes of one sequence run by themselves, so no other sequence can change a bit of them; the price is their time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from glassbox.cache.pages import Cache, PageShape, available_memory
from glassbox.errors import OutOfMemory, ParameterError
from glassbox.model.execute import CHUNK, Computed, Part
from glassbox.model.intervene import Intervention
from glassbox.model.model import AnyModel, TransformerModel, check_ids
from glassbox.policy.policy import Policy
from glassbox.policy.step import Views
from glassbox.types import F32, F64, I64

FINAL = "final_norm"
Changed = tuple[Intervention, ...]
DEEP = 40  # beyond so many layers DoLa's "low" and "high" are the first and last 20


class Need(Protocol):
    """One kind of further passes, for one sequence."""

    def view(self, ids: Sequence[int], cache: Cache) -> dict[str, Any]:
        """Fields of `Views` for the token after `ids`, all of which `cache` holds."""
        ...

    def nbytes(self, shape: PageShape, prompt: int, most: int) -> int:
        """Of pages it holds at most, for a sequence of `prompt` ids that may come to `most`."""
        ...

    def release(self) -> None: ...


class Negative:
    """The logits of the same output behind another prompt, whose keys and values it keeps."""

    def __init__(self, model: AnyModel, policy: Policy, prompt: Sequence[int], changed: Changed) -> None:
        self.changed = changed  # at positions of its own
        self.prompt, self.after = tuple(policy.negative_ids or prompt[-1:]), len(prompt)
        self.model, self.cache = model, model.new_cache()
        check_ids(model, self.prompt, 0)

    def view(self, ids: Sequence[int], cache: Cache) -> dict[str, Any]:
        here = [*self.prompt, *ids[self.after :]]
        computed = read(self.model, here[self.cache.length :], self.cache, changed=self.changed)[-1]
        return {"negative": computed.logits[-1]}

    def nbytes(self, shape: PageShape, prompt: int, most: int) -> int:
        return shape.sequence_bytes(len(self.prompt) + most - prompt) + spare(shape)

    def release(self) -> None:
        self.cache.release()


class Layers:
    """The logits of early layers: the last id once more on a fork, with a look at what enters them."""

    def __init__(self, model: AnyModel, policy: Policy, prompt: Sequence[int], changed: Changed) -> None:
        self.changed = changed
        self.model, self.normed = transformer(model, "dola_layers", policy.dola_layers), policy.dola_normed
        self.layers = dola_layers(policy.dola_layers, model.layers, tied=self.model.spec.tied)

    def view(self, ids: Sequence[int], cache: Cache) -> dict[str, Any]:
        points = [f"resid_pre.{i}" for i in self.layers]
        twin = cache.fork()
        try:
            twin.truncate(len(ids) - 1)
            seen = read(self.model, ids[-1:], twin, points, changed=self.changed)[-1].points
        finally:
            twin.release()
        rows = self.model.lens(np.concatenate([seen[p] for p in points]), normed=self.normed)
        return {"layers": dict(zip(self.layers, rows, strict=True))}

    def nbytes(self, shape: PageShape, prompt: int, most: int) -> int:
        return spare(shape)

    def release(self) -> None:
        pass


class Candidates:
    """How much the hidden state of each candidate is like those there are. The prompt's are computed in a pass of
    their own at the start (a reused prefix has none); those of the output were candidates before they were chosen."""

    def __init__(self, model: AnyModel, policy: Policy, prompt: Sequence[int], changed: Changed) -> None:
        self.changed = changed
        self.model, self.top_k = transformer(model, "penalty_alpha", policy.penalty_alpha), policy.top_k
        self.hidden: list[F32] = []  # [D] for each position
        self._tried: dict[int, F32] = {}
        self._own = model.new_cache()  # holds pages only while it reads a prompt

    def view(self, ids: Sequence[int], cache: Cache) -> dict[str, Any]:
        if len(self.hidden) + 1 == len(ids) and ids[-1] in self._tried:
            self.hidden.append(self._tried[ids[-1]])
        if len(self.hidden) < len(ids):
            self.release()
            pieces = read(self.model, ids, self._own, [FINAL], rows="all", changed=self.changed)
            self.hidden = [row for piece in pieces for row in piece.points[FINAL]]
            self.release()
        return {"similarity": lambda some: self.similarity(some, cache)}

    def similarity(self, ids: I64, cache: Cache) -> F64:
        """[k] -> [k]: each id's largest cosine with a position there is, in float64."""
        forks: list[Cache] = []
        try:
            for _ in ids:
                forks.append(cache.fork())
                forks[-1].reserve(cache.length + 1)
            parts = [Part(ids[i : i + 1], fork, range(1), self.changed) for i, fork in enumerate(forks)]
            new = self.model.forward_parts(parts, frozenset({FINAL})).points[FINAL]  # [k, D]
        finally:
            for fork in forks:
                fork.release()
        self._tried = dict(zip(ids.tolist(), new, strict=True))
        there = unit(np.stack(self.hidden))  # [n, D]
        # Not a matrix product: a library's sums depend on its threads.
        return np.array([np.einsum("nd,d->n", there, row).max() for row in unit(new)])

    def nbytes(self, shape: PageShape, prompt: int, most: int) -> int:
        return max(shape.sequence_bytes(prompt) + spare(shape), min(self.top_k, CHUNK) * spare(shape))

    def release(self) -> None:
        self._own.release()


NEEDS: dict[str, type[Negative] | type[Layers] | type[Candidates]] = {
    "negative": Negative, "layers": Layers, "candidates": Candidates,
}  # fmt: skip


class Passes:
    """All that one sequence's policy needs."""

    def __init__(self, model: AnyModel, policy: Policy, prompt: Sequence[int], changed: Changed = ()) -> None:
        """changed: what is done to inner values of the sequence, and so of these passes.

        Raises ParameterError for a policy that needs what the model does not have, PromptError, ContextOverflow."""
        self._needs: list[Need] = [NEEDS[name](model, policy, prompt, changed) for name in sorted(policy.needs)]
        negative = len(policy.negative_ids) if "negative" in policy.needs else 0
        self.longer = max(0, negative - len(prompt))  # positions by which another prompt exceeds the sequence's own

    def views(self, ids: Sequence[int], cache: Cache) -> Views:
        """For the token after `ids`, all of which `cache` holds. Raises OutOfMemory."""
        try:
            found: dict[str, Any] = {}
            for need in self._needs:
                found |= need.view(ids, cache)
            return Views(**found)
        except MemoryError:
            raise OutOfMemory("the further passes of a policy", 0, available_memory()) from None

    def nbytes(self, shape: PageShape, prompt: int, most: int) -> int:
        """Of pages held at most, beside the sequence's own."""
        return sum(need.nbytes(shape, prompt, most) for need in self._needs)

    def release(self) -> None:
        for need in self._needs:
            need.release()


def passes_for(model: AnyModel, policy: Policy, prompt: Sequence[int], changed: Changed = ()) -> Passes | None:
    """None for a policy that goes by one row of logits, as most do."""
    return Passes(model, policy, prompt, changed) if policy.needs else None


def read(
    model: AnyModel, ids: Sequence[int], cache: Cache, look: Iterable[str] = (), rows: str = "last",
    changed: Changed = (),
) -> list[Computed]:  # fmt: skip
    """Append `ids` in chunks, giving back what windows leave behind. Points of each chunk, logits of the last id."""
    check_ids(model, ids, cache.length)
    array, pieces = np.array(ids, np.int64), []
    for begin in range(0, len(array), CHUNK):
        piece = array[begin : begin + CHUNK]
        first = 0 if rows == "all" else len(piece) - (begin + len(piece) == len(array))
        cache.reserve(cache.length + len(piece))
        computed = model.forward_parts([Part(piece, cache, range(first, len(piece)), changed)], frozenset(look))
        # Of a long prompt the logits would be much more than what is looked at.
        pieces.append(Computed(computed.logits[-1:].copy(), computed.points))
        cache.trim()
    return pieces


def spare(shape: PageShape) -> int:
    """Bytes of one page of each group: what a fork writes to."""
    return sum(shape.page_bytes(g) for g in range(len(shape.groups)))


def unit(rows: F32) -> F64:
    """[n, D] -> float64 [n, D], each of length 1; a row of zeros stays so: it is like none."""
    wide = rows.astype(np.float64)
    length = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    found: F64 = wide / np.where(length > 0, length, 1.0)
    return found


def transformer(model: AnyModel, param: str, value: object) -> TransformerModel:
    """The model, if it has layers to look into."""
    if not isinstance(model, TransformerModel):
        raise ParameterError(param, value, f"left out: {model!r} has no layers")
    return model


def dola_layers(asked: str | tuple[int, ...], layers: int, *, tied: bool) -> tuple[int, ...]:
    """Layers by what enters them (0: the embedding). Raises ParameterError for one that the model does not have.

    "low" and "high" as in transformers: every second one of a half, or of 20 where there are more than 40; where the
    head is the embedding, its own product with it says nothing, and low ones begin at 2.
    """
    if not isinstance(asked, str):
        if max(asked) >= layers:
            raise ParameterError("dola_layers", asked, f"layers of this model, from 0 to {layers - 1}")
        return asked
    half, start = layers // 2, (min(2, layers - 1) if tied else 0)
    if asked == "high":
        return tuple(range(half if layers <= DEEP else layers - 20, layers, 2))
    return tuple(range(start, half if layers <= DEEP else 20, 2)) or (start,)
