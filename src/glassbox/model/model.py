"""A model: its spec, its weights, and `forward`. Ids in, logits out; it never samples and knows no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from glassbox.cache.pages import Cache, PagePool, PageShape
from glassbox.errors import ContextOverflow, PromptError
from glassbox.model.execute import CHUNK, Executor, Part
from glassbox.model.kernels.build import fingerprint, load
from glassbox.model.points import check_points
from glassbox.model.rope import RopeTables
from glassbox.model.spec import ModelSpec, spec_from_gguf
from glassbox.model.threads import Team, thread_count
from glassbox.model.transformer import write
from glassbox.model.weights import load_weights
from glassbox.types import F32, I64
from glassbox.weights.gguf import Gguf

Rows = Literal["last", "all"]
FIRST_POSITIONS = 2048  # rotary tables are made for so many at first, and for twice as many when they run out


class AnyModel(Protocol):
    """What generation needs of a model; the transformer and the lab's bigram table have it."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def threads(self) -> int: ...

    def new_cache(self) -> Cache: ...
    def forward(
        self, ids: Sequence[int], cache: Cache, observe: Iterable[str] = (), rows: Rows = "last", chunk: int = CHUNK
    ) -> tuple[F32, dict[str, F32]]: ...


class TransformerModel:
    """A transformer with its weights packed and its kernels loaded."""

    def __init__(self, file: Gguf, *, threads: int | None = None, announce: Callable[[str], None] | None = None) -> None:
        table = file.tensors.get("token_embd.weight")
        self.spec: ModelSpec = spec_from_gguf(file.metadata, table.shape[0] if table and len(table.shape) == 2 else 1)
        self.path: Path = file.path
        self.weights = load_weights(file, self.spec)
        self.team = Team(load(announce), threads if threads is not None else thread_count())
        self.pool = PagePool(PageShape(self.spec.layers, self.spec.kv_heads, self.spec.head_width))
        self._ropes = RopeTables(self.spec.head_width, min(FIRST_POSITIONS, self.spec.context))
        self._executors: dict[frozenset[str], Executor] = {}

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab

    @property
    def context(self) -> int:
        return self.spec.context

    @property
    def fingerprint(self) -> str:
        """Of the arithmetic: kernels, target, compiler."""
        return fingerprint()

    @property
    def threads(self) -> int:
        return self.team.count

    def new_cache(self) -> Cache:
        return Cache(self.pool)

    def forward(
        self, ids: Sequence[int], cache: Cache, observe: Iterable[str] = (), rows: Rows = "last", chunk: int = CHUNK
    ) -> tuple[F32, dict[str, F32]]:
        """Append `ids` to the sequence in `cache`.

        Returns logits, float32 [1, V] of the last id or [T, V] of all (rows="all"), and each point of `observe` as an
        array of shape [T, …] (points.py). `chunk` cuts the work and changes no bit. Raises ContextOverflow,
        PromptError (an id outside the vocabulary, no ids), UnknownPoint, OutOfMemory.
        """
        checked = self._check(ids, cache)
        look = check_points(observe, self.spec.layers)
        executor = self._executor(look - {"logits"}, cache.length + len(checked))
        every = rows == "all" or "final_norm" in look or "logits" in look
        cache.reserve(cache.length + len(checked))
        pieces = []
        for begin in range(0, len(checked), min(chunk, CHUNK)):
            piece = checked[begin : begin + min(chunk, CHUNK)]
            last = begin + len(piece) == len(checked)
            wanted = range(0, len(piece)) if every else range(len(piece) - 1 if last else len(piece), len(piece))
            pieces.append(executor.run([Part(piece, cache, wanted)]))
        logits = pieces[-1][0] if len(pieces) == 1 else np.concatenate([p[0] for p in pieces])
        logits = logits[:, : self.spec.vocab]
        points = {name: self._shape(name, [p[1][name] for p in pieces]) for name in look - {"logits"}}
        if "logits" in look:
            points["logits"] = logits
        return (logits if rows == "all" else logits[-1:]), points

    def _check(self, ids: Sequence[int], cache: Cache) -> I64:
        checked = np.asarray(ids, np.int64)
        if checked.ndim != 1 or not len(checked):
            raise PromptError("there are no token ids to compute")
        if checked.min() < 0 or checked.max() >= self.spec.vocab:
            bad = next(int(i) for i in checked if not 0 <= i < self.spec.vocab)
            raise PromptError(f"id {bad} is outside the vocabulary of {self.spec.vocab}", param="ids")
        if cache.length + len(checked) > self.spec.context:
            raise ContextOverflow(cache.length + len(checked), self.spec.context)
        return checked

    def _executor(self, look: frozenset[str], length: int) -> Executor:
        if length > self._ropes.positions:
            positions = min(self.spec.context, max(2 * self._ropes.positions, length))
            self._ropes = RopeTables(self.spec.head_width, positions)
            self._executors.clear()  # their programs name the old tables
        if look not in self._executors:
            sheet = write(self.spec, self.weights, self._ropes, look)
            widest = max(self.spec.width, self.spec.mlp_width, self.spec.heads * self.spec.head_width)
            self._executors[look] = Executor(sheet, self.team, self.pool.shape.layer_bytes, 8 * widest)
        return self._executors[look]

    def _shape(self, name: str, pieces: list[F32]) -> F32:
        """Pieces of a point, one a chunk -> one array [T, …]."""
        kind = name.split(".")[0]
        if kind in ("attn_scores", "attn_probs"):  # [t, H, S so far] -> [T, H, S]
            width, hidden = pieces[-1].shape[2], -np.inf if kind == "attn_scores" else 0.0
            pads = [((0, 0), (0, 0), (0, width - p.shape[2])) for p in pieces]
            pieces = [np.pad(p, pad, constant_values=hidden) for p, pad in zip(pieces, pads, strict=True)]
            whole = np.concatenate(pieces)
            return np.where(whole <= -1e29, np.float32(-np.inf), whole) if hidden else whole
        whole = np.concatenate(pieces)
        heads = {"q": self.spec.heads, "k": self.spec.kv_heads, "v": self.spec.kv_heads}.get(kind)
        return whole.reshape(len(whole), heads, self.spec.head_width) if heads else whole[:, : self._width(kind)]

    def _width(self, kind: str) -> int:
        return self.spec.mlp_width if kind == "mlp_act" else self.spec.width

    def __repr__(self) -> str:
        s = self.spec
        return f"<{s.architecture} model {self.path.name}: {s.layers} layers of {s.width}, vocabulary {s.vocab}>"
