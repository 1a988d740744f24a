"""Takes tensors out of a model's file by name, checks their shape, and packs them for the kernels.

The file is read in pieces through one buffer, and nothing refers to it afterwards. A matrix may be some rows of a
tensor, in another order, or lie transposed; which is said by names.py.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from glassbox.errors import ModelFormatError
from glassbox.model.arena import ALIGN, Arena, buffer
from glassbox.model.kernels.pack import LAYOUTS, TILE, Layout, pack, packed_size
from glassbox.model.kernels.program import Matrix, Program
from glassbox.model.threads import Team, run_program
from glassbox.types import F32, I64, U8
from glassbox.weights.header import TensorInfo
from glassbox.weights.quant import decode

AT_ONCE = 8 << 20  # bytes of the file that are in memory beside what was packed; more only if a few rows are
PARTS = 4  # matrices that one tensor may hold, experts not counted


class ModelFile(Protocol):
    """What a model is loaded from: an open GGUF, or a folder with safetensors, which has a `config` too."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    def raw(self, name: str) -> U8: ...
    def read(self, name: str, at: int, into: U8) -> None: ...


class Reader:
    def __init__(self, file: ModelFile, team: Team) -> None:
        self.file, self.team = file, team
        self.seen: set[str] = set()
        self.nbytes = 0
        # Packed is no larger than in the file, but for padding to lines and to eight rows.
        self.arena = Arena(sum(_room(t) for t in file.tensors.values()))
        self._buffer = buffer(AT_ONCE)
        self._filled = 0
        self._queue: list[tuple[Matrix, U8]] = []  # pieces of matrices that wait to be packed, their bytes in _buffer

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def tensor(self, name: str, *shapes: tuple[int, ...]) -> TensorInfo:
        t = self.file.tensors.get(name)
        if t is None:
            raise ModelFormatError("is missing", field=name)
        if t.shape not in shapes:
            raise ModelFormatError(f"has shape {list(t.shape)}, but {list(shapes[0])} is needed", field=t.name)
        self.seen.add(t.name)
        return t

    def values(self, name: str, n: int, rows: I64 | None = None, *, of: int = 0, per: int = 0) -> F32:
        """float32 [n]: a vector, or some numbers of one that has `of`; or, given `per`, rows of so many."""
        t = self.tensor(name, (of or n,), *([(n // per, per)] if per else []))
        values = self._values(t)
        return values if rows is None else values[rows]

    def _values(self, t: TensorInfo) -> F32:
        values: F32 = decode(t.format, self.file.raw(t.name), t.shape).reshape(-1)
        return values

    def keep(self, values: F32) -> int:
        """Copy a vector into the arena; returns its address."""
        into = self.arena.take(values.nbytes)
        into[:] = np.ascontiguousarray(values).view(np.uint8)
        self.nbytes += values.nbytes
        return int(into.ctypes.data)

    def matrix(self, name: str, rows: int, columns: int, take: I64 | None = None, *, of: int = 0) -> Matrix:
        """A packed matrix [rows, columns]: the tensor's rows, or those of its `of` rows that `take` numbers."""
        t = self.tensor(name, (of or rows, columns))
        return self._matrix(t, rows, columns, t.nbytes // max(t.shape[0], 1), take)

    def transposed(self, name: str, rows: int, columns: int, take: I64 | None = None, *, of: int = 0) -> Matrix:
        """The same of a tensor that lies [columns, rows]."""
        t = self.tensor(name, (columns, of or rows))
        if t.format.elements != 1:
            raise ModelFormatError(f"lies transposed, which {t.format.name} cannot", field=t.name)
        return self._transposed(t, rows, columns, take, of)

    def _transposed(self, t: TensorInfo, rows: int, columns: int, take: I64 | None, of: int) -> Matrix:
        layout, into = self._place(t, rows, columns)
        numbers = self.file.raw(t.name).reshape(columns, of or rows, t.format.bytes).transpose(1, 0, 2)
        raw = np.ascontiguousarray(numbers if take is None else numbers[take]).reshape(-1)
        pack(layout, raw, rows, columns, into)
        return Matrix(into.ctypes.data, layout.number, rows, columns)

    def slices(self, name: str, count: int, rows: int, columns: int) -> list[Matrix]:
        """Each matrix of a tensor [count, rows, columns]."""
        t = self.tensor(name, (count, rows, columns))
        row_bytes = t.nbytes // (count * rows)
        return [self._matrix(t, rows, columns, row_bytes, first=i * rows) for i in range(count)]

    def _matrix(
        self, t: TensorInfo, rows: int, columns: int, row_bytes: int, take: I64 | None = None, *, first: int = 0
    ) -> Matrix:
        """Rows of a tensor from `first` on, or those that `take` numbers: whole tiles by the team, the rest at once."""
        layout, into = self._place(t, rows, columns)
        at_once, whole = max(AT_ONCE // row_bytes // TILE, 1) * TILE, rows // TILE * TILE
        for begin in range(0, whole, at_once):
            end = min(begin + at_once, whole)
            raw = self._read(t, first + begin, first + end, row_bytes, take)
            to = into[packed_size(layout, begin, columns) :].ctypes.data
            self._queue.append((Matrix(to, layout.number, end - begin, columns), raw))
        if rows > whole:
            raw = self._read(t, first + whole, first + rows, row_bytes, take)
            pack(layout, raw, rows - whole, columns, into[packed_size(layout, whole, columns) :])
        return Matrix(into.ctypes.data, layout.number, rows, columns)

    def _place(self, t: TensorInfo, rows: int, columns: int) -> tuple[Layout, U8]:
        layout = _layout(t, columns)
        into = self.arena.take(packed_size(layout, rows, columns))
        self.nbytes += into.nbytes
        return layout, into

    def _read(self, t: TensorInfo, begin: int, end: int, row_bytes: int, take: I64 | None) -> U8:
        """Rows of a matrix, in the buffer; those that wait there are packed first if there is no room."""
        n = (end - begin) * row_bytes
        if self._filled + n > len(self._buffer):
            self.pack_queued()
            if n > len(self._buffer):
                self._buffer = buffer(n)
        raw = self._buffer[self._filled : self._filled + n]
        if take is None:
            self.file.read(t.name, begin * row_bytes, raw)
        else:
            wanted = take[begin:end]
            low, high = int(wanted.min()), int(wanted.max()) + 1
            around = buffer((high - low) * row_bytes)
            self.file.read(t.name, low * row_bytes, around)
            raw.reshape(-1, row_bytes)[:] = around.reshape(-1, row_bytes)[wanted - low]
        self._filled += n
        return raw

    def pack_queued(self) -> None:
        """Let the team pack what waits in the buffer."""
        program = Program()
        for piece, raw in self._queue:
            program.pack(piece, raw.ctypes.data, len(raw) // piece.rows)
        run_program(self.team, program)
        self._queue.clear()
        self._filled = 0


class Headers(Reader):
    """Finds every tensor and checks its shape and format, but reads no data and keeps nothing: addresses are 0."""

    def __init__(self, file: ModelFile) -> None:
        self.file, self.seen, self.nbytes, self.arena = file, set(), 0, Arena(1)

    def keep(self, values: F32) -> int:
        return 0

    def pack_queued(self) -> None:
        """There is nothing."""

    def _values(self, t: TensorInfo) -> F32:
        return np.zeros(math.prod(t.shape), np.float32)

    def _transposed(self, t: TensorInfo, rows: int, columns: int, take: I64 | None, of: int) -> Matrix:
        return Matrix(0, _layout(t, columns).number, rows, columns)

    def _matrix(
        self, t: TensorInfo, rows: int, columns: int, row_bytes: int, take: I64 | None = None, *, first: int = 0
    ) -> Matrix:
        return Matrix(0, _layout(t, columns).number, rows, columns)


def _layout(t: TensorInfo, columns: int) -> Layout:
    layout = LAYOUTS[t.format.layout]
    if columns % layout.columns:
        raise ModelFormatError(f"has {columns} columns, but a multiple of {layout.columns} is needed", field=t.name)
    return layout


def _room(t: TensorInfo) -> int:
    """At most how many bytes a tensor takes when packed: vectors become float32, matrices get whole tiles of rows."""
    if len(t.shape) < 2 or "norm" in t.name:  # norms of each head stand in rows
        return 4 * math.prod(t.shape) + PARTS * ALIGN
    if len(t.shape) == 3:
        return t.nbytes + t.shape[0] * (ALIGN + TILE * t.nbytes // max(1, t.shape[0] * t.shape[1]))
    longest = t.nbytes // max(1, t.shape[0])
    if t.format.elements == 1:  # it may lie transposed, or be few numbers that become float32
        longest = max(longest, t.nbytes // max(1, t.shape[1]))
    return t.nbytes + PARTS * (ALIGN + TILE * min(longest, 1 << 24))
