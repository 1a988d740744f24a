"""The weights of a model, packed for the kernels. Comes in: an open GGUF and its spec. Goes out: `Weights`.

Everything lies in one arena of anonymous memory, asked for in huge pages where the system has them: a matrix streams
past once a token, and walking small pages costs a tenth of that. The file is read in pieces through one buffer, and
nothing refers to it afterwards.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassbox.cache.pages import available_memory
from glassbox.errors import ModelFormatError, OutOfMemory
from glassbox.model.kernels.pack import LAYOUTS, TILE, pack, packed_size
from glassbox.model.kernels.program import Matrix, Program
from glassbox.model.spec import ModelSpec
from glassbox.model.threads import Team, run_program
from glassbox.types import F32, U8
from glassbox.weights.gguf import Gguf
from glassbox.weights.header import TensorInfo
from glassbox.weights.quant import decode

ALIGN = 64  # a cache line
AT_ONCE = 8 << 20  # bytes of the file that are in memory beside what was packed; more only if a few rows are


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. Matrices are packed; norms are addresses of float32."""

    attn_norm: int
    q: Matrix  # [H·W, D]
    k: Matrix  # [K·W, D]
    v: Matrix  # [K·W, D]
    o: Matrix  # [D, H·W]
    q_norm: int | None  # [W]
    k_norm: int | None
    attn_post_norm: int | None
    mlp_norm: int
    gate: Matrix  # [F, D]
    up: Matrix  # [F, D]
    down: Matrix  # [D, F]
    mlp_post_norm: int | None


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Matrix  # [V, D]
    layers: tuple[Layer, ...]
    final_norm: int
    head: Matrix  # [V, D]; the embedding itself where it is tied
    nbytes: int
    arena: Arena  # keeps the addresses alive


