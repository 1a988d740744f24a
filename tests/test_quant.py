"""The block formats, against the reference decoder bit for bit and against sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from glassbox.types import F32, U8
from glassbox.weights.gguf import Gguf
from glassbox.weights.quant import FORMATS, Format, decode, format_by_code

# Where in a block the float16 scales lie. Everything else is codes, and any byte is a code.
SCALES = {"F16": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
EDGES = (0.0, -0.0, 1.0, -1.0, 65504.0, -65504.0, 2.0**-24, -(2.0**-24), 0.333)

every_format = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)


def reference(fmt: Format, raw: U8) -> F32:
    out: F32 = dequantize(raw, GGMLQuantizationType[fmt.name])
    return out


def same_bits(a: F32, b: F32) -> bool:
    return a.dtype == b.dtype == np.float32 and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def with_scales(fmt: Format, raw: U8, scales: np.ndarray) -> U8:
    """`raw` [n, bytes] with finite float16 scales, [n], in place of random bytes (which may be NaN)."""
    raw = raw.copy()
    for i, at in enumerate(SCALES.get(fmt.name, ())):
        raw[:, at : at + 2] = np.roll(scales, i).astype("<f2")[:, None].view(np.uint8)
    if fmt.name == "F32":
        raw[:] = scales.astype("<f4")[:, None].view(np.uint8)
    return raw


def blocks(fmt: Format, fill: str) -> U8:
    """Blocks with every scale of EDGES, and codes that are random or all the same."""
    rng, n = np.random.default_rng(7), 4 * len(EDGES)
    raw = rng.integers(0, 256, (n, fmt.bytes), np.uint8)
    if fill != "random":
        raw[:] = int(fill, 16)
    return with_scales(fmt, raw, np.resize(np.array(EDGES), n))


@every_format
def test_the_table_agrees_with_the_format_s_owner(fmt: Format) -> None:
    kind = GGMLQuantizationType[fmt.name]
    assert (fmt.code, (fmt.elements, fmt.bytes)) == (kind.value, GGML_QUANT_SIZES[kind])
    assert format_by_code(fmt.code) is fmt


def test_an_unknown_code_has_no_format() -> None:
    assert format_by_code(4) is None and format_by_code(-1) is None


@pytest.mark.parametrize("fill", ["random", "00", "ff", "80", "0f"])
@every_format
def test_decode_is_the_reference_bit_for_bit(fmt: Format, fill: str) -> None:
    raw = blocks(fmt, fill)
    ours = fmt.decode(raw)
    assert ours.shape == (len(raw), fmt.elements)
    assert same_bits(ours, reference(fmt, raw).reshape(ours.shape))


@every_format
def test_any_bytes_at_all_decode_as_in_the_reference(fmt: Format) -> None:
    """Scales that are NaN or infinite included: a broken file shows the same numbers everywhere."""
    raw = np.random.default_rng(11).integers(0, 256, (2000, fmt.bytes), np.uint8)
    with np.errstate(all="ignore"):
        ours, theirs = fmt.decode(raw), reference(fmt, raw).reshape(-1, fmt.elements)
    assert np.isnan(ours).any()  # else this would test no more than the one above
    assert np.array_equal(ours, theirs, equal_nan=True)


@every_format
def test_a_block_does_not_depend_on_its_neighbours(fmt: Format) -> None:
    raw = blocks(fmt, "random")
    alone = np.concatenate([fmt.decode(raw[i : i + 1]) for i in range(len(raw))])
    assert same_bits(alone, fmt.decode(raw))


def half(*values: float) -> bytes:
    return np.array(values, "<f2").tobytes()


def one(name: str, block: bytes) -> list[float]:
    values: list[float] = FORMATS[name].decode(np.frombuffer(block, np.uint8)[None])[0].tolist()
    return values


def test_q8_0_by_hand() -> None:
    codes = np.arange(-16, 16, dtype=np.int8)
    assert one("Q8_0", half(0.5) + codes.tobytes()) == [c / 2 for c in range(-16, 16)]


def test_q4_1_by_hand() -> None:
    # byte i holds element i in its low half and element i + 16 in its high half; value = d * code + m
    packed = bytes(i | (15 - i) << 4 for i in range(16))
    wanted = [2 * i - 3 for i in range(16)] + [2 * (15 - i) - 3 for i in range(16)]
    assert one("Q4_1", half(2.0, -3.0) + packed) == wanted


def test_q5_0_by_hand() -> None:
    # the fifth bits lie together, bit i for element i: every third has it here; value = d * (code - 16)
    codes = [(i % 16) + (16 if i % 3 == 0 else 0) for i in range(32)]
    high = sum((c >> 4) << i for i, c in enumerate(codes)).to_bytes(4, "little")
    packed = bytes((codes[i] & 15) | (codes[i + 16] & 15) << 4 for i in range(16))
    assert one("Q5_0", half(-1.0) + high + packed) == [16 - c for c in codes]


def test_q4_k_by_hand() -> None:
    # eight groups of 32 with 6-bit scales and mins; the last four's two upper bits lie above the others'
    scale, least = [1, 2, 3, 63, 4, 33, 62, 63], [0, 1, 62, 63, 5, 16, 47, 63]
    packed = bytearray(12)
    for g in range(4):
        packed[g] = scale[g] | (scale[g + 4] >> 4) << 6
        packed[g + 4] = least[g] | (least[g + 4] >> 4) << 6
        packed[g + 8] = (scale[g + 4] & 15) | (least[g + 4] & 15) << 4
    codes = [[(g + i) % 16 for i in range(32)] for g in range(8)]
    nibbles = bytes(codes[g][i] | codes[g + 1][i] << 4 for g in range(0, 8, 2) for i in range(32))
    wanted = [0.5 * scale[g] * c - 2 * least[g] for g in range(8) for c in codes[g]]
    assert one("Q4_K", half(0.5, 2.0) + bytes(packed) + nibbles) == wanted


def test_q6_k_by_hand() -> None:
    # two halves of 128; element 32 * q + i of a half has its low four bits in byte i (q even) or 32 + i (odd)
    # in the low (q < 2) or high nibble, and its two high bits at bit 2 * q of byte i of the second field
    codes = [(5 * i + 3) % 64 for i in range(256)]
    scales = [s - 8 for s in range(16)]
    low, high = bytearray(128), bytearray(64)
    for n, c in enumerate(codes):
        h, q, i = n // 128, n % 128 // 32, n % 32
        low[64 * h + 32 * (q % 2) + i] |= (c & 15) << (4 if q > 1 else 0)
        high[32 * h + i] |= (c >> 4) << 2 * q
    block = bytes(low) + bytes(high) + np.array(scales, np.int8).tobytes() + half(0.25)
    assert one("Q6_K", block) == [0.25 * scales[n // 16] * (c - 32) for n, c in enumerate(codes)]


def test_decode_gives_the_tensor_its_shape() -> None:
    raw = np.concatenate([np.frombuffer(half(1.0) + bytes([i] * 32), np.uint8) for i in range(6)])
    out = decode(FORMATS["Q8_0"], raw, (2, 96))
    assert out.shape == (2, 96) and out[1, 31] == 3 and out[1, 32] == 4 and out[0, 0] == 0


def test_decode_leaves_its_input_alone() -> None:
    for fmt in FORMATS.values():
        raw = blocks(fmt, "random")
        before = raw.copy()
        raw.flags.writeable = False  # as the bytes of a mapped file are
        fmt.decode(raw)
        assert np.array_equal(raw, before)


@pytest.mark.model
def test_a_real_tensor_of_each_format(smollm2_gguf: Gguf) -> None:
    first = {t.format.name: t for t in reversed(smollm2_gguf.tensors.values())}
    assert {"F32", "Q4_1"} <= set(first)
    for t in first.values():
        raw = smollm2_gguf.raw(t.name)[: 500 * t.format.bytes].reshape(-1, t.format.bytes)
        assert same_bits(t.format.decode(raw), reference(t.format, raw).reshape(-1, t.format.elements))
