"""Weights times activations, exactly: out[t, r] = Σ_c w[r, c] · x[t, c].

The contract, for every output element whatever the format, the batch or the thread:

    w    = scale · code + offset, rounded once (fma), as float32
    acc_j = fma(w[c], x[c], acc_j) for the columns c = j, j+8, j+16, … in ascending order, j = 0 … 7
    out  = ((acc_0+acc_4)+(acc_2+acc_6)) + ((acc_1+acc_5)+(acc_3+acc_7))

Two kernels keep to it. For one token a vector's lanes are eight rows, with one accumulator for each j; so a packed
weight streams past once and needs no horizontal sum. For many tokens a tile of eight rows is decoded once into rows of
float32, lanes are the eight j, and each decoded vector is used for every token.

A packed matrix is a run of tiles of eight rows; a tile is a run of blocks of columns, laid out by pack.py. A format
here is two functions: `scales(p, g)` gives scale and offset of the eight rows in column group g of the block at p, and
`eight(p, s, scale, offset)` gives the eight columns of sub-block s, one vector a column.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from glassbox.model.kernels.simd import (
    add8,
    and8,
    broadcast,
    float8,
    fma8,
    left8,
    load8,
    load8b,
    load8h,
    load8i,
    mul8,
    or8,
    prefetch,
    right8,
    splat8,
    store1,
    store8,
    store_transposed,
    sub8,
    sum8,
    zero8,
)

# The numpy error model: a division cannot raise. No wrappers: only compiled code calls compiled code.
_OPTIONS: dict[str, Any] = dict(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
kernel = njit(**_OPTIONS)
inlined = njit(**_OPTIONS, forceinline=True)


AHEAD = 4096  # bytes that a stream is asked for in advance: the hardware's own prefetch stops at every page

# --- decoding codes ---------------------------------------------------------------------------------------------


@inlined
def bytes4(v, scale, offset):
    """Four codes 0..255 a lane, one in each byte -> four vectors scale · code + offset.

    A code is converted where it lies, 256**j too large, and the scale is that much smaller: powers of two are exact.
    """
    return (
        fma8(float8(and8(v, 0xFF)), scale, offset),
        fma8(float8(and8(v, 0xFF00)), mul8(scale, splat8(0.00390625)), offset),
        fma8(float8(and8(v, 0xFF0000)), mul8(scale, splat8(1.52587890625e-05)), offset),
        fma8(float8(right8(v, 24)), scale, offset),
    )


@inlined
def interleave(even, odd, scale, offset):
    """Codes of the even and of the odd columns, four in the bytes of each lane -> eight vectors in column order."""
    a, c, e, g = bytes4(even, scale, offset)
    b, d, f, h = bytes4(odd, scale, offset)
    return a, b, c, d, e, f, g, h


NIBBLES = 0x0F0F0F0F


@inlined
def scales_affine(p, g):
    """float16 scales and offsets of eight rows (Q4_1)."""
    return load8h(p), load8h(p + 16)


@inlined
def eight_q4_1(p, s, scale, offset):
    v = load8i(p + 32 + 32 * s)
    return interleave(and8(v, NIBBLES), and8(right8(v, 4), NIBBLES), scale, offset)


@inlined
def scales_q5_0(p, g):
    scale = load8h(p)
    return scale, mul8(scale, splat8(-16.0))


@inlined
def eight_q5_0(p, s, scale, offset):
    v, high = load8i(p + 48 + 32 * s), load8i(p + 16)  # bit 4k+s of `high` is the fifth bit of column 8s+k
    fifth = right8(high, s)
    even = or8(and8(v, NIBBLES), and8(left8(fifth, 4), 0x10101010))
    odd = or8(and8(right8(v, 4), NIBBLES), and8(fifth, 0x10101010))
    return interleave(even, odd, scale, offset)


@inlined
def scales_q8_0(p, g):
    scale = load8h(p)
    return scale, mul8(scale, splat8(-128.0))  # codes are stored with 128 added


@inlined
def eight_q8_0(p, s, scale, offset):
    a, b, c, d = bytes4(load8i(p + 16 + 64 * s), scale, offset)
    e, f, g, h = bytes4(load8i(p + 48 + 64 * s), scale, offset)
    return a, b, c, d, e, f, g, h


@inlined
def scales_q4_k(p, g):
    """Superblock scales times 6-bit scales, packed as in the file: three words a row hold 8 scales and 8 minima."""
    low, mid = load8i(p + 32), load8i(p + 64)
    if g < 4:
        scale, least = and8(right8(low, 8 * g), 63), and8(right8(mid, 8 * g), 63)
    else:
        high, j = load8i(p + 96), 8 * (g - 4)
        scale = or8(and8(right8(high, j), 15), left8(and8(right8(low, j + 6), 3), 4))
        least = or8(and8(right8(high, j + 4), 15), left8(and8(right8(mid, j + 6), 3), 4))
    offset = mul8(load8h(p + 16), float8(least))
    return mul8(load8h(p), float8(scale)), sub8(zero8(), offset)


@inlined
def eight_q4_k(p, s, scale, offset):
    v = load8i(p + 128 + 32 * s)
    return interleave(and8(v, NIBBLES), and8(right8(v, 4), NIBBLES), scale, offset)


@inlined
def scales_q6_k(p, g):
    scale = mul8(load8h(p), float8(load8b(p + 16 + 8 * g)))
    return scale, mul8(scale, splat8(-32.0))


@inlined
def eight_q6_k(p, s, scale, offset):
    v = load8i(p + 144 + 32 * s)
    high = right8(load8i(p + 1168 + 32 * (s >> 1)), 4 * (s & 1))  # each byte: even s, odd s, even s+1, odd s+1
    even = or8(and8(v, NIBBLES), and8(left8(high, 4), 0x30303030))
    odd = or8(and8(right8(v, 4), NIBBLES), and8(left8(high, 2), 0x30303030))
    return interleave(even, odd, scale, offset)


@inlined
def scales_none(p, g):
    return zero8(), zero8()


@inlined
def eight_f16(p, s, scale, offset):
    p += 128 * s
    return (
        load8h(p), load8h(p + 16), load8h(p + 32), load8h(p + 48),
        load8h(p + 64), load8h(p + 80), load8h(p + 96), load8h(p + 112),
    )  # fmt: skip


@inlined
def eight_f32(p, s, scale, offset):
    p += 256 * s
    return (
        load8(p), load8(p + 32), load8(p + 64), load8(p + 96),
        load8(p + 128), load8(p + 160), load8(p + 192), load8(p + 224),
    )  # fmt: skip


# --- the two kernels, for any format ----------------------------------------------------------------------------


def one_token(scales, eight, block_bytes, groups, subs):
    """Make the kernel for one token. A block has `groups` column groups of `subs` sub-blocks of eight columns."""

    @kernel
    def run(w, x, out, columns, tile, tiles):
        tile_bytes = columns // (8 * groups * subs) * block_bytes
        p = w + tile * tile_bytes
        for r in range(tile, tiles):
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = zero8()
            q = x
            end = p + tile_bytes
            while p < end:
                for ahead in range(AHEAD, AHEAD + block_bytes, 64):
                    prefetch(p + ahead)
                for g in range(groups):
                    scale, offset = scales(p, g)
                    for i in range(subs):
                        w0, w1, w2, w3, w4, w5, w6, w7 = eight(p, g * subs + i, scale, offset)
                        a0 = fma8(w0, broadcast(q), a0)
                        a1 = fma8(w1, broadcast(q + 4), a1)
                        a2 = fma8(w2, broadcast(q + 8), a2)
                        a3 = fma8(w3, broadcast(q + 12), a3)
                        a4 = fma8(w4, broadcast(q + 16), a4)
                        a5 = fma8(w5, broadcast(q + 20), a5)
                        a6 = fma8(w6, broadcast(q + 24), a6)
                        a7 = fma8(w7, broadcast(q + 28), a7)
                        q += 32
                p += block_bytes
            left, right = add8(add8(a0, a4), add8(a2, a6)), add8(add8(a1, a5), add8(a3, a7))
            store8(out + 32 * r, add8(left, right))

    return run


def decode_tile(scales, eight, block_bytes, groups, subs):
    """Make the function that decodes one tile of eight rows into float32 rows [8, columns] at `to`."""

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
                    store_transposed(to, 4 * columns, w0, w1, w2, w3, w4, w5, w6, w7)
                    to += 32
            p += block_bytes

    return run


@kernel
def many_tokens(rows, x, x_stride, out, out_stride, columns, tokens):
    """Eight decoded rows [8, columns] times every token: out[t, 0:8]. Four rows by three tokens at a time, the last by
    two where three would leave one over; a lone token is done twice."""
    step = 4 * columns
    for half in range(2):
        w, o = rows + 4 * half * step, out + 16 * half
        t = 0
        while tokens - t > 4 or tokens - t == 3:
            three_tokens(w, step, x + t * x_stride, x_stride, o + t * out_stride, out_stride)
            t += 3
        while t < tokens:
            if t + 1 < tokens:
                two_tokens(w, step, x + t * x_stride, x_stride, o + t * out_stride, out_stride)
            else:
                two_tokens(w, step, x + t * x_stride, 0, o + t * out_stride, 0)
            t += 2


@kernel
def three_tokens(w, step, x, x_stride, out, out_stride):
    x1, x2 = x + x_stride, x + 2 * x_stride
    a0 = a1 = a2 = b0 = b1 = b2 = c0 = c1 = c2 = d0 = d1 = d2 = zero8()
    for o in range(0, step, 32):
        y0, y1, y2 = load8(x + o), load8(x1 + o), load8(x2 + o)
        m = load8(w + o)
        a0, a1, a2 = fma8(m, y0, a0), fma8(m, y1, a1), fma8(m, y2, a2)
        m = load8(w + o + step)
        b0, b1, b2 = fma8(m, y0, b0), fma8(m, y1, b1), fma8(m, y2, b2)
        m = load8(w + o + 2 * step)
        c0, c1, c2 = fma8(m, y0, c0), fma8(m, y1, c1), fma8(m, y2, c2)
        m = load8(w + o + 3 * step)
        d0, d1, d2 = fma8(m, y0, d0), fma8(m, y1, d1), fma8(m, y2, d2)
    store4(out, a0, b0, c0, d0)
    store4(out + out_stride, a1, b1, c1, d1)
    store4(out + 2 * out_stride, a2, b2, c2, d2)


@kernel
def two_tokens(w, step, x, x_stride, out, out_stride):
    x1 = x + x_stride
    a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = zero8()
    for o in range(0, step, 32):
        y0, y1 = load8(x + o), load8(x1 + o)
        m, n = load8(w + o), load8(w + o + step)
        a0, a1, b0, b1 = fma8(m, y0, a0), fma8(m, y1, a1), fma8(n, y0, b0), fma8(n, y1, b1)
        m, n = load8(w + o + 2 * step), load8(w + o + 3 * step)
        c0, c1, d0, d1 = fma8(m, y0, c0), fma8(m, y1, c1), fma8(n, y0, d0), fma8(n, y1, d1)
    store4(out, a0, b0, c0, d0)
    store4(out + out_stride, a1, b1, c1, d1)


@inlined
def store4(p, a, b, c, d):
    store1(p, sum8(a))
    store1(p + 4, sum8(b))
    store1(p + 8, sum8(c))
    store1(p + 12, sum8(d))