class Arena:
    """A block of memory from which aligned pieces are taken."""

    def __init__(self, nbytes: int) -> None:
        """Raises OutOfMemory."""
        try:
            if hasattr(mmap, "MADV_HUGEPAGE"):
                self._map = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                self._map.madvise(mmap.MADV_HUGEPAGE)
            else:
                self._map = mmap.mmap(-1, max(nbytes, 1))
        except (OSError, OverflowError):
            raise OutOfMemory("holding the weights", nbytes, memory_left()) from None
        self._bytes: U8 = np.frombuffer(self._map, np.uint8)
        self._used = 0

    def take(self, nbytes: int) -> U8:
        begin = self._used
        self._used = begin + -(-nbytes // ALIGN) * ALIGN
        return self._bytes[begin : begin + nbytes]


def load_weights(file: Gguf, spec: ModelSpec, team: Team) -> Weights:
    """Pack every tensor. Raises ModelFormatError naming a tensor that is missing, misshapen or unknown."""
    table = file.tensors.get("token_embd.weight")
    if table is not None and len(table.shape) != 2:
        why = f"has shape {list(table.shape)}, but a row of {spec.width} numbers for each token is needed"
        raise ModelFormatError(why, field=table.name)
    reader = _Reader(file, spec, team)
    embedding = reader.matrix("token_embd", spec.vocab, spec.width)
    layers = tuple(_layer(reader, spec, i) for i in range(spec.layers))
    final_norm = reader.vector("output_norm", spec.width)
    head = reader.matrix("output", spec.vocab, spec.width) if reader.has("output") else embedding
    reader.pack_queued()
    left = sorted(set(file.tensors) - reader.seen)
    if left:
        raise ModelFormatError(
            f"is not part of the {spec.architecture} architecture as Glassbox knows it", field=left[0]
        )
    return Weights(embedding, layers, final_norm, head, reader.nbytes, reader.arena)


def _layer(read: _Reader, spec: ModelSpec, i: int) -> Layer:
    b, d, w = f"blk.{i}.", spec.width, spec.head_width
    return Layer(
        attn_norm=read.vector(b + "attn_norm", d),
        q=read.matrix(b + "attn_q", spec.heads * w, d, heads=spec.heads),
        k=read.matrix(b + "attn_k", spec.kv_heads * w, d, heads=spec.kv_heads),
        v=read.matrix(b + "attn_v", spec.kv_heads * w, d),
        o=read.matrix(b + "attn_output", d, spec.heads * w),
        q_norm=read.vector(b + "attn_q_norm", w) if spec.qk_norm else None,
        k_norm=read.vector(b + "attn_k_norm", w) if spec.qk_norm else None,
        attn_post_norm=read.vector(b + "post_attention_norm", d) if spec.post_norms else None,
        mlp_norm=read.vector(b + "ffn_norm", d),
        gate=read.matrix(b + "ffn_gate", spec.mlp_width, d),
        up=read.matrix(b + "ffn_up", spec.mlp_width, d),
        down=read.matrix(b + "ffn_down", d, spec.mlp_width),
        mlp_post_norm=read.vector(b + "post_ffw_norm", d) if spec.post_norms else None,
    )


class _Reader:
    """Takes tensors out of the file by name, checks their shape, and packs them into the arena."""

    def __init__(self, file: Gguf, spec: ModelSpec, team: Team) -> None:
        self.file, self.spec, self.team = file, spec, team
        self.seen: set[str] = set()
        self.nbytes = 0
        # Packed is no larger than in the file, but for padding to lines and to eight rows.
        self.arena = Arena(sum(_room(t) for t in file.tensors.values()))
        self._buffer = _buffer(AT_ONCE)
        self._filled = 0
        self._queue: list[
            tuple[Matrix, U8]
        ] = []  # pieces of matrices that wait to be packed, their bytes in the buffer

    def has(self, name: str) -> bool:
        return name + ".weight" in self.file.tensors

    def _tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        t = self.file.tensors.get(name + ".weight")
        if t is None:
            raise ModelFormatError("is missing", field=name + ".weight")
        if t.shape != shape:
            raise ModelFormatError(f"has shape {list(t.shape)}, but {list(shape)} is needed", field=t.name)
        self.seen.add(t.name)
        return t

    def vector(self, name: str, n: int) -> int:
        """A float32 vector; returns its address."""
        t = self._tensor(name, (n,))
        values: F32 = decode(t.format, self.file.raw(t.name), t.shape)
        return self._keep(values.view(np.uint8))

    def matrix(self, name: str, rows: int, columns: int, *, heads: int = 0) -> Matrix:
        """A packed matrix. `heads`: its rows are heads, in the order that spec.paired_rope tells."""
        t = self._tensor(name, (rows, columns))
        layout = LAYOUTS[t.format.layout]
        if columns % layout.columns:
            raise ModelFormatError(f"has {columns} columns, but a multiple of {layout.columns} is needed", field=t.name)
        into = self.arena.take(packed_size(layout, rows, columns))
        self.nbytes += into.nbytes
        paired = heads > 0 and self.spec.paired_rope
        row_bytes, step = t.nbytes // rows, rows // heads if paired else TILE
        at_once = max(AT_ONCE // row_bytes // step, 1) * step
        whole = rows // TILE * TILE
        for begin in range(0, whole, at_once):
            end = min(begin + at_once, whole)
            raw = self._read(t, begin * row_bytes, end * row_bytes)
            if paired:
                raw[:] = unpair(raw, end - begin, (end - begin) // step)
            to = into[packed_size(layout, begin, columns) :].ctypes.data
            self._queue.append((Matrix(to, layout.number, end - begin, columns), raw))
        if rows > whole:
            raw = self._read(t, whole * row_bytes, rows * row_bytes)
            pack(layout, raw, rows - whole, columns, into[packed_size(layout, whole, columns) :])
        return Matrix(into.ctypes.data, layout.number, rows, columns)

    def _read(self, t: TensorInfo, begin: int, end: int) -> U8:
        """Bytes of a tensor, in the buffer; those that wait there are packed first if there is no room."""
        n = end - begin
        if self._filled + n > len(self._buffer):
            self.pack_queued()
            if n > len(self._buffer):
                self._buffer = _buffer(n)
        raw = self._buffer[self._filled : self._filled + n]
        self.file.read(t.name, begin, raw)
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

    def _keep(self, values: U8) -> int:
        into = self.arena.take(values.nbytes)
        into[:] = values
        self.nbytes += values.nbytes
        return int(into.ctypes.data)


def memory_left() -> int:
    """Bytes that may still be asked for: what is free, or less where a limit is set (ulimit -v)."""
    free = available_memory()
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except (ImportError, OSError):
        return free
    return free if limit == resource.RLIM_INFINITY else min(free, max(0, limit - taken))


def _buffer(nbytes: int) -> U8:
    try:
        return np.empty(nbytes, np.uint8)
    except MemoryError:
        raise OutOfMemory("reading the model's file", nbytes, memory_left()) from None


def _room(t: TensorInfo) -> int:
    """At most how many bytes a tensor takes when packed: vectors become float32, matrices get whole tiles of rows."""
    if len(t.shape) < 2:
        return 4 * max(1, *t.shape, 1) + ALIGN
    rows = max(1, t.shape[0])
    return -(-rows // 8) * 8 * (t.nbytes // rows) + ALIGN


def unpair(raw: U8, rows: int, heads: int) -> U8:
    """Rows of each head from adjacent pairs (0, 1), (2, 3) … to halves: 0, 2, 4 … then 1, 3, 5 …

    llama files are converted for a rotary embedding over neighbours; the original model, the names of its inner values
    and our kernel have it over halves.
    """
    pairs = raw.reshape(heads, rows // heads // 2, 2, -1)  # [heads, W/2, 2, bytes of a row]
    return pairs.swapaxes(1, 2).reshape(-1)
