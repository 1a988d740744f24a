"""Weights times activations, exactly: out[t, r] = Σ_c w[r, c] · x[t, c].

The contract, for every output element whatever the format, the batch or the thread:

    w    = scale · code + offset, rounded once (fma), as float32
    acc_j = fma(w[c], x[c], acc_j) for the columns c = j, j+8, j+16, … in ascending order, j = 0 … 7
    out  = ((acc_0+acc_4)+(acc_2+acc_6)) + ((acc_1+acc_5)+(acc_3+acc_7))

Two kernels keep to it. For one token a vector's lanes are eight rows, with one accumulator for each j; so a packed
weight streams past once and needs no horizontal sum. For many tokens a tile of eight rows is decoded once into rows of
float32, lanes are the eight j, and each decoded vector is used for every token.

How a format's codes become w is in formats.py.
"""

from __future__ import annotations

from glassbox.model.kernels.formats import inlined, kernel
from glassbox.model.kernels.simd import (
    add8,
    fma8,
    load8,
    prefetch,
    store8,
    store_sums,
    store_transposed,
    zero8,
)

BLOCK = 640  # columns that go together at most
KEPT = 256  # bytes of one token's accumulators for eight rows
AHEAD = 4096  # bytes that a stream is asked for in advance: the hardware's own prefetch stops at every page


def one_token(scales, eight, multiply, block_bytes, groups, subs):
    """Make the kernel for one token. A block has `groups` column groups of `subs` sub-blocks of eight columns."""

    @kernel
    def run(w, x, out, columns, tile, tiles):
        tile_bytes = columns // (8 * groups * subs) * block_bytes
        p = w + tile * tile_bytes
        for r in range(tile, tiles):
            zero = zero8()
            accs = (zero, zero, zero, zero, zero, zero, zero, zero)
            q = x
            end = p + tile_bytes
            while p < end:
                for ahead in range(AHEAD, AHEAD + block_bytes, 64):
                    prefetch(p + ahead)
                for g in range(groups):
                    scale, offset = scales(p, g)
                    for i in range(subs):
                        accs = multiply(p, g * subs + i, scale, offset, q, accs)
                        q += 32
                p += block_bytes
            a0, a1, a2, a3, a4, a5, a6, a7 = accs
            left, right = add8(add8(a0, a4), add8(a2, a6)), add8(add8(a1, a5), add8(a3, a7))
            store8(out + 32 * r, add8(left, right))

    return run


@inlined
def row_stride(columns):
    """Bytes from one decoded row to the next: never a multiple of 4096, where rows would fight for the same lines."""
    return 4 * columns + 64


def decode_tile(scales, eight, multiply, block_bytes, groups, subs):
    """Make the function that decodes one tile of eight rows into float32 rows [8, columns], row_stride apart."""

    @kernel
    def run(w, to, columns, tile):
        blocks = columns // (8 * groups * subs)
        p = w + tile * blocks * block_bytes
        for _ in range(blocks):
            for ahead in range(AHEAD, AHEAD + block_bytes, 64):
                prefetch(p + ahead)
            for g in range(groups):
                scale, offset = scales(p, g)
                for i in range(subs):
                    w0, w1, w2, w3, w4, w5, w6, w7 = eight(p, g * subs + i, scale, offset)
                    store_transposed(to, row_stride(columns), w0, w1, w2, w3, w4, w5, w6, w7)
                    to += 32
            p += block_bytes

    return run


