"""A forward pass as data: a list of instructions over numbered buffers, which team.py executes in one compiled call.

`transformer.py` writes a program by calling the methods of `Program` in the order of the textbook. An instruction is
a row of sixteen int64; a job's header holds what changes from call to call (tokens, positions, pages). This file has no
numba in it: it is imported on every start, the compiled code only when it must be compiled.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from glassbox.types import I64

# --- operations -------------------------------------------------------------------------------------------------
(
    EMBED, NORM, MATMUL, ROPE, STORE_KV, ATTEND, GATE, ADD, SCALE, COPY, GATHER, PACK, WEIGH, LAYER_NORM, ACTIVATE,
    BIAS, CAP, POSITION, ROUTE, EXPERTS, MIX, EDIT,
) = range(22)  # fmt: skip

# --- fields of an instruction -----------------------------------------------------------------------------------
OP, FREE, OUT, DST, SRC, SRC2, N, M, K, WEIGHT, EXTRA, REAL, SCORES, PROBS, GROUP, MORE = range(16)
FIELDS = 16
"""OP: one of the above. FREE: 1 if it need not wait for the instruction before it. OUT: 1 if its rows are the output
rows, 0 if all tokens. DST, SRC, SRC2: buffers. N: row width, M: heads or tiles, K: layer, layout or kind. WEIGHT,
EXTRA: addresses or numbers. REAL: a float32 in the low bytes. SCORES, PROBS: buffers to look through, or -1.
GROUP: of layers, whose pages are used; slots of experts. MORE: a second float32, or a number."""

# --- fields of a job's header -----------------------------------------------------------------------------------
(
    PROGRAM, LENGTH, BUFFERS, STRIDES, TOKENS, ROWS, IDS, POSITIONS, TABLES, OUT_ROWS, CLAIMS, DONE, SCRATCH,
    SCRATCH_STRIDE, LAYER_BYTES, SEE_WIDTH, KV_KIND, THREADS, SLOTS,
) = range(19)  # fmt: skip
HEADER = 19

# --- what the team calls by name: how many int64 each takes (products.py, packing.py, and the last three team.py) --
APART = {
    "glassbox_product_one": 7, "glassbox_decode_rows": 5, "glassbox_pack_tiles": 7,
    "glassbox_do_attend": 10, "glassbox_do_rows": 11, "glassbox_run": 2,
}  # fmt: skip

# --- how work is cut (no effect on any value) -------------------------------------------------------------------
UNIT_WEIGHTS = 32768  # weights · tokens in a unit of a product: some microseconds
TOKEN_BLOCK = 4  # tokens in a unit of what is done row by row
QUERY_BLOCK = 8  # queries in a unit of attention
SPINS = 2000  # looks at the counter before a waiting thread gives way

PATIENCE = SPINS + 5000  # looks before a helper without a job goes to sleep: a few milliseconds

# --- what stands in a helper's slot, if not the address of a job; its second number is 1 when the team is gone ----
IDLE, ASLEEP, AWAKE = 0, -1, -2  # it waits in compiled code, in Python, or has been woken there

WEIGHED = 16384  # logits that are summed as one block (part of the contract: rows.weigh)

SILU, GELU, GELU_ERF, RELU = range(4)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed weight: `address` of its tiles, `layout` number, `rows` (as the model has them) and `columns`."""

    address: int
    layout: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Packed weights of one shape and layout, `stride` bytes apart."""

    first: Matrix
    stride: int


@dataclass(slots=True)
class Program:
    """Instructions and the widths (in float32) of the buffers they use. Each method appends one instruction."""

    code: list[list[int]] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)  # buffers with one row per output row instead of per token

    def buffer(self, width: int, *, out: bool = False) -> int:
        """A new buffer of rows of `width` float32, padded so that eight lanes always fit and rows do not lie a multiple
        of 4096 bytes apart, where they would fight for the same lines of the nearest cache."""
        self.widths.append(-(-width // 8) * 8 + (16 if width and width % 1024 == 0 else 0))
        self.outputs.append(out)
        return len(self.widths) - 1

    def array(self) -> I64:
        """int64 [instructions, FIELDS]."""
        return np.array(self.code, np.int64).reshape(-1, FIELDS)

    def _add(self, op: int, **fields: int) -> None:
        row = [0] * FIELDS
        row[OP], row[SCORES], row[PROBS] = op, -1, -1
        for name, value in fields.items():
            row[_FIELD[name]] = value
        self.code.append(row)

    def embed(self, dst: int, table: Matrix, scale: float = 1.0) -> None:
        self._add(EMBED, dst=dst, weight=table.address, k=table.layout, n=table.columns, real=real_bits(scale))

    def norm(
        self, dst: int, src: int, weight: int, width: int, eps: float, *, heads: int = 1, own: bool = False,
        free: bool = False, out: bool = False,
    ) -> None:  # fmt: skip
        """RMS norm of each of `heads` parts of `width` in a row; `weight` is the address of its float32. own: each
        part has weights of its own, one after another."""
        self._add(
            NORM, dst=dst, src=src, weight=weight, n=width, m=heads, k=4 * width * own, real=real_bits(eps),
            free=int(free), out=int(out),
        )  # fmt: skip

    def layer_norm(
        self, dst: int, src: int, weight: int, bias: int, width: int, eps: float, *, heads: int = 1,
        own: bool = False, free: bool = False, out: bool = False,
    ) -> None:  # fmt: skip
        """The same with the mean taken off first; `bias` is the address of what is added last, or 0."""
        self._add(
            LAYER_NORM, dst=dst, src=src, weight=weight, extra=bias, n=width, m=heads, k=4 * width * own,
            real=real_bits(eps), free=int(free), out=int(out),
        )  # fmt: skip

    def matmul(self, dst: int, src: int, w: Matrix, *, free: bool = False, out: bool = False) -> None:
        tiles = -(-w.rows // 8)
        self._add(
            MATMUL, dst=dst, src=src, weight=w.address, k=w.layout, n=w.columns, m=tiles, free=int(free), out=int(out)
        )

    def rope(
        self, buffer: int, heads: int, width: int, cos: int, sin: int, *, rotated: int, paired: bool = False,
        free: bool = False,
    ) -> None:  # fmt: skip
        """Rotate the first `rotated` numbers of each of `heads` heads of `width` in place, in pairs of neighbours or
        half of `rotated` apart; cos, sin: addresses of float32 [positions, rotated / 2]."""
        self._add(
            ROPE, dst=buffer, m=heads, n=width, k=rotated // 2, group=int(paired), weight=cos, extra=sin, free=int(free)
        )

    def store_kv(self, k: int, v: int, heads: int, width: int, place: tuple[int, int]) -> None:
        """Keep keys and values. place: group of layers, and which layer of the group."""
        self._add(STORE_KV, src=k, src2=v, m=heads, n=width, group=place[0], k=place[1])

    def attend(
        self, dst: int, q: int, heads: int, kv_heads: int, width: int, place: tuple[int, int], scale: float,
        window: int = 0, scores: int = -1, probs: int = -1, cap: float = 0.0, slopes: int = 0,
    ) -> None:  # fmt: skip
        """cap: scores become cap · tanh(score / cap), if not 0. slopes: address of a float32 a head, by which scores
        fall with each position of distance, or 0."""
        self._add(
            ATTEND, dst=dst, src=q, m=kv_heads, n=width, group=place[0], k=place[1], weight=heads // kv_heads,
            extra=window, real=real_bits(scale), scores=scores, probs=probs, more=real_bits(cap), src2=slopes,
        )  # fmt: skip

    def gate(self, dst: int, gate: int, up: int, width: int, kind: int) -> None:
        """dst = activation(gate) · up."""
        self._add(GATE, dst=dst, src=gate, src2=up, n=width, k=kind)

    def activate(self, dst: int, src: int, width: int, kind: int) -> None:
        self._add(ACTIVATE, dst=dst, src=src, n=width, k=kind)

    def bias(self, buffer: int, address: int, width: int, *, free: bool = False, out: bool = False) -> None:
        """Add the float32 at an address to every row."""
        self._add(BIAS, dst=buffer, src=buffer, weight=address, n=width, free=int(free), out=int(out))

    def cap(self, dst: int, src: int, width: int, by: float, *, out: bool = False) -> None:
        """dst = by · tanh(src / by)."""
        self._add(CAP, dst=dst, src=src, n=width, real=real_bits(by), out=int(out))

    def position(self, dst: int, src: int, table: Matrix, offset: int) -> None:
        """Add row (position + offset) of a table."""
        self._add(POSITION, dst=dst, src=src, weight=table.address, k=table.layout, n=table.columns, extra=offset)

    def add(self, dst: int, a: int, b: int, width: int) -> None:
        self._add(ADD, dst=dst, src=a, src2=b, n=width)

    def scale(self, dst: int, src: int, width: int, by: float, *, out: bool = False) -> None:
        self._add(SCALE, dst=dst, src=src, n=width, real=real_bits(by), out=int(out))

    def route(self, chosen: int, scores: int, experts: int, used: int, *, normed: bool) -> None:
        """Softmax over the scores of `experts`, then the `used` likeliest: chosen = their weights, then their numbers.
        normed: their weights are made to sum to 1."""
        self._add(ROUTE, dst=chosen, src=scores, n=experts, m=used, k=int(normed))

    def experts(
        self, dst: int, src: int, w: Experts, chosen: int, used: int, *, apart: bool, free: bool = False
    ) -> None:
        """Each chosen expert's product: dst holds one after another. apart: so does src; or it is the same for all."""
        one = w.first
        self._add(
            EXPERTS, dst=dst, src=src, src2=chosen, weight=one.address, extra=w.stride, k=one.layout, n=one.columns,
            m=one.rows // 8, group=used, more=4 * one.columns * apart, free=int(free),
        )  # fmt: skip

    def mix(self, dst: int, src: int, chosen: int, used: int, width: int) -> None:
        """dst = the sum of what the chosen experts gave, each times its weight."""
        self._add(MIX, dst=dst, src=src, src2=chosen, n=width, m=used)

    def copy(self, dst: int, src: int, width: int, *, out: bool = False) -> None:
        self._add(COPY, dst=dst, src=src, n=width, out=int(out))

    def edit(
        self, buffer: int, begin: int, width: int, first: int, end: int, factor: float, values: int, step: int
    ) -> None:
        """Scale `width` numbers from column `begin` on, of the rows at positions first … end - 1; or put those at the
        address `values` there, if it is not 0, `step` bytes further for each position."""
        self._add(
            EDIT, dst=buffer, src=buffer, k=begin, n=width, extra=first, more=end, real=real_bits(factor),
            weight=values, group=step,
        )  # fmt: skip

    def pack(self, w: Matrix, raw: int, row_bytes: int) -> None:
        """Write the matrix's tiles from the file's rows at address `raw` (a multiple of eight of them)."""
        self._add(PACK, weight=w.address, extra=raw, src2=row_bytes, k=w.layout, n=w.columns, m=w.rows // 8, free=1)

    def weigh(self, blocks: int, count: int) -> None:
        """Do `count` blocks of rows.weigh_block; `blocks` is the address of their arguments, int64 [count, 4]."""
        self._add(WEIGH, weight=blocks, m=count, free=1)

    def gather(self, dst: int, src: int, width: int) -> None:
        """The output rows of `src`, one after another."""
        self._add(GATHER, dst=dst, src=src, n=width, out=1)


_FIELD = {
    "free": FREE, "out": OUT, "dst": DST, "src": SRC, "src2": SRC2, "n": N, "m": M, "k": K, "weight": WEIGHT,
    "extra": EXTRA, "real": REAL, "scores": SCORES, "probs": PROBS, "group": GROUP, "more": MORE,
}  # fmt: skip


def real_bits(x: float) -> int:
    """A float32 as the int64 whose low four bytes it is."""
    return int(struct.unpack("<q", struct.pack("<fi", x, 0))[0])
