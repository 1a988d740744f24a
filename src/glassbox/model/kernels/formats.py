"""How a packed matrix's codes become numbers: one entry a format, for use inside the products' loops.

A packed matrix is a run of tiles of eight rows; a tile is a run of blocks of columns, laid out by pack.py; a vector's
lanes are the eight rows. A format is three functions: `scales(p, g)` gives scale and offset of the rows in column group
g of the block at p; `eight(p, s, scale, offset)` decodes the eight columns of sub-block s, one vector a column; and
`multiply(p, s, scale, offset, q, accs)` adds the same columns times x[0 … 7] at q to eight accumulators, column by
column in an order that the compiler may not change: left to itself it decodes 32 columns ahead and spills them.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from glassbox.model.kernels.simd import (
    and8,
    broadcast,
    float8,
    fma8,
    in_order,
    left8,
    load8,
    load8b,
    load8h,
    load8i,
    mul8,
    or8,
    right8,
    splat8,
    sub8,
    zero8,
)

# The numpy error model: a division cannot raise. No wrappers: only compiled code calls compiled code.
_OPTIONS: dict[str, Any] = dict(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
kernel = njit(**_OPTIONS)
inlined = njit(**_OPTIONS, forceinline=True)


@inlined
def four(v, mask, scale, offset):
    """Four codes of up to 8 bits a lane, one in each byte -> four vectors scale · code + offset.

    A code is converted where it lies, 256**j too large, and the scale is that much smaller: powers of two are exact.
    """
    return (
        fma8(float8(and8(v, mask)), scale, offset),
        fma8(float8(and8(v, mask << 8)), mul8(scale, splat8(0.00390625)), offset),
        fma8(float8(and8(v, mask << 16)), mul8(scale, splat8(1.52587890625e-05)), offset),
        fma8(float8(and8(right8(v, 24), mask)), scale, offset),
    )


@inlined
def four_products(v, mask, top, scale, offset, q, apart, a, b, c, d):
    """`four`, each times the float32 at q, q + apart, …, and added to a, b, c, d. top: a mask for the top byte, or 0
    where its code stands alone."""
    a, v = in_order(fma8(fma8(float8(and8(v, mask)), scale, offset), broadcast(q), a), v)
    smaller = mul8(scale, splat8(0.00390625))
    b, v = in_order(fma8(fma8(float8(and8(v, mask << 8)), smaller, offset), broadcast(q + apart), b), v)
    smaller = mul8(scale, splat8(1.52587890625e-05))
    c, v = in_order(fma8(fma8(float8(and8(v, mask << 16)), smaller, offset), broadcast(q + 2 * apart), c), v)
    last = right8(v, 24)
    if top:
        last = and8(last, top)
    d, v = in_order(fma8(fma8(float8(last), scale, offset), broadcast(q + 3 * apart), d), v)
    return a, b, c, d


def of_words(words, mask, *, halves=True, top=0):
    """`eight` and `multiply` of a format whose `words(p, s)` hold the codes of the even and of the odd columns, or
    (`halves` is False) of the first four and the last four. top: a mask that the first word's top byte needs."""
    apart, second = (8, 4) if halves else (4, 16)

    @inlined
    def eight(p, s, scale, offset):
        v, w = words(p, s)
        a, b, c, d = four(v, mask, scale, offset)
        e, f, g, h = four(w, mask, scale, offset)
        if halves:
            return a, e, b, f, c, g, d, h
        return a, b, c, d, e, f, g, h

    @inlined
    def multiply(p, s, scale, offset, q, accs):
        a, b, c, d, e, f, g, h = accs
        v, w = words(p, s)
        if halves:
            a, c, e, g = four_products(v, mask, top, scale, offset, q, apart, a, c, e, g)
            b, d, f, h = four_products(w, mask, 0, scale, offset, q + second, apart, b, d, f, h)
        else:
            a, b, c, d = four_products(v, mask, top, scale, offset, q, apart, a, b, c, d)
            e, f, g, h = four_products(w, mask, 0, scale, offset, q + second, apart, e, f, g, h)
        return a, b, c, d, e, f, g, h

    return eight, multiply


