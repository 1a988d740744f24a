"""The block formats of GGUF as one table: how large a block is, how it decodes, how kernels lay it out.

`decode` is the slow, plain definition (numpy, float32, the order of operations of the reference decoder); the
kernels stream a repacked layout and are tested against it. Formats are described in ggml's ggml-quants.c.

A scale · code is exact in float32 in every format (a float16 has 11 bits, scales of a scale and codes at most 12 more),
so the kernels' fma(scale, code, offset), rounded once, is what decode's operations give. Only where a file's float16
scale is infinite may they differ, one in an infinity and the other in a NaN: no such weight is usable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from glassbox.types import F32, U8

Decoder = Callable[[U8], F32]  # uint8 [blocks, bytes] -> float32 [blocks, elements]

# What the four-bit codes of IQ4_NL, IQ4_XS stand for; and those of MXFP4, a sign and 0, ½, 1, 1½, 2, 3, 4, 6, doubled.
VALUES_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
VALUES_MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True, slots=True)
class Format:
    """One row of the table. `layout` names the kernels' layout that holds it without loss."""

    name: str
    code: int  # GGML type number
    elements: int
    bytes: int
    decode: Decoder
    layout: str


def _f16(b: U8) -> F32:
    """uint8 [n, 2k] -> float32 [n, k]."""
    return b.copy().view("<f2").astype(np.float32)


