"""A model: its spec, its weights, and `forward`. Ids in, logits out; it never samples and knows no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from glassbox.cache.pages import KINDS, Cache, Group, PagePool, PageShape
from glassbox.errors import ContextOverflow, ParameterError, PromptError
from glassbox.model.config import spec_of
from glassbox.model.execute import CHUNK, Computed, Executor, Part
from glassbox.model.intervene import Intervention
from glassbox.model.kernels.build import fingerprint, load
from glassbox.model.lens import Lens
from glassbox.model.points import sources
from glassbox.model.rope import RopeTables
from glassbox.model.spec import ModelSpec
from glassbox.model.sums import sum_rows
from glassbox.model.tensors import ModelFile
from glassbox.model.threads import Team, check_threads, thread_count
from glassbox.model.transformer import write
from glassbox.model.weights import load_weights
from glassbox.types import F32, I64, Sums

Rows = Literal["last", "all"]
HIDDEN = -1e29  # scores below are of positions a query may not see
MOST_EXECUTORS = 4  # programs kept with their buffers: one for each set of points looked at
FIRST_POSITIONS = 2048  # rotary tables are made for so many at first, and for twice as many when they run out


class AnyModel(Protocol):
    """What generation needs of a model; the transformer and the lab's bigram table have it."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def spec(self) -> ModelSpec | None: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def threads(self) -> int: ...

    def new_cache(self) -> Cache: ...
    def forward_parts(self, parts: Sequence[Part], look: frozenset[str] = frozenset()) -> Computed: ...
    def sum_rows(self, logits: F32, betas: Sequence[Sequence[float]]) -> list[Sums]: ...


def forward(
    model: AnyModel,
    ids: Sequence[int],
    cache: Cache,
    observe: Iterable[str] = (),
    rows: Rows = "last",
    chunk: int = CHUNK,
    interventions: tuple[Intervention, ...] = (),
) -> tuple[F32, dict[str, F32]]:
    """Append `ids` to the sequence in `cache`.

    Returns logits, float32 [1, V] of the last id or [T, V] of all (rows="all"), and each point of `observe` as an
    array of shape [T, …] (points.py). `chunk` cuts the work and changes no bit. interventions: what is done to inner
    values, checked (intervene.py). Raises ContextOverflow, PromptError (an id outside the vocabulary, no ids),
    UnknownPoint, ParameterError (a head that is not there), OutOfMemory.
    """
    checked = check_ids(model, ids, cache.length)
    spec = model.spec
    wanted = sources(observe, model.layers, spec.heads if spec else 0, spec.kv_heads if spec else 0)
    look = frozenset(point for point, _ in wanted.values())
    every = rows == "all" or bool(look & {"final_norm", "logits"})
    cache.reserve(cache.length + len(checked))
    size, pieces = min(chunk, CHUNK), []
    for begin in range(0, len(checked), size):
        piece = checked[begin : begin + size]
        first = 0 if every else len(piece) - (begin + len(piece) == len(checked))
        part = Part(piece, cache, range(first, len(piece)), interventions)
        pieces.append(model.forward_parts([part], look - {"logits"}))
    logits = np.concatenate([p.logits for p in pieces]) if len(pieces) > 1 else pieces[0].logits
    points = {name: join_point(name, [p.points[name] for p in pieces]) for name in look - {"logits"}}
    if "logits" in look:
        points["logits"] = logits
    found = {name: points[p] if head is None else points[p][:, head].copy() for name, (p, head) in wanted.items()}
    return (logits if rows == "all" else logits[-1:]), found


def check_ids(model: AnyModel, ids: Sequence[int], before: int) -> I64:
    """The ids as an array, all of them in the vocabulary and, after `before` others, within the context."""
    given = np.asarray(ids)
    if given.ndim != 1 or not len(given):
        raise PromptError("there are no token ids to compute")
    if given.dtype.kind not in "iu":
        raise PromptError("token ids must be whole numbers", param="ids")
    checked = given.astype(np.int64)
    if checked.min() < 0 or checked.max() >= model.vocab_size:
        bad = next(int(i) for i in checked if not 0 <= i < model.vocab_size)
        raise PromptError(f"id {bad} is outside the vocabulary of {model.vocab_size}", param="ids")
    if before + len(checked) > model.context:
        raise ContextOverflow(before + len(checked), model.context)
    return checked


def join_point(name: str, pieces: list[F32]) -> F32:
    """Pieces of a point, one a chunk -> one array [T, …]. Scores and probabilities grow wider from chunk to chunk."""
    if name.split(".")[0] in ("attn_scores", "attn_probs"):
        width, hidden = pieces[-1].shape[2], -np.inf if name.startswith("attn_scores") else 0.0
        pads = [((0, 0), (0, 0), (0, width - p.shape[2])) for p in pieces]
        pieces = [np.pad(p, pad, constant_values=hidden) for p, pad in zip(pieces, pads, strict=True)]
    return np.concatenate(pieces)


