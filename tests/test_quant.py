"""The block formats, against the reference decoder bit for bit and against sums done by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from format_blocks import FILLS, blocks, reference, same_bits
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf_writer import build, tensor

import glassbox
from glassbox.errors import ModelFormatError, Unsupported
from glassbox.weights.gguf import Gguf
from glassbox.weights.quant import FORMATS, Format, decode, format_by_code, name_of_code

every_format = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)


@every_format
def test_the_table_agrees_with_the_format_s_owner(fmt: Format) -> None:
    kind = GGMLQuantizationType[fmt.name]
    assert (fmt.code, (fmt.elements, fmt.bytes)) == (kind.value, GGML_QUANT_SIZES[kind])
    assert format_by_code(fmt.code) is fmt


def test_an_unknown_code_has_no_format() -> None:
    assert format_by_code(4) is None and format_by_code(-1) is None


@pytest.mark.parametrize("kind", [k for k in GGMLQuantizationType if k.name not in FORMATS], ids=lambda k: k.name)
def test_other_formats_are_refused_by_name(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([], [tensor("t", [256], kind.value)], bytes(4096)))
    # A file of blocks whose size is known can be opened, to be shown; no file of another format can be loaded.
    with pytest.raises((ModelFormatError, Unsupported), match=rf"\bt\b.*{kind.name}\b.* is not supported"):
        glassbox.load(path)


@pytest.mark.parametrize(("code", "name"), [(4, "Q4_2"), (31, "Q4_0_4_4"), (38, "IQ4_NL_8_8"), (99, "code 99")])
def test_numbers_that_were_withdrawn_or_never_given(code: int, name: str) -> None:
    assert name_of_code(code) == name


@pytest.mark.parametrize("fill", FILLS)
@every_format
def test_decode_is_the_reference_bit_for_bit(fmt: Format, fill: str) -> None:
    raw = blocks(fmt, fill)
    ours = fmt.decode(raw)
    assert ours.shape == (len(raw), fmt.elements)
    assert same_bits(ours, reference(fmt, raw))


@every_format
def test_any_bytes_at_all_decode_as_in_the_reference(fmt: Format) -> None:
    """Scales that are NaN or infinite included: a broken file shows the same numbers everywhere."""
    raw = np.random.default_rng(11).integers(0, 256, (2000, fmt.bytes), np.uint8)
    with np.errstate(all="ignore"):
        ours, theirs = fmt.decode(raw), reference(fmt, raw)
    assert not np.isfinite(ours).all()  # else this would test no more than the one above
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


def test_q4_0_by_hand() -> None:
    packed = bytes(i | (15 - i) << 4 for i in range(16))
    assert one("Q4_0", half(0.5) + packed) == [(i - 8) / 2 for i in range(16)] + [(7 - i) / 2 for i in range(16)]


def test_q5_1_by_hand() -> None:
    codes = [(i % 16) + (16 if i % 3 == 0 else 0) for i in range(32)]
    high = sum((c >> 4) << i for i, c in enumerate(codes)).to_bytes(4, "little")
    packed = bytes((codes[i] & 15) | (codes[i + 16] & 15) << 4 for i in range(16))
    assert one("Q5_1", half(2.0, 1.5) + high + packed) == [2 * c + 1.5 for c in codes]


def two_bits(codes: list[int]) -> bytes:
    """Two halves of 128; element 32 * q + i of a half is at bit 2 * q of byte i."""
    packed = bytearray(64)
    for n, c in enumerate(codes):
        packed[32 * (n // 128) + n % 32] |= c << 2 * (n % 128 // 32)
    return bytes(packed)


def one_bit(codes: list[int]) -> bytes:
    """Element 32 * q + i is bit q of byte i."""
    packed = bytearray(32)
    for n, c in enumerate(codes):
        packed[n % 32] |= c << n // 32
    return bytes(packed)


def test_q2_k_by_hand() -> None:
    codes, scale, least = [(n + n // 16) % 4 for n in range(256)], list(range(16)), [(5 * g) % 16 for g in range(16)]
    head = bytes(s | m << 4 for s, m in zip(scale, least, strict=True))
    wanted = [0.5 * scale[n // 16] * c - 3 * least[n // 16] for n, c in enumerate(codes)]
    assert one("Q2_K", head + two_bits(codes) + half(0.5, 3.0)) == wanted


def test_q3_k_by_hand() -> None:
    # scales of six bits: the low four of 0 … 7 in the lower halves of eight bytes, of 8 … 15 in the upper ones; the
    # high two at bit 2 * (s // 4) of byte s % 4 of four more. The code's third bit stands apart.
    codes = [(n + n // 16) % 8 for n in range(256)]
    scale = [0, 63, 32, 31, 1, 16, 48, 47, 15, 62, 33, 30, 2, 17, 49, 46]
    packed = bytearray(12)
    for s, v in enumerate(scale):
        packed[s % 8] |= (v & 15) << 4 * (s // 8)
        packed[8 + s % 4] |= (v >> 4) << 2 * (s // 4)
    block = one_bit([c >> 2 for c in codes]) + two_bits([c & 3 for c in codes]) + bytes(packed) + half(0.25)
    assert one("Q3_K", block) == [0.25 * (scale[n // 16] - 32) * (c - 4) for n, c in enumerate(codes)]


def test_q5_k_by_hand() -> None:
    # all scales and mins 1, which leaves the packing of these to Q4_K's test; nibbles of two groups lie together
    codes = [(n + n // 32) % 32 for n in range(256)]
    nibbles = bytes((codes[64 * p + i] & 15) | (codes[64 * p + 32 + i] & 15) << 4 for p in range(4) for i in range(32))
    block = half(0.5, 2.0) + bytes([1] * 8 + [0x11] * 4) + one_bit([c >> 4 for c in codes]) + nibbles
    assert one("Q5_K", block) == [0.5 * c - 2 for c in codes]


def test_bf16_is_the_upper_half_of_a_float32() -> None:
    for value in (1.0, -2.5, 3.0e38, 1e-40):
        upper = np.array([value], "<f4").tobytes()[2:]
        assert one("BF16", upper) == np.frombuffer(b"\0\0" + upper, "<f4").tolist()


def test_mxfp4_by_hand() -> None:
    # the Open Compute Project's microscaling formats 1.0: e2m1 codes times 2**(e - 127)
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values += [-v for v in values]
    packed = bytes(i | (15 - i) << 4 for i in range(16))
    for e in (100, 127, 130):
        assert one("MXFP4", bytes([e]) + packed) == [2.0 ** (e - 127) * v for v in values + values[::-1]]


def test_mxfp4_has_every_shared_exponent() -> None:
    fmt = FORMATS["MXFP4"]
    raw = np.array([[e, *(i * 0x11 for i in range(16))] for e in range(256)], np.uint8)
    assert same_bits(fmt.decode(raw), reference(fmt, raw))


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
        assert same_bits(t.format.decode(raw), reference(t.format, raw))
