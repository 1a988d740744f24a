"""Repacks a weight matrix from the file's blocks into the run of tiles that matmul.py streams; lossless, no larger.

A tile is eight rows. Inside it, block after block of columns, first the scales of the eight rows, then the codes with
one 32-bit word a row: eight nibbles of eight consecutive columns, or four bytes of four. Rows are padded to a multiple
of eight with zero bytes, which decode to zero or are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glassbox.types import U8
from glassbox.weights.quant import codes_q6_k

Blocks = npt.NDArray[np.uint8]  # [tiles, 8 rows, blocks, bytes of a block]
Packer = Callable[[Blocks], list[Blocks]]  # -> parts of a tile block, each [tiles, blocks, n]
TILE = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """One row: its number in the compiled code, columns of a block, bytes of a tile's block, how to pack."""

    number: int
    columns: int
    block_bytes: int
    parts: Packer


def _rows_inside(part: Blocks, item: int = 1) -> Blocks:
    """[tiles, 8, blocks, n·item] -> [tiles, blocks, n·8·item]: for each item, the eight rows side by side."""
    tiles, rows, blocks, n = part.shape
    items = part.reshape(tiles, rows, blocks, n // item, item)
    return np.ascontiguousarray(items.transpose(0, 2, 3, 1, 4)).reshape(tiles, blocks, rows * n)


def _pair(codes: npt.NDArray[Any]) -> Blocks:
    """Codes 0..15 of consecutive columns -> nibble pairs, the even column low."""
    out: Blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8, copy=False)
    return out


def _split(b: Blocks) -> Blocks:
    """ggml's order of nibbles in 16 bytes (low: columns 0–15, high: 16–31) -> pairs of neighbours."""
    out: Blocks = np.concatenate([_pair(b & 15), _pair(b >> 4)], -1)
    return out


def _q4_1(b: Blocks) -> list[Blocks]:
    return [_rows_inside(b[..., 0:2], 2), _rows_inside(b[..., 2:4], 2), _rows_inside(_split(b[..., 4:]), 4)]


def _q5_0(b: Blocks) -> list[Blocks]:
    bits = np.unpackbits(b[..., 2:6], axis=-1, bitorder="little")  # column 8s+k
    fifth = bits.reshape(*bits.shape[:-1], 4, 8).swapaxes(-1, -2).reshape(bits.shape)  # -> bit 4k+s
    packed = np.packbits(fifth, axis=-1, bitorder="little")
    return [_rows_inside(b[..., 0:2], 2), _rows_inside(packed, 4), _rows_inside(_split(b[..., 6:]), 4)]


def _q8_0(b: Blocks) -> list[Blocks]:
    return [_rows_inside(b[..., 0:2], 2), _rows_inside(b[..., 2:] ^ np.uint8(0x80), 4)]


def _q4_k(b: Blocks) -> list[Blocks]:
    pairs = b[..., 16:].reshape(*b.shape[:-1], 4, 32)
    codes = np.concatenate([_pair(pairs & 15), _pair(pairs >> 4)], -1).reshape(*b.shape[:-1], 128)
    scales = [_rows_inside(b[..., i : i + n], n) for i, n in ((0, 2), (2, 2), (4, 4), (8, 4), (12, 4))]
    return [*scales, _rows_inside(codes, 4)]


def _q6_k(b: Blocks) -> list[Blocks]:
    codes = codes_q6_k(b.reshape(-1, 210)).reshape(*b.shape[:-1], 256)
    two = (codes >> 4).reshape(*b.shape[:-1], 16, 2, 4, 2)  # [pair of sub-blocks, which of the two, byte, even/odd]
    high = np.zeros((*two.shape[:-3], 4), np.uint8)
    for which in range(2):
        for odd in range(2):
            # bits 4·which + 2·odd: the kernel shifts by 4·which, then lifts even codes by 4 and odd ones by 2
            high |= two[..., which, :, odd] << (4 * which + 2 * odd)
    return [
        _rows_inside(b[..., 208:210], 2),
        _rows_inside(b[..., 192:208]),
        _rows_inside(_pair(codes & 15), 4),
        _rows_inside(high.reshape(*b.shape[:-1], 64), 4),
    ]


def _plain(item: int) -> Packer:
    return lambda b: [_rows_inside(b, item)]


LAYOUTS: Mapping[str, Layout] = {
    "f32": Layout(0, 8, 256, _plain(4)),
    "f16": Layout(1, 8, 128, _plain(2)),
    "q4_1": Layout(2, 32, 160, _q4_1),
    "q5_0": Layout(3, 32, 176, _q5_0),
    "q8_0": Layout(4, 32, 272, _q8_0),
    "q4_k": Layout(5, 256, 1152, _q4_k),
    "q6_k": Layout(6, 256, 1680, _q6_k),
}


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
        _write(out[at:end], layout.parts(piece.reshape(end - at, TILE, blocks, -1)))


def _write(out: Blocks, parts: list[Blocks]) -> None:
    begin = 0
    for part in parts:
        out[..., begin : begin + part.shape[-1]] = part
        begin += part.shape[-1]