def codes_of(b: U8, bits: int, run: int) -> U8:
    """Codes of 2 or 4 bits as ggml stores them: of each `run` bytes all the lowest codes, then all those above, …

    uint8 [n, k·run] -> [n, k·run·8/bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes: U8 = b.reshape(len(b), -1, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(len(b), -1)


def over(high: U8, low: U8, bits: int) -> U8:
    """Codes of which `low` are the lowest `bits` bits and `high` the others."""
    return low | high << np.uint8(bits)


def bits_of(b: U8) -> U8:
    """The high bits of the codes of a short block: uint8 [n, 4] -> [n, 32] of 0 or 1."""
    return np.unpackbits(b, axis=1, bitorder="little")


def _f32(b: U8) -> F32:
    return b.copy().view("<f4").astype(np.float32)


def _bf16(b: U8) -> F32:
    return (b.copy().view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(b: U8) -> F32:
    return _f16(b[:, :2]) * b[:, 2:].copy().view(np.int8).astype(np.float32)


def _q4_0(b: U8) -> F32:
    return _f16(b[:, :2]) * (codes_of(b[:, 2:], 4, 16).astype(np.float32) - 8)


def _q4_1(b: U8) -> F32:
    return _f16(b[:, :2]) * codes_of(b[:, 4:], 4, 16).astype(np.float32) + _f16(b[:, 2:4])


def _five(high: U8, low: U8) -> F32:
    """Codes 0..31 of a short block."""
    return over(bits_of(high), codes_of(low, 4, 16), 4).astype(np.float32)


def _q5_0(b: U8) -> F32:
    return _f16(b[:, :2]) * (_five(b[:, 2:6], b[:, 6:]) - 16)


def _q5_1(b: U8) -> F32:
    return _f16(b[:, :2]) * _five(b[:, 4:8], b[:, 8:]) + _f16(b[:, 2:4])


def _groups(scale: F32, codes: U8 | F32, offset: F32 | None = None) -> F32:
    """scale · code - offset, with one scale for each group of consecutive columns: [n, g], [n, 256] -> [n, 256]."""
    x = scale[:, :, None] * codes.astype(np.float32).reshape(*scale.shape, -1)
    return (x if offset is None else x - offset[:, :, None]).reshape(len(scale), -1)


def _q2_k(b: U8) -> F32:
    scale, least = _f16(b[:, 80:82]) * (b[:, :16] & 15), _f16(b[:, 82:84]) * (b[:, :16] >> 4)
    return _groups(scale, codes_of(b[:, 16:80], 2, 32), least)


def bits_k(b: U8) -> U8:
    """The high bits of Q3_K and Q5_K, bit j of byte i for column 32j + i: uint8 [n, 32] -> [n, 256] of 0 or 1."""
    return (b[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)).reshape(len(b), -1)


def _q3_k(b: U8) -> F32:
    low = codes_of(b[:, 96:104], 4, 8)  # the 16 scales' low four bits, then their high two
    scale = over(codes_of(b[:, 104:108], 2, 4), low, 4).astype(np.float32) - 32
    codes = over(bits_k(b[:, :32]), codes_of(b[:, 32:96], 2, 32), 2)
    return _groups(_f16(b[:, 108:]) * scale, codes.astype(np.float32) - 4)


def scales_k4(s: U8) -> tuple[U8, U8]:
    """The 6-bit scales and mins of Q4_K and Q5_K: uint8 [n, 12] -> two [n, 8]."""
    low, mid, high = s[:, :4], s[:, 4:8], s[:, 8:]
    scale = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], 1)
    least = np.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], 1)
    return scale, least


def _q4_k(b: U8) -> F32:
    scale, least = scales_k4(b[:, 4:16])
    return _groups(_f16(b[:, :2]) * scale, codes_of(b[:, 16:], 4, 32), _f16(b[:, 2:4]) * least)


def _q5_k(b: U8) -> F32:
    scale, least = scales_k4(b[:, 4:16])
    codes = over(bits_k(b[:, 16:48]), codes_of(b[:, 48:], 4, 32), 4)
    return _groups(_f16(b[:, :2]) * scale, codes, _f16(b[:, 2:4]) * least)


def codes_q6_k(b: U8) -> U8:
    """The 6-bit codes of Q6_K, 0..63: uint8 [n, 210] -> [n, 256]."""
    return over(codes_of(b[:, 128:192], 2, 32), codes_of(b[:, :128], 4, 64), 4)


def _q6_k(b: U8) -> F32:
    scale = _f16(b[:, 208:]) * b[:, 192:208].copy().view(np.int8).astype(np.float32)  # [n, 16]
    return _groups(scale, codes_q6_k(b).astype(np.float32) - 32)


def _iq4(codes: U8) -> F32:
    out: F32 = np.array(VALUES_IQ4, np.float32)[codes]
    return out


def _iq4_nl(b: U8) -> F32:
    return _f16(b[:, :2]) * _iq4(codes_of(b[:, 2:], 4, 16))


def _iq4_xs(b: U8) -> F32:
    low, high = codes_of(b[:, 4:8], 4, 1), codes_of(b[:, 2:4], 2, 1)  # eight scales of six bits
    scale = _f16(b[:, :2]) * (over(high, low, 4).astype(np.float32) - 32)
    return _groups(scale, _iq4(codes_of(b[:, 8:], 4, 16)))


def _mxfp4(b: U8) -> F32:
    # The scale is 2**(e - 127), halved because VALUES_MXFP4 are doubled; e = 255 is no NaN to the reference either.
    scale = np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128)
    with np.errstate(over="ignore"):
        return scale * np.array(VALUES_MXFP4, np.float32)[codes_of(b[:, 1:], 4, 16)]


FORMATS: Mapping[str, Format] = {
    f.name: f
    for f in (
        Format("F32", 0, 1, 4, _f32, "f32"),
        Format("F16", 1, 1, 2, _f16, "f16"),
        Format("BF16", 30, 1, 2, _bf16, "bf16"),
        Format("Q4_0", 2, 32, 18, _q4_0, "q4_0"),
        Format("Q4_1", 3, 32, 20, _q4_1, "q4_1"),
        Format("Q5_0", 6, 32, 22, _q5_0, "q5_0"),
        Format("Q5_1", 7, 32, 24, _q5_1, "q5_1"),
        Format("Q8_0", 8, 32, 34, _q8_0, "q8_0"),
        Format("Q2_K", 10, 256, 84, _q2_k, "q2_k"),
        Format("Q3_K", 11, 256, 110, _q3_k, "q3_k"),
        Format("Q4_K", 12, 256, 144, _q4_k, "q4_k"),
        Format("Q5_K", 13, 256, 176, _q5_k, "q5_k"),
        Format("Q6_K", 14, 256, 210, _q6_k, "q6_k"),
        Format("IQ4_NL", 20, 32, 18, _iq4_nl, "iq4_nl"),
        Format("IQ4_XS", 23, 256, 136, _iq4_xs, "iq4_xs"),
        Format("MXFP4", 39, 32, 17, _mxfp4, "mxfp4"),
    )
}

# GGML's other type numbers, so that a refusal can name the format; some were withdrawn from files long ago.
OTHERS: Mapping[int, str] = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 31: "Q4_0_4_4", 32: "Q4_0_4_8",
    33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 40: "NVFP4",
    41: "Q1_0",
}  # fmt: skip

_BY_CODE = {f.code: f for f in FORMATS.values()}


def format_by_code(code: int) -> Format | None:
    """The format of a GGML type number, or None if it is not supported."""
    return _BY_CODE.get(code)


def name_of_code(code: int) -> str:
    """What to call a GGML type number that is not supported."""
    return OTHERS.get(code, f"code {code}")


def decode(fmt: Format, raw: U8, shape: tuple[int, ...]) -> F32:
    """Raw bytes of one tensor -> float32 of `shape`."""
    return fmt.decode(raw.reshape(-1, fmt.bytes)).reshape(shape)
