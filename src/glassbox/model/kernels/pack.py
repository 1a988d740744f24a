"""Repacks a weight matrix from the file's blocks into the run of tiles that matmul.py streams; lossless, no larger.

A tile is eight rows. Inside it, block after block of columns, first the scales of the eight rows, then the codes with
one 32-bit word a row: eight nibbles of eight consecutive columns, or four bytes of four. Rows are padded to a multiple
of eight with zero bytes, which decode to zero or are never read.

This is the plain definition, and packs the few rows of a matrix that fill no tile; packing.py does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glassbox.types import U8
from glassbox.weights.quant import bits_k, bits_of, codes_of, codes_q6_k, over

Blocks = npt.NDArray[np.uint8]  # [tiles, 8 rows, blocks, bytes of a block]
TILE = 8


@dataclass(frozen=True, slots=True)
class Field:
    """Bytes `begin` … `end` of a file's block become one field of a tile's block: for each item of `item` bytes the
    eight rows side by side. `change` is done to the bytes before, [n, bytes] -> [n, bytes]."""

    begin: int
    end: int
    item: int
    change: Callable[[U8], U8] | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """One row: its number in the compiled code, columns of a block, bytes of a tile's block, what is in it in order."""

    number: int
    columns: int
    block_bytes: int
    fields: tuple[Field, ...]


def _nibbles(codes: U8) -> U8:
    """Codes 0..15 of consecutive columns -> nibble pairs, the even column low: [n, c] -> [n, c/2]."""
    return over(codes[:, 1::2], codes[:, 0::2], 4)


def _planes(bits: U8) -> U8:
    """Bits of consecutive columns -> a word for each 32, bit 4k+s for column 8s+k: [n, c] -> [n, c/8]."""
    turned = bits.reshape(-1, 4, 8).swapaxes(1, 2)
    return np.packbits(turned, bitorder="little").reshape(len(bits), -1)


def _fours(run: int) -> Callable[[U8], U8]:
    """Nibbles as ggml stores them (see codes_of) -> pairs of neighbours."""
    return lambda b: _nibbles(codes_of(b, 4, run))


def _fifths(b: U8) -> U8:
    return _planes(bits_of(b))


def _high(b: U8) -> U8:
    return _planes(bits_k(b))


def _twos(b: U8) -> U8:
    """Codes of two bits -> a word for each 16 columns, its nibble k holds column k and above it column 8 + k."""
    codes = codes_of(b, 2, 32).reshape(-1, 2, 8)
    return _nibbles(over(codes[:, 1], codes[:, 0], 2)).reshape(len(b), -1)


def _unsigned(b: U8) -> U8:
    """int8 -> itself plus 128."""
    return b ^ np.uint8(0x80)


def _q6_low(b: U8) -> U8:
    return _nibbles(codes_q6_k(b) & np.uint8(15))


def _q6_high(b: U8) -> U8:
    two = (codes_q6_k(b) >> 4).reshape(-1, 2, 4, 2)  # [pair of sub-blocks, which of the two, byte, even/odd]
    high = np.zeros((len(two), 4), np.uint8)
    for which in range(2):
        for odd in range(2):
            # bits 4·which + 2·odd: the kernel shifts by 4·which, then lifts even codes by 4 and odd ones by 2
            high |= two[:, which, :, odd] << (4 * which + 2 * odd)
    return high.reshape(len(b), -1)


def _layout(number: int, columns: int, block_bytes: int, *fields: Field) -> Layout:
    return Layout(number, columns, block_bytes, fields)


LAYOUTS: Mapping[str, Layout] = {
    "f32": _layout(0, 8, 256, Field(0, 32, 4)),
    "f16": _layout(1, 8, 128, Field(0, 16, 2)),
    "q4_1": _layout(2, 32, 160, Field(0, 4, 2), Field(4, 20, 4, _fours(16))),
    "q5_0": _layout(3, 32, 176, Field(0, 2, 2), Field(2, 6, 4, _fifths), Field(6, 22, 4, _fours(16))),
    "q8_0": _layout(4, 32, 272, Field(0, 2, 2), Field(2, 34, 4, _unsigned)),
    "q4_k": _layout(5, 256, 1152, Field(0, 4, 2), Field(4, 16, 4), Field(16, 144, 4, _fours(32))),
    "q6_k": _layout(
        6, 256, 1680,
        Field(208, 210, 2), Field(192, 208, 1), Field(0, 192, 4, _q6_low), Field(0, 192, 4, _q6_high),
    ),
    "bf16": _layout(7, 8, 128, Field(0, 16, 2)),
    "q4_0": _layout(8, 32, 144, Field(0, 2, 2), Field(2, 18, 4, _fours(16))),
    "q5_1": _layout(9, 32, 192, Field(0, 4, 2), Field(4, 8, 4, _fifths), Field(8, 24, 4, _fours(16))),
    "q2_k": _layout(10, 256, 672, Field(80, 84, 2), Field(0, 16, 1), Field(16, 80, 4, _twos)),
    "q3_k": _layout(
        11, 256, 880, Field(108, 110, 2), Field(96, 108, 4), Field(0, 32, 4, _high), Field(32, 96, 4, _twos)
    ),
    "q5_k": _layout(
        12, 256, 1408, Field(0, 4, 2), Field(4, 16, 4), Field(16, 48, 4, _high), Field(48, 176, 4, _fours(32))
    ),
    "iq4_nl": _layout(13, 32, 144, Field(0, 2, 2), Field(2, 18, 4, _fours(16))),
    "iq4_xs": _layout(14, 256, 1088, Field(0, 4, 2), Field(4, 8, 4), Field(8, 136, 4, _fours(16))),
    "mxfp4": _layout(15, 32, 136, Field(0, 1, 1), Field(1, 17, 4, _fours(16))),
}  # fmt: skip


def packed_size(layout: Layout, rows: int, columns: int) -> int:
    """Bytes that pack() will write."""
    return -(-rows // TILE) * (columns // layout.columns) * layout.block_bytes


def pack(layout: Layout, raw: U8, rows: int, columns: int, into: U8) -> None:
    """Write `raw` (the file's bytes of a [rows, columns] matrix) as tiles into `into` (packed_size bytes)."""
    blocks, tiles = columns // layout.columns, -(-rows // TILE)
    per_row = raw.size // rows
    out = into.reshape(tiles, blocks, layout.block_bytes)
    whole = rows // TILE
    step = max(1, (8 << 20) // (TILE * per_row))  # a few MB at a time stay in cache
    for at in range(0, tiles, step):
        end = min(at + step, tiles)
        piece = raw[at * TILE * per_row : end * TILE * per_row]
        if end > whole:
            piece = np.concatenate([piece, np.zeros((end - at) * TILE * per_row - piece.size, np.uint8)])
        _write(out[at:end], piece.reshape(end - at, TILE, blocks, -1), layout.fields)


def _write(out: Blocks, b: Blocks, fields: tuple[Field, ...]) -> None:
    """out: [tiles, blocks, bytes]; b: [tiles, rows, blocks, bytes]."""
    tiles, rows, blocks, _ = b.shape
    begin = 0
    for f in fields:
        part = b[..., f.begin : f.end].reshape(-1, f.end - f.begin)
        if f.change is not None:
            part = f.change(part)
        items = part.reshape(tiles, rows, blocks, -1, f.item).transpose(0, 2, 3, 1, 4)
        n = rows * part.shape[1]
        out[..., begin : begin + n] = items.reshape(tiles, blocks, n)
        begin += n
