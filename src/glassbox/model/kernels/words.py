"""How codes in the bytes of 32-bit words become products: what the formats of formats.py are made of.

Comes in: a function that loads the words of eight rows. Goes out: the two functions that a format needs, `eight` and
`multiply` (see formats.py). It knows no format.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types

from glassbox.model.kernels.simd import (
    FV,
    I8,
    I32,
    IV,
    LANES,
    _splat,
    and8,
    broadcast,
    call_named,
    f32x8,
    float8,
    fma8,
    i32x8,
    in_order,
    load_at,
    mul8,
    right8,
    splat8,
    word_of,
)

# The numpy error model: a division cannot raise. No wrappers: only compiled code calls compiled code.
_OPTIONS: dict[str, Any] = dict(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
kernel = njit(**_OPTIONS)
inlined = njit(**_OPTIONS, forceinline=True)

_BYTES = ir.VectorType(I8, 4 * LANES)


@word_of(i32x8, types.int64)
def load8w(b, p):
    """Eight uint16 at p."""
    return b.zext(load_at(b, p, ir.VectorType(ir.IntType(16), LANES), 2), IV)


@word_of(f32x8, i32x8)
def bits8(b, v):
    """The float32 with these bits."""
    return b.bitcast(v, FV)


@word_of(i32x8, i32x8, types.int64)
def less8(b, v, n):
    """v - n."""
    return b.sub(v, _splat(b, b.trunc(n, I32), IV))


def look_up(values, *, plain=False):
    """Make the function that puts values[i], 0 … 255, in the place of every byte i, 0 … 15. Where a processor looks up
    bytes by itself that is one instruction; `plain` is what is done elsewhere."""

    def every(value):
        return ir.Constant(_BYTES, [value] * _BYTES.count)

    @word_of(i32x8, i32x8)
    def looked_up(b, v):
        index = b.bitcast(v, _BYTES)
        if b.module.triple.startswith("x86_64") and not plain:
            table = ir.Constant(_BYTES, [*values, *values])
            out = call_named(b, "llvm.x86.avx2.pshuf.b", _BYTES, [table, index])
        else:
            out = every(values[0])
            for i, value in enumerate(values[1:], 1):
                out = b.select(b.icmp_unsigned("==", index, every(i)), every(value), out)
        return b.bitcast(out, IV)

    return looked_up


@inlined
def number(v, bias):
    """Integers less `bias` -> float32."""
    if bias:
        v = less8(v, bias)
    return float8(v)


@inlined
def four(v, mask, bias, scale, offset):
    """Four codes of up to 8 bits a lane, one in each byte -> four vectors scale · (code - bias) + offset.

    A code is converted where it lies, 256**j too large, and the scale is that much smaller: powers of two are exact.
    """
    return (
        fma8(number(and8(v, mask), bias), scale, offset),
        fma8(number(and8(v, mask << 8), bias << 8), mul8(scale, splat8(0.00390625)), offset),
        fma8(number(and8(v, mask << 16), bias << 16), mul8(scale, splat8(1.52587890625e-05)), offset),
        fma8(number(and8(right8(v, 24), mask), bias), scale, offset),
    )


@inlined
def four_products(v, mask, top, bias, scale, offset, q, apart, a, b, c, d):
    """`four`, each times the float32 at q, q + apart, …, and added to a, b, c, d. top: a mask for the top byte, or 0
    where its code stands alone."""
    w = fma8(number(and8(v, mask), bias), scale, offset)
    a, v = in_order(fma8(w, broadcast(q), a), v)
    w = fma8(number(and8(v, mask << 8), bias << 8), mul8(scale, splat8(0.00390625)), offset)
    b, v = in_order(fma8(w, broadcast(q + apart), b), v)
    w = fma8(number(and8(v, mask << 16), bias << 16), mul8(scale, splat8(1.52587890625e-05)), offset)
    c, v = in_order(fma8(w, broadcast(q + 2 * apart), c), v)
    last = right8(v, 24)
    if top:
        last = and8(last, top)
    d, v = in_order(fma8(fma8(number(last, bias), scale, offset), broadcast(q + 3 * apart), d), v)
    return a, b, c, d


def of_words(words, mask, *, halves=True, top=0, bias=0):
    """`eight` and `multiply` of a format whose `words(p, s)` hold the codes of the even and of the odd columns, or
    (`halves` is False) of the first four and the last four. top: a mask that the first word's top byte needs. bias: by
    what codes are larger than they should be; where the offset can take it away instead, that costs less."""
    apart, second = (8, 4) if halves else (4, 16)

    @inlined
    def eight(p, s, scale, offset):
        v, w = words(p, s)
        a, b, c, d = four(v, mask, bias, scale, offset)
        e, f, g, h = four(w, mask, bias, scale, offset)
        if halves:
            return a, e, b, f, c, g, d, h
        return a, b, c, d, e, f, g, h

    @inlined
    def multiply(p, s, scale, offset, q, accs):
        a, b, c, d, e, f, g, h = accs
        v, w = words(p, s)
        if halves:
            a, c, e, g = four_products(v, mask, top, bias, scale, offset, q, apart, a, c, e, g)
            b, d, f, h = four_products(w, mask, 0, bias, scale, offset, q + second, apart, b, d, f, h)
        else:
            a, b, c, d = four_products(v, mask, top, bias, scale, offset, q, apart, a, b, c, d)
            e, f, g, h = four_products(w, mask, 0, bias, scale, offset, q + second, apart, e, f, g, h)
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
