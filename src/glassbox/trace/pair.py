"""Two runs beside each other: how far their tokens are the same, and what both computed, computed again.

In: two sides. Out: which steps can be compared, and an `Inner` with hidden states, logits and distributions of both,
where both models are at hand and give the recorded hashes again; else the reason why there is none.
But: it does not say what differs first. stages.py does.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from glassbox.errors import GlassboxError
from glassbox.generation import logits_hash
from glassbox.model.points import LAYER_POINTS
from glassbox.trace.again import Again
from glassbox.trace.apart import distributions_apart, logits_apart, shared_ids, softmax, vectors_apart
from glassbox.trace.side import Side
from glassbox.types import F64, I64
from glassbox.weights.source import is_here

Token = int | bytes | None  # an id; its bytes, where vocabularies differ; None: not known
MOST_STEPS = 256  # that are computed again
AT_ONCE = 16  # rows of logits in memory


@dataclass
class Inner:
    """What both runs computed, at the first step whose logits differ, and the distributions of every step."""

    step: int
    embedding: dict[str, Any] | None = None  # as vectors_apart; None where the widths differ
    layers: list[dict[str, Any]] = field(default_factory=list)  # the same of each resid_post
    unlike: str = ""  # why hidden states are not compared
    first_point: str | None = None  # in the order of the forward pass
    rows: list[dict[str, Any]] = field(default_factory=list)  # one a step
    notes: list[str] = field(default_factory=list)


class Pair:
    def __init__(self, a: Side, b: Side) -> None:
        self.a, self.b = a, b

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.a, self.b

    def both(self, name: str) -> tuple[Any, Any]:
        return self.a.get(name), self.b.get(name)

    @cached_property
    def by_bytes(self) -> bool:
        """Whether ids of one are not ids of the other, so that tokens are compared by what they say.

        Of a capture that does not name its tokenizer it is not known: ids are compared where nothing else can be."""
        one, other = self.both("provenance.tokenizer_sha256")
        if one is not None and other is not None:
            return bool(one != other)
        known = all(side.knows_bytes for side in self.sides)
        return known and bool(self.a.get("model") != self.b.get("model"))

    @cached_property
    def tokens(self) -> tuple[list[Token], list[Token]]:
        """Of both outputs, in a form that can be compared."""

        def of(side: Side) -> list[Token]:
            return [side.step_bytes(i) if self.by_bytes else s["id"] for i, s in enumerate(side.steps)]

        return of(self.a), of(self.b)

    @cached_property
    def diverges(self) -> int | None:
        """The first step where both have a token, and not the same one; or one that is not known."""
        pairs = enumerate(zip(*self.tokens, strict=False))
        return next((i for i, (x, y) in pairs if x is None or x != y), None)

    @cached_property
    def aligned(self) -> int:
        """Steps that follow the same output tokens in both."""
        shorter = min(map(len, self.tokens))
        return shorter if self.diverges is None else self.diverges + 1

    @cached_property
    def hashes(self) -> list[bool | None]:
        """Of each aligned step: whether the logits are the same to the bit; None: not known."""
        pairs = zip(self.a.steps, self.b.steps, strict=False)
        found = [(x.get("logits_hash"), y.get("logits_hash")) for x, y in pairs][: self.aligned]
        return [None if x is None or y is None else bool(x == y) for x, y in found]

    @cached_property
    def same_logits(self) -> bool:
        """Every aligned step has the same hash, and there is one."""
        return bool(self.hashes) and all(self.hashes)

    @cached_property
    def inner(self) -> Inner | str:
        """Computed when it is first asked for; else why it cannot be."""
        for side in self.sides:
            if why := _why_not(side):
                return why
        if not self.aligned:
            return "there is no step that both have"
        try:
            return _computed(self)
        except (GlassboxError, OSError) as e:
            return str(e)


def _why_not(side: Side) -> str | None:
    run = side.run
    if run is None:
        return f"{side.name} is a capture, with no run to compute again"
    if run.retain == "none" or not run.prompt_ids:
        return f"{side.name} was recorded without its ids"
    if run.opened is None and not is_here(run.model):
        return f"{side.name}'s model, {run.model}, is not here"
    return None


def _computed(pair: Pair) -> Inner | str:
    with ExitStack() as stack:
        agains: list[Again] = []
        for side in pair.sides:
            assert side.run is not None
            known = agains[0].opened if agains and side.run.opened is None and _one_model(pair) else None
            again = stack.enter_context(side.run.again(known))
            if again.opened.sha256 != side.get("provenance.model_sha256"):
                return f"{side.name} was made by another model than the {side.run.model} that is here"
            agains.append(again)
            side.run = replace(side.run, opened=again.opened)  # now it can name its tokens
        inner = Inner(next((i for i, same in enumerate(pair.hashes) if not same), 0))
        for side, again in zip(pair.sides, agains, strict=True):
            row = again.logits(inner.step, inner.step)[0]
            if logits_hash(row) != side.steps[inner.step].get("logits_hash"):
                return f"{side.name}'s model does not give the recorded logits again: it was run in another way"
        _hidden(inner, *agains)
        _rows(inner, pair, *agains)
        return inner


def _one_model(pair: Pair) -> bool:
    """Whether what one was made with will do for the other."""
    pairs = (pair.both(name) for name in ("model", "provenance.model_sha256", "provenance.kv"))
    return all(one == other for one, other in pairs)


def _hidden(inner: Inner, a: Again, b: Again) -> None:
    """Residual streams behind the embedding and each layer, and the first inner value that differs."""
    layers = min(a.opened.model.layers, b.opened.model.layers)
    names = ["embed", *(f"resid_post.{i}" for i in range(layers))]
    one, other = a.observe(inner.step, names), b.observe(inner.step, names)
    if one["embed"].shape != other["embed"].shape:
        widths = one["embed"].shape[-1], other["embed"].shape[-1]
        inner.unlike = f"A's hidden states are {widths[0]} wide, B's {widths[1]}"
        return
    depths = a.opened.model.layers, b.opened.model.layers
    if depths[0] != depths[1]:
        inner.notes.append(f"A has {depths[0]} layers, B {depths[1]}: the first {layers} were compared")
    inner.embedding = vectors_apart(one["embed"], other["embed"])
    inner.layers = [{"layer": i} | vectors_apart(one[n], other[n]) for i, n in enumerate(names[1:])]
    if not inner.embedding["equal"]:
        inner.first_point = "embed"
        return
    at = next((v["layer"] for v in inner.layers if not v["equal"]), None)
    if at is not None:
        points = [f"{p}.{at}" for p in LAYER_POINTS]
        one, other = a.observe(inner.step, points), b.observe(inner.step, points)
        inner.first_point = next((p for p in points if one[p].tobytes() != other[p].tobytes()), f"resid_post.{at}")


def _rows(inner: Inner, pair: Pair, a: Again, b: Again) -> None:
    """Logits and distributions of the aligned steps."""
    ids_a, ids_b = _shared(pair, a, b)
    if pair.by_bytes:
        inner.notes.append(f"the vocabularies share {len(ids_a):,} tokens; what is compared are those")
    if pair.aligned > MOST_STEPS:
        inner.notes.append(f"distributions were compared of the first {MOST_STEPS} steps only")
    for begin in range(0, min(pair.aligned, MOST_STEPS), AT_ONCE):
        end = min(begin + AT_ONCE, pair.aligned, MOST_STEPS)
        rows = zip(a.logits(begin, end - 1), b.logits(begin, end - 1), strict=True)
        for step, (x, y) in enumerate(rows, begin):
            raw = distributions_apart(softmax(x[ids_a]), softmax(y[ids_b]))
            p, q = a.shaped(step, x).probs[ids_a], b.shaped(step, y).probs[ids_b]
            final = distributions_apart(_whole(p), _whole(q))
            inner.rows.append({"step": step} | logits_apart(x[ids_a], y[ids_b]) | {"raw": raw, "final": final})


def _shared(pair: Pair, a: Again, b: Again) -> tuple[I64, I64]:
    sizes = a.opened.model.vocab_size, b.opened.model.vocab_size
    if not pair.by_bytes:
        same = np.arange(min(sizes))
        return same, same
    vocabs = [again.opened.tokenizer.vocab for again in (a, b)]
    return shared_ids(*([v.bytes_of(i) for i in range(size)] for v, size in zip(vocabs, sizes, strict=True)))


def _whole(p: F64) -> F64:
    total = p.sum()
    return p / total if total > 0 else p