@kernel
def many_tokens(rows, x, x_stride, out, out_stride, columns, tokens, kept):
    """Eight decoded rows [8, columns] times every token: out[t, 0:8].

    Four rows by three tokens at a time, the last by two where three would leave one over; a lone token is done twice.
    Columns go in blocks, so that eight rows and three tokens of one block fit into the nearest cache; between blocks
    the accumulators lie at `kept`, KEPT bytes a token."""
    step, width = row_stride(columns), 4 * columns
    size = 32 * ((columns // 8 + (columns - 1) // BLOCK) // ((columns - 1) // BLOCK + 1))  # equal blocks, in bytes
    for begin in range(0, width, size):
        end = min(begin + size, width)
        last = end == width
        t = 0
        while tokens - t > 4 or tokens - t == 3:
            y, o, k = x + t * x_stride, out + t * out_stride, kept + t * KEPT
            three_tokens(rows, step, y, x_stride, o, out_stride, begin, end, last, k)
            three_tokens(rows + 4 * step, step, y, x_stride, o + 16, out_stride, begin, end, last, k + KEPT // 2)
            t += 3
        while t < tokens:
            y, o, k = x + t * x_stride, out + t * out_stride, kept + t * KEPT
            there = 1 if t + 1 < tokens else 0
            two_tokens(rows, step, y, there * x_stride, o, there * out_stride, begin, end, last, k, there * KEPT)
            two_tokens(
                rows + 4 * step, step, y, there * x_stride, o + 16, there * out_stride, begin, end, last,
                k + KEPT // 2, there * KEPT,
            )  # fmt: skip
            t += 2


@kernel
def three_tokens(w, step, x, x_stride, out, out_stride, begin, end, last, kept):
    x1, x2 = x + x_stride, x + 2 * x_stride
    a0, b0, c0, d0 = four_kept(kept, begin)
    a1, b1, c1, d1 = four_kept(kept + KEPT, begin)
    a2, b2, c2, d2 = four_kept(kept + 2 * KEPT, begin)
    for o in range(begin, end, 32):
        y0, y1, y2 = load8(x + o), load8(x1 + o), load8(x2 + o)
        m = load8(w + o)
        a0, a1, a2 = fma8(m, y0, a0), fma8(m, y1, a1), fma8(m, y2, a2)
        m = load8(w + o + step)
        b0, b1, b2 = fma8(m, y0, b0), fma8(m, y1, b1), fma8(m, y2, b2)
        m = load8(w + o + 2 * step)
        c0, c1, c2 = fma8(m, y0, c0), fma8(m, y1, c1), fma8(m, y2, c2)
        m = load8(w + o + 3 * step)
        d0, d1, d2 = fma8(m, y0, d0), fma8(m, y1, d1), fma8(m, y2, d2)
    put_four(out, kept, last, a0, b0, c0, d0)
    put_four(out + out_stride, kept + KEPT, last, a1, b1, c1, d1)
    put_four(out + 2 * out_stride, kept + 2 * KEPT, last, a2, b2, c2, d2)


@kernel
def two_tokens(w, step, x, x_stride, out, out_stride, begin, end, last, kept, kept_stride):
    x1 = x + x_stride
    a0, b0, c0, d0 = four_kept(kept, begin)
    a1, b1, c1, d1 = four_kept(kept + kept_stride, begin)
    for o in range(begin, end, 32):
        y0, y1 = load8(x + o), load8(x1 + o)
        m, n = load8(w + o), load8(w + o + step)
        a0, a1, b0, b1 = fma8(m, y0, a0), fma8(m, y1, a1), fma8(n, y0, b0), fma8(n, y1, b1)
        m, n = load8(w + o + 2 * step), load8(w + o + 3 * step)
        c0, c1, d0, d1 = fma8(m, y0, c0), fma8(m, y1, c1), fma8(n, y0, d0), fma8(n, y1, d1)
    put_four(out, kept, last, a0, b0, c0, d0)
    put_four(out + out_stride, kept + kept_stride, last, a1, b1, c1, d1)


@inlined
def four_kept(kept, begin):
    """The accumulators of four rows for one token as the block before left them; before the first, zeros."""
    if begin == 0:
        return zero8(), zero8(), zero8(), zero8()
    return load8(kept), load8(kept + 32), load8(kept + 64), load8(kept + 96)


@inlined
def put_four(out, kept, last, a, b, c, d):
    if last:
        store_sums(out, a, b, c, d)
    else:
        store8(kept, a)
        store8(kept + 32, b)
        store8(kept + 64, c)
        store8(kept + 96, d)
