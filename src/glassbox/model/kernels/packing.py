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
def pack_short(raw, row_bytes, to, blocks, head, fifths):
    """Blocks of 32 columns: `head` bytes of scales, four of fifth bits if there are any, sixteen of nibbles."""
    size = head + 4 * fifths + 16
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + size * b
            if head == 1:
                store_u8(to + r, load_u32(p) & 0xFF)
            for i in range(head // 2):
                copy2(p + 2 * i, to + 16 * i + 2 * r)
            if fifths:
                high, word = load_u32(p + head), 0
                for s in range(4):
                    word |= spread(high >> 8 * s & 0xFF) << s
                store_u32(to + 8 * head + 4 * r, word)
            split_nibbles(p + size - 16, to + 8 * (size - 16), r)
        to += 8 * size


@kernel
def pack_q8_0(raw, row_bytes, to, blocks):
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + 34 * b
            copy2(p, to + 2 * r)
            for i in range(8):
                store_u32(to + 16 + 32 * i + 4 * r, load_u32(p + 2 + 4 * i) ^ 0x80808080)
        to += 272


@inlined
def bit_planes(q, to, r):
    """High bits, bit g of byte i for column 32g + i -> eight words 32 bytes apart, bit 4k+s for column 8s+k of 32."""
    for g in range(8):
        word = 0
        for s in range(4):
            word |= pair_up(load_i64(q + 8 * s) >> g & 0x0101010101010101) << s
        store_u32(to + 32 * g + 4 * r, word)


@inlined
def pair_twos(q, to, r):
    """Codes of two bits: 64 bytes -> sixteen words, 32 bytes apart, nibble k of column k and above it column 8 + k."""
    for i in range(16):
        half, quarter, pair = i // 8, i % 8 // 2, i % 2
        at = q + 32 * half + 16 * pair
        even = load_i64(at) >> 2 * quarter & 0x0303030303030303
        odd = load_i64(at + 8) >> 2 * quarter & 0x0303030303030303
        store_u32(to + 32 * i + 4 * r, pair_up(even) | pair_up(odd) << 2)


@kernel
def pack_q2_k(raw, row_bytes, to, blocks):
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + 84 * b
            copy2(p + 80, to + 2 * r)
            copy2(p + 82, to + 16 + 2 * r)
            for i in range(16):
                store_u8(to + 32 + 8 * i + r, load_u32(p + i) & 0xFF)
            pair_twos(p + 16, to + 160, r)
        to += 672


@kernel
def pack_q3_k(raw, row_bytes, to, blocks):
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + 110 * b
            copy2(p + 108, to + 2 * r)
            for i in range(3):
                copy4(p + 96 + 4 * i, to + 16 + 32 * i + 4 * r)
            bit_planes(p, to + 112, r)
            pair_twos(p + 32, to + 368, r)
        to += 880


@kernel
def pack_k4(raw, row_bytes, to, blocks, fifths):
    """Q4_K, and Q5_K, which has the fifth bits before the nibbles."""
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + (144 + 32 * fifths) * b
            copy2(p, to + 2 * r)
            copy2(p + 2, to + 16 + 2 * r)
            for i in range(3):
                copy4(p + 4 + 4 * i, to + 32 + 32 * i + 4 * r)
            if fifths:
                bit_planes(p + 16, to + 128, r)
            for pair in range(4):  # 32 bytes: the low nibbles of one group, the high ones of the next
                q, w = p + 16 + 32 * fifths + 32 * pair, to + 128 + 256 * fifths + 256 * pair + 4 * r
                for i in range(4):
                    x = load_i64(q + 8 * i)
                    store_u32(w + 32 * i, pair_up(x & NIBBLES))
                    store_u32(w + 128 + 32 * i, pair_up(x >> 4 & NIBBLES))
        to += 1152 + 256 * fifths


@kernel
def pack_iq4_xs(raw, row_bytes, to, blocks):
    for b in range(blocks):
        for r in range(8):
            p = raw + r * row_bytes + 136 * b
            copy2(p, to + 2 * r)
            copy2(p + 2, to + 16 + 2 * r)
            copy4(p + 4, to + 32 + 4 * r)
            for g in range(8):
                split_nibbles(p + 8 + 16 * g, to + 64 + 128 * g, r)
        to += 1088


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
    short, long = columns // 32, columns // 256
    for t in range(tile, end):
        p = raw + 8 * t * row_bytes
        if layout == 0:
            pack_plain(p, row_bytes, to + t * columns * 32, columns // 8, 4)
        elif layout == 1 or layout == 7:
            pack_plain(p, row_bytes, to + t * columns * 16, columns // 8, 2)
        elif layout == 2:
            pack_short(p, row_bytes, to + t * short * 160, short, 4, 0)
        elif layout == 3:
            pack_short(p, row_bytes, to + t * short * 176, short, 2, 1)
        elif layout == 4:
            pack_q8_0(p, row_bytes, to + t * short * 272, short)
        elif layout == 5:
            pack_k4(p, row_bytes, to + t * long * 1152, long, 0)
        elif layout == 6:
            pack_q6_k(p, row_bytes, to + t * long * 1680, long)
        elif layout == 8 or layout == 13:
            pack_short(p, row_bytes, to + t * short * 144, short, 2, 0)
        elif layout == 9:
            pack_short(p, row_bytes, to + t * short * 192, short, 4, 1)
        elif layout == 10:
            pack_q2_k(p, row_bytes, to + t * long * 672, long)
        elif layout == 11:
            pack_q3_k(p, row_bytes, to + t * long * 880, long)
        elif layout == 12:
            pack_k4(p, row_bytes, to + t * long * 1408, long, 1)
        elif layout == 14:
            pack_iq4_xs(p, row_bytes, to + t * long * 1088, long)
        elif layout == 15:
            pack_short(p, row_bytes, to + t * short * 136, short, 1, 0)
