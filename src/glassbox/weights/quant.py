"""The block formats of GGUF as one table: how large a block is, how it decodes, how kernels lay it out.

`decode` is the slow, plain definition (numpy, float32, the order of operations of the reference decoder); the
kernels stream a repacked layout and are tested against it. Formats are described in ggml's ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from glassbox.types import F32, U8

Decoder = Callable[[U8], F32]  # uint8 [blocks, bytes] -> float32 [blocks, elements]


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


def _nibbles(b: U8) -> F32:
    """uint8 [n, 16k] of paired nibbles -> [n, 32k]: of each 16 bytes the low nibbles first, then the high."""
    b = b.reshape(len(b), -1, 16)
    return np.concatenate([b & 15, b >> 4], 2).reshape(len(b), -1).astype(np.float32)


def _f32(b: U8) -> F32:
    return b.copy().view("<f4").astype(np.float32)


def _q8_0(b: U8) -> F32:
    return _f16(b[:, :2]) * b[:, 2:].copy().view(np.int8).astype(np.float32)


def _q4_1(b: U8) -> F32:
    return _f16(b[:, :2]) * _nibbles(b[:, 4:]) + _f16(b[:, 2:4])


def _q5_0(b: U8) -> F32:
    high = np.unpackbits(b[:, 2:6], axis=1, bitorder="little").astype(np.float32) * 16
    return _f16(b[:, :2]) * (_nibbles(b[:, 6:]) + high - 16)


def scales_k4(s: U8) -> tuple[U8, U8]:
    """The 6-bit scales and mins of Q4_K and Q5_K: uint8 [n, 12] -> two [n, 8]."""
    low, mid, high = s[:, :4], s[:, 4:8], s[:, 8:]
    scale = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], 1)
    least = np.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], 1)
    return scale, least


def _q4_k(b: U8) -> F32:
    scale, least = scales_k4(b[:, 4:16])
    d, dmin = _f16(b[:, :2]) * scale, _f16(b[:, 2:4]) * least  # [n, 8]
    pairs = b[:, 16:].reshape(-1, 4, 1, 32)
    q = np.concatenate([pairs & 15, pairs >> 4], 2).reshape(-1, 8, 32).astype(np.float32)
    return (d[:, :, None] * q - dmin[:, :, None]).reshape(-1, 256)


def codes_q6_k(b: U8) -> U8:
    """The 6-bit codes of Q6_K, 0..63: uint8 [n, 210] -> [n, 256]."""
    low, high = b[:, :128].reshape(-1, 2, 1, 64), b[:, 128:192].reshape(-1, 2, 1, 32)
    four = np.concatenate([low & 15, low >> 4], 2).reshape(-1, 2, 4, 32)
    two = np.concatenate([high >> s & 3 for s in (0, 2, 4, 6)], 2)
    out: U8 = (four | two << 4).reshape(-1, 256)
    return out


def _q6_k(b: U8) -> F32:
    scale = _f16(b[:, 208:]) * b[:, 192:208].copy().view(np.int8).astype(np.float32)  # [n, 16]
    q = codes_q6_k(b).astype(np.float32).reshape(-1, 16, 16) - 32
    return (scale[:, :, None] * q).reshape(-1, 256)


FORMATS: Mapping[str, Format] = {
    f.name: f
    for f in (
        Format("F32", 0, 1, 4, _f32, "f32"),
        Format("F16", 1, 1, 2, _f16, "f16"),
        Format("Q4_1", 3, 32, 20, _q4_1, "q4_1"),
        Format("Q5_0", 6, 32, 22, _q5_0, "q5_0"),
        Format("Q8_0", 8, 32, 34, _q8_0, "q8_0"),
        Format("Q4_K", 12, 256, 144, _q4_k, "q4_k"),
        Format("Q6_K", 14, 256, 210, _q6_k, "q6_k"),
    )
}

_BY_CODE = {f.code: f for f in FORMATS.values()}


def format_by_code(code: int) -> Format | None:
    """The format of a GGML type number, or None if it is unknown."""
    return _BY_CODE.get(code)


def decode(fmt: Format, raw: U8, shape: tuple[int, ...]) -> F32:
    """Raw bytes of one tensor -> float32 of `shape`."""
    return fmt.decode(raw.reshape(-1, fmt.bytes)).reshape(shape)