def page_shape(spec: ModelSpec, kv: str) -> PageShape:
    """What a page holds for this model, with keys and values kept as `kv`. Raises ParameterError."""
    if kv not in KINDS:
        raise ParameterError("kv", kv, f"one of {', '.join(KINDS)}")
    windows = [spec.window_of(i) for i in range(spec.layers)]
    groups = tuple(Group(windows.count(w), w) for w in spec.windows)
    return PageShape(groups, spec.kv_heads, spec.head_width, kv)


class TransformerModel:
    """A transformer with its weights packed and its kernels loaded."""

    def __init__(
        self, file: ModelFile, *, threads: int | None = None, kv: str = "f32", kv_limit: int | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """kv: how keys and values are kept, a key of cache/pages.py's KINDS; kv_limit: bytes all of them may take."""
        self.spec = spec_of(file)
        self.path: Path = file.path
        self.team = Team(load(announce), thread_count() if threads is None else check_threads(threads))
        self.weights = load_weights(file, self.spec, self.team)
        self.pool = PagePool(page_shape(self.spec, kv), kv_limit)
        self._ropes = RopeTables(min(FIRST_POSITIONS, self.spec.context))
        self._executors: dict[tuple[frozenset[str], tuple[Intervention, ...]], Executor] = {}

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab

    @property
    def context(self) -> int:
        return self.spec.context

    @property
    def layers(self) -> int:
        return self.spec.layers

    @property
    def fingerprint(self) -> str:
        """Of the arithmetic: kernels, target, compiler."""
        return fingerprint()

    @property
    def threads(self) -> int:
        return self.team.count

    def new_cache(self) -> Cache:
        return Cache(self.pool)

    def forward_parts(self, parts: Sequence[Part], look: frozenset[str] = frozenset()) -> Computed:
        """One pass over parts of any number of sequences, together at most CHUNK tokens, their pages reserved. All of
        them have the same interventions."""
        length = max(p.cache.length + len(p.ids) for p in parts)
        computed = self._executor(look, parts[0].interventions, length).run(parts)
        points = {name: self._shape(name, value) for name, value in computed.points.items()}
        return Computed(computed.logits[:, : self.spec.vocab], points)

    def sum_rows(self, logits: F32, betas: Sequence[Sequence[float]]) -> list[Sums]:
        """For each row of logits what its policy will sum, made by all threads together; see sums.py."""
        return sum_rows(self.team, logits, betas)

    def lens(self, resid: F32, *, normed: bool = True) -> F32:
        """Residual vectors of any layer [n, D] -> the logits [n, V] they would give at the end; see lens.py."""
        return Lens(self.spec, self.weights, self.team, normed=normed).read(resid)

    def _executor(self, look: frozenset[str], interventions: tuple[Intervention, ...], length: int) -> Executor:
        key = look, interventions
        if length > self._ropes.positions:
            positions = min(self.spec.context, max(2 * self._ropes.positions, length))
            self._executors.clear()  # their programs name the old tables: gone before those are, whatever interrupts
            self._ropes = RopeTables(positions)
        if key in self._executors:
            self._executors[key] = self._executors.pop(key)  # the newest stands last
        else:
            while len(self._executors) >= MOST_EXECUTORS:
                del self._executors[next(iter(self._executors))]
            sheet = write(self.spec, self.weights, self._ropes, look, interventions)
            widest = max(self.spec.width, self.spec.mlp_width, self.spec.heads * self.spec.head_width)
            self._executors[key] = Executor(sheet, self.team, self.pool.shape, widest)
        return self._executors[key]

    def _shape(self, name: str, value: F32) -> F32:
        """A point's buffer [T, padded width] as the shape points.py names."""
        kind, s = name.split(".")[0], self.spec
        if kind == "attn_scores":
            return np.where(value <= HIDDEN, np.float32(-np.inf), value)
        if kind == "attn_probs":
            return value
        heads = {"q": s.heads, "k": s.kv_heads, "v": s.kv_heads, "z": s.heads}.get(kind)
        if heads:
            return value[:, : heads * s.head_width].reshape(len(value), heads, s.head_width)
        if kind == "mlp_act" and s.experts:
            return value[:, : s.experts_used * s.mlp_width].reshape(len(value), s.experts_used, s.mlp_width)
        return value[:, : s.mlp_width if kind == "mlp_act" else s.width]

    def __repr__(self) -> str:
        s = self.spec
        return f"<{s.architecture}: {s.layers} layers of {s.width}, vocabulary {s.vocab}>"