def of_numbers(eight):
    """`eight` and `multiply` of a format that needs no decoding to speak of."""

    @inlined
    def multiply(p, s, scale, offset, q, accs):
        a, b, c, d, e, f, g, h = accs
        w0, w1, w2, w3, w4, w5, w6, w7 = eight(p, s, scale, offset)
        return (
            fma8(w0, broadcast(q), a), fma8(w1, broadcast(q + 4), b),
            fma8(w2, broadcast(q + 8), c), fma8(w3, broadcast(q + 12), d),
            fma8(w4, broadcast(q + 16), e), fma8(w5, broadcast(q + 20), f),
            fma8(w6, broadcast(q + 24), g), fma8(w7, broadcast(q + 28), h),
        )  # fmt: skip

    return eight, multiply


@inlined
def scales_affine(p, g):
    """float16 scales and offsets of eight rows (Q4_1)."""
    return load8h(p), load8h(p + 16)


@inlined
def words_q4_1(p, s):
    v = load8i(p + 32 + 32 * s)
    return v, right8(v, 4)


@inlined
def scales_q5_0(p, g):
    scale = load8h(p)
    return scale, mul8(scale, splat8(-16.0))


@inlined
def words_q5_0(p, s):
    v, high = load8i(p + 48 + 32 * s), load8i(p + 16)  # bit 4k+s of `high` is the fifth bit of column 8s+k
    fifth = right8(high, s)
    even = or8(and8(v, 0x0F0F0F0F), and8(left8(fifth, 4), 0x10101010))
    odd = or8(and8(right8(v, 4), 0x0F0F0F0F), and8(fifth, 0x10101010))
    return even, odd


@inlined
def scales_q8_0(p, g):
    scale = load8h(p)
    return scale, mul8(scale, splat8(-128.0))  # codes are stored with 128 added


@inlined
def words_q8_0(p, s):
    """Columns 0 … 3 and 4 … 7."""
    return load8i(p + 16 + 64 * s), load8i(p + 48 + 64 * s)


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
def words_q4_k(p, s):
    v = load8i(p + 128 + 32 * s)
    return v, right8(v, 4)


@inlined
def scales_q6_k(p, g):
    scale = mul8(load8h(p), float8(load8b(p + 16 + 8 * g)))
    return scale, mul8(scale, splat8(-32.0))


@inlined
def words_q6_k(p, s):
    v = load8i(p + 144 + 32 * s)
    high = right8(load8i(p + 1168 + 32 * (s >> 1)), 4 * (s & 1))  # each byte: even s, odd s, even s+1, odd s+1
    even = or8(and8(v, 0x0F0F0F0F), and8(left8(high, 4), 0x30303030))
    odd = or8(and8(right8(v, 4), 0x0F0F0F0F), and8(left8(high, 2), 0x30303030))
    return even, odd


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


# scales, eight, multiply, bytes of a block, column groups of a block, sub-blocks of a group
F32 = (scales_none, *of_numbers(eight_f32), 256, 1, 1)
F16 = (scales_none, *of_numbers(eight_f16), 128, 1, 1)
Q4_1 = (scales_affine, *of_words(words_q4_1, 0x0F, top=0x0F), 160, 1, 4)
Q5_0 = (scales_q5_0, *of_words(words_q5_0, 0x1F), 176, 1, 4)
Q8_0 = (scales_q8_0, *of_words(words_q8_0, 0xFF, halves=False), 272, 1, 4)
Q4_K = (scales_q4_k, *of_words(words_q4_k, 0x0F, top=0x0F), 1152, 8, 4)
Q6_K = (scales_q6_k, *of_words(words_q6_k, 0x3F), 1680, 16, 2)
