"""Repacking at load, compiled: what pack.py describes and the tests hold this to, some ten times faster.

A tile is eight rows; `raw` is the address of its first row, `row_bytes` apart. Blocks are written one after another.
"""

from __future__ import annotations

from glassbox.model.kernels.formats import inlined, kernel
from glassbox.model.kernels.simd import copy2, copy4, load_i64, load_u32, store_u8, store_u32

NIBBLES = 0x0F0F0F0F0F0F0F0F
PAIRS = 0x00FF00FF00FF00FF
LOW = 0xFFFFFFFF


@inlined
def pair_up(codes):
    """Eight codes 0..15, one a byte -> four bytes of two neighbours each, the even column low."""
    x = (codes | codes >> 4) & PAIRS
    x = (x | x >> 8) & 0x0000FFFF0000FFFF
    return (x | x >> 16) & LOW


@inlined
def spread(bits):
    """Bit k of a byte -> bit 4k."""
    x = (bits | bits << 12) & 0x000F000F
    x = (x | x << 6) & 0x03030303
    return (x | x << 3) & 0x11111111


@inlined
def split_nibbles(q, to, r):
    """Sixteen bytes in ggml's order (low: columns 0–15, high: 16–31) -> four words of eight columns, 32 bytes apart."""
    a, b = load_i64(q), load_i64(q + 8)
    store_u32(to + 4 * r, pair_up(a & NIBBLES))
    store_u32(to + 32 + 4 * r, pair_up(b & NIBBLES))
    store_u32(to + 64 + 4 * r, pair_up(a >> 4 & NIBBLES))
    store_u32(to + 96 + 4 * r, pair_up(b >> 4 & NIBBLES))


@kernel
def pack_plain(raw, row_bytes, to, blocks, item):
    """float16 or float32: for each column the eight rows side by side."""
    for c in range(8 * blocks):
        for r in range(8):
            p = raw + r * row_bytes + item * c
            if item == 4:
                copy4(p, to + 4 * (8 * c + r))
            else:
                copy2(p, to + 2 * (8 * c + r))


@kernel
def pack_q4_1(raw, row_bytes, to, blocks):
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + 20 * b
            copy2(p, to + 2 * r)
            copy2(p + 2, to + 16 + 2 * r)
            split_nibbles(p + 4, to + 32, r)
        to += 160


@kernel
def pack_q5_0(raw, row_bytes, to, blocks):
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + 22 * b
            copy2(p, to + 2 * r)
            high, fifth = load_u32(p + 2), 0
            for s in range(4):
                fifth |= spread(high >> 8 * s & 0xFF) << s
            store_u32(to + 16 + 4 * r, fifth)
            split_nibbles(p + 6, to + 48, r)
        to += 176


@kernel
def pack_q8_0(raw, row_bytes, to, blocks):
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + 34 * b
            copy2(p, to + 2 * r)
            for i in range(8):
                store_u32(to + 16 + 32 * i + 4 * r, load_u32(p + 2 + 4 * i) ^ 0x80808080)
        to += 272


@kernel
def pack_q4_k(raw, row_bytes, to, blocks):
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + 144 * b
            copy2(p, to + 2 * r)
            copy2(p + 2, to + 16 + 2 * r)
            for i in range(3):
                copy4(p + 4 + 4 * i, to + 32 + 32 * i + 4 * r)
            for pair in range(4):  # 32 bytes: the low nibbles of one group, the high ones of the next
                q, w = p + 16 + 32 * pair, to + 128 + 256 * pair + 4 * r
                for i in range(4):
                    x = load_i64(q + 8 * i)
                    store_u32(w + 32 * i, pair_up(x & NIBBLES))
                    store_u32(w + 128 + 32 * i, pair_up(x >> 4 & NIBBLES))
        to += 1152


@kernel
def pack_q6_k(raw, row_bytes, to, blocks):
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + 210 * b
            copy2(p + 208, to + 2 * r)
            for i in range(16):
                store_u8(to + 16 + 8 * i + r, load_u32(p + 192 + i) & 0xFF)
            for s in range(32):  # sub-blocks of eight columns
                half, quarter, at = s // 16, s % 16 // 4, s % 4 * 8
                low = load_i64(p + 64 * half + 32 * (quarter % 2) + at) >> 4 * (quarter // 2) & NIBBLES
                high = load_i64(p + 128 + 32 * half + at) >> 2 * quarter & 0x0303030303030303
                store_u32(to + 144 + 32 * s + 4 * r, pair_up(low))
                two = (high | high >> 6) & PAIRS  # each 16 bits: even column in bits 0–1, odd one in 2–3
                two = (two | two >> 8) & 0x0000FFFF0000FFFF
                two = (two | two >> 16) & 0x0F0F0F0F
                word = to + 1168 + 32 * (s // 2) + 4 * r
                store_u32(word, two if s % 2 == 0 else load_u32(word) | two << 4)
        to += 1680


@kernel
def pack_tiles(layout, raw, row_bytes, to, columns, tile, end):
    """Tiles `tile` … `end` of a matrix, as the layout's number says (in the order of pack.LAYOUTS)."""
    for t in range(tile, end):
        p = raw + 8 * t * row_bytes
        if layout == 0:
            pack_plain(p, row_bytes, to + t * columns * 32, columns // 8, 4)
        elif layout == 1:
            pack_plain(p, row_bytes, to + t * columns * 16, columns // 8, 2)
        elif layout == 2:
            pack_q4_1(p, row_bytes, to + t * (columns // 32) * 160, columns // 32)
        elif layout == 3:
            pack_q5_0(p, row_bytes, to + t * (columns // 32) * 176, columns // 32)
        elif layout == 4:
            pack_q8_0(p, row_bytes, to + t * (columns // 32) * 272, columns // 32)
        elif layout == 5:
            pack_q4_k(p, row_bytes, to + t * (columns // 256) * 1152, columns // 256)
        elif layout == 6:
            pack_q6_k(p, row_bytes, to + t * (columns // 256) * 1680, columns // 256)
