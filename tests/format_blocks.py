"""Blocks of every format with the scales and codes where decoders go wrong, and the reference decoder."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from glassbox.types import F32, U8
from glassbox.weights.quant import Format

# Where in a block the float16 scales lie. Everything else is codes, and any byte is a code.
SCALES = {
    "F16": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
EDGES = (0.0, -0.0, 1.0, -1.0, 65504.0, -65504.0, 2.0**-24, -(2.0**-24), 0.333)
FILLS = ["random", "00", "ff", "80", "0f"]


def reference(fmt: Format, raw: U8) -> F32:
    """uint8 [n, bytes] -> float32 [n, elements], as the format's owner decodes it."""
    with np.errstate(all="ignore"):
        out: F32 = dequantize(raw, GGMLQuantizationType[fmt.name])
    return out.reshape(len(raw), fmt.elements)


def same_bits(a: F32, b: F32) -> bool:
    return a.dtype == b.dtype == np.float32 and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def with_scales(fmt: Format, raw: U8, scales: np.ndarray) -> U8:
    """`raw` [n, bytes] with finite scales, [n], in place of random bytes (which may be NaN)."""
    raw = raw.copy()
    for i, at in enumerate(SCALES.get(fmt.name, ())):
        raw[:, at : at + 2] = np.roll(scales, i).astype("<f2")[:, None].view(np.uint8)
    if fmt.name in ("F32", "BF16"):
        raw[:] = scales.astype("<f4")[:, None].view(np.uint8)[:, 4 - fmt.bytes :]
    return raw


def blocks(fmt: Format, fill: str, n: int = 4 * len(EDGES)) -> U8:
    """Blocks with every scale of EDGES, and codes that are random or all the same."""
    raw = np.random.default_rng(7).integers(0, 256, (n, fmt.bytes), np.uint8)
    if fill != "random":
        raw[:] = int(fill, 16)
    return with_scales(fmt, raw, np.resize(np.array(EDGES), n))
