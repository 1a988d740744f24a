"""How a packed matrix's codes become numbers: one entry a format, for use inside the products' loops.

A packed matrix is a run of tiles of eight rows; a tile is a run of blocks of columns, laid out by pack.py; a vector's
lanes are the eight rows. A format is three functions: `scales(p, g)` gives scale and offset of the rows in column group
g of the block at p; `eight(p, s, scale, offset)` decodes the eight columns of sub-block s, one vector a column; and
`multiply(p, s, scale, offset, q, accs)` adds the same columns times x[0 … 7] at q to eight accumulators, column by
column in an order that the compiler may not change: left to itself it decodes 32 columns ahead and spills them.

These two are made by words.py, mostly from `words(p, s)`: the codes of sub-block s in the bytes of two words a row.
"""

from __future__ import annotations

from glassbox.model.kernels.simd import (
    and8,
    float8,
    fma8,
    left8,
    load8,
    load8b,
    load8h,
    load8i,
    mul8,
    or8,
    power_of_two,
    right8,
    round8,
    splat8,
    sub8,
    zero8,
)
from glassbox.model.kernels.words import bits8, load8w, look_up, of_numbers, of_words
from glassbox.model.kernels.words import inlined as inlined
from glassbox.model.kernels.words import kernel as kernel
from glassbox.weights.quant import VALUES_IQ4, VALUES_MXFP4

NIBBLES = 0x0F0F0F0F


# --- scales and offsets -----------------------------------------------------------------------------------------


@inlined
def scales_none(p, g):
    return zero8(), zero8()


@inlined
def scales_affine(p, g):
    """float16 scales and offsets of eight rows."""
    return load8h(p), load8h(p + 16)


def scales_centred(middle):
    """Make it for float16 scales and codes that stand for code - middle."""

    @inlined
    def scales(p, g):
        scale = load8h(p)
        return scale, mul8(scale, splat8(-middle))

    return scales


@inlined
def scales_q2_k(p, g):
    """Superblock scales times 4-bit scales; above these in their bytes 4-bit minima."""
    v = load8b(p + 32 + 8 * g)
    offset = mul8(load8h(p + 16), float8(and8(right8(v, 4), 15)))
    return mul8(load8h(p), float8(and8(v, 15))), sub8(zero8(), offset)


@inlined
def scales_q3_k(p, g):
    """6-bit scales less 32, packed as in the file: of three words a row two hold the low four bits, one the others."""
    low = right8(load8i(p + 16 + 32 * (g >> 2 & 1)), 8 * (g & 3) + 4 * (g >> 3))
    high = right8(load8i(p + 80), 8 * (g & 3) + 2 * (g >> 2))
    scale = small_scale(load8h(p), low, high)
    return scale, mul8(scale, splat8(-4.0))


@inlined
def small_scale(d, low, high):
    """d times a scale of six bits, four and two, less 32."""
    code = or8(and8(low, 15), left8(and8(high, 3), 4))
    return fma8(d, float8(code), mul8(d, splat8(-32.0)))


@inlined
def scales_k4(p, g):
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
def scales_q6_k(p, g):
    scale = mul8(load8h(p), float8(load8b(p + 16 + 8 * g)))
    return scale, mul8(scale, splat8(-32.0))


@inlined
def scales_iq4_xs(p, g):
    scale = small_scale(load8h(p), right8(load8i(p + 32), 4 * g), right8(load8w(p + 16), 2 * g))
    return scale, mul8(scale, splat8(-128.0))


@inlined
def scales_mxfp4(p, g):
    """2**(e - 128) for e = 0 … 255, in two steps: 2**-128 is no normal number."""
    e = float8(and8(load8b(p), 255))
    half = round8(mul8(e, splat8(0.5)))
    root = splat8(2.0**-64)
    return mul8(power_of_two(root, half), power_of_two(root, sub8(e, half))), zero8()


# --- codes ------------------------------------------------------------------------------------------------------


def words_of_four(at):
    """Make it for 4-bit codes that begin `at` bytes into a block: eight columns a word, the even ones low."""

    @inlined
    def words(p, s):
        v = load8i(p + at + 32 * s)
        return v, right8(v, 4)

    return words


def words_of_five(high_at, at):
    """Make it for 4-bit codes and their fifth bits: bit 4k+s of a word is that of column 8s+k."""

    @inlined
    def words(p, s):
        v, fifth = load8i(p + at + 32 * s), right8(load8i(p + high_at + 32 * (s >> 2)), s & 3)
        even = or8(and8(v, NIBBLES), and8(left8(fifth, 4), 0x10101010))
        odd = or8(and8(right8(v, 4), NIBBLES), and8(fifth, 0x10101010))
        return even, odd

    return words


def words_of_table(values, at):
    """Make it for 4-bit codes that stand for values[code], 0 … 255."""
    looked_up = look_up(values)

    @inlined
    def words(p, s):
        v = load8i(p + at + 32 * s)
        return looked_up(and8(v, NIBBLES)), looked_up(and8(right8(v, 4), NIBBLES))

    return words


@inlined
def words_q8_0(p, s):
    """Columns 0 … 3 and 4 … 7."""
    return load8i(p + 16 + 64 * s), load8i(p + 48 + 64 * s)


@inlined
def words_q2_k(p, s):
    """2-bit codes: nibble k of a word has column k of an even sub-block and above it that of the next one."""
    v = and8(right8(load8i(p + 160 + 32 * (s >> 1)), 2 * (s & 1)), 0x33333333)
    return v, right8(v, 4)


@inlined
def words_q3_k(p, s):
    """2-bit codes as in Q2_K, and their third bits as fifth ones are elsewhere."""
    low = and8(right8(load8i(p + 368 + 32 * (s >> 1)), 2 * (s & 1)), 0x33333333)
    third = right8(load8i(p + 112 + 32 * (s >> 2)), s & 3)
    v = or8(low, and8(left8(third, 2), 0x44444444))
    return v, right8(v, 4)


@inlined
def words_q6_k(p, s):
    v = load8i(p + 144 + 32 * s)
    high = right8(load8i(p + 1168 + 32 * (s >> 1)), 4 * (s & 1))  # each byte: even s, odd s, even s+1, odd s+1
    even = or8(and8(v, NIBBLES), and8(left8(high, 4), 0x30303030))
    odd = or8(and8(right8(v, 4), NIBBLES), and8(left8(high, 2), 0x30303030))
    return even, odd


# --- numbers ----------------------------------------------------------------------------------------------------


@inlined
def eight_f32(p, s, scale, offset):
    p += 256 * s
    return (
        load8(p), load8(p + 32), load8(p + 64), load8(p + 96),
        load8(p + 128), load8(p + 160), load8(p + 192), load8(p + 224),
    )  # fmt: skip


@inlined
def eight_f16(p, s, scale, offset):
    p += 128 * s
    return (
        load8h(p), load8h(p + 16), load8h(p + 32), load8h(p + 48),
        load8h(p + 64), load8h(p + 80), load8h(p + 96), load8h(p + 112),
    )  # fmt: skip


@inlined
def load8bf(p):
    """Eight bfloat16 at p, as the float32 whose upper halves they are."""
    return bits8(left8(load8w(p), 16))


@inlined
def eight_bf16(p, s, scale, offset):
    p += 128 * s
    return (
        load8bf(p), load8bf(p + 16), load8bf(p + 32), load8bf(p + 48),
        load8bf(p + 64), load8bf(p + 80), load8bf(p + 96), load8bf(p + 112),
    )  # fmt: skip


_IQ4 = [v + 128 for v in VALUES_IQ4]
_MXFP4 = [v + 12 for v in VALUES_MXFP4]

# scales, eight, multiply, bytes of a block, column groups of a block, sub-blocks of a group
F32 = (scales_none, *of_numbers(eight_f32), 256, 1, 1)
F16 = (scales_none, *of_numbers(eight_f16), 128, 1, 1)
BF16 = (scales_none, *of_numbers(eight_bf16), 128, 1, 1)
Q4_0 = (scales_centred(8.0), *of_words(words_of_four(16), 0x0F, top=0x0F), 144, 1, 4)
Q4_1 = (scales_affine, *of_words(words_of_four(32), 0x0F, top=0x0F), 160, 1, 4)
Q5_0 = (scales_centred(16.0), *of_words(words_of_five(16, 48), 0x1F), 176, 1, 4)
Q5_1 = (scales_affine, *of_words(words_of_five(32, 64), 0x1F), 192, 1, 4)
Q8_0 = (scales_centred(128.0), *of_words(words_q8_0, 0xFF, halves=False), 272, 1, 4)
Q2_K = (scales_q2_k, *of_words(words_q2_k, 0x03, top=0x03), 672, 16, 2)
Q3_K = (scales_q3_k, *of_words(words_q3_k, 0x07, top=0x07), 880, 16, 2)
Q4_K = (scales_k4, *of_words(words_of_four(128), 0x0F, top=0x0F), 1152, 8, 4)
Q5_K = (scales_k4, *of_words(words_of_five(128, 384), 0x1F), 1408, 8, 4)
Q6_K = (scales_q6_k, *of_words(words_q6_k, 0x3F), 1680, 16, 2)
IQ4_NL = (scales_centred(128.0), *of_words(words_of_table(_IQ4, 16), 0xFF), 144, 1, 4)
IQ4_XS = (scales_iq4_xs, *of_words(words_of_table(_IQ4, 64), 0xFF), 1088, 8, 4)
# an offset of -12 scales would overflow where the weights themselves do not
MXFP4 = (scales_mxfp4, *of_words(words_of_table(_MXFP4, 8), 0xFF, bias=12), 136, 1, 4)
