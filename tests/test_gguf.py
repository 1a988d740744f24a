"""The GGUF reader: what sound files mean, and that no faulty file gets more than a typed refusal."""

from __future__ import annotations

import math
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf_cases import ALIGN, BAD, GOOD, MAX64, align
from gguf_writer import ARRAY, BOOL, F32, INT32, Q8_0, STRING, UINT8, array, build, kv, tensor, text, u32
from hypothesis import given, settings
from hypothesis import strategies as st

from glassbox.errors import GlassboxError, ModelFormatError, ModelNotFound
from glassbox.weights import header
from glassbox.weights.gguf import Gguf, read_gguf


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[bytes], Gguf]:
    def write_and_read(raw: bytes) -> Gguf:
        path = tmp_path / "m.gguf"
        path.write_bytes(raw)
        return read_gguf(path)

    return write_and_read


# What the reference implementation's test (test-gguf.cpp) makes by hand; a dimension of 0 it takes, C11-01 does not.
THEIRS = {
    "HEADER": "BAD_MAGIC BAD_VERSION_0 BAD_VERSION_1 BAD_VERSION_FUTURE BAD_N_TENSORS BAD_N_KV",
    "KV": "BAD_KEY_SIZE EMPTY_KEY BAD_TYPE DUPLICATE_KEY BAD_ALIGN WRONG_TYPE_ALIGN",
    "TENSORS": "BAD_NAME_SIZE BAD_N_DIMS BAD_SHAPE ZERO_DIM NE_TOO_BIG NBYTES_TOO_BIG NBYTES_PAD_WRAP BAD_TYPE "
    "BAD_OFFSET DUPLICATE_NAME BAD_ALIGN INCONSISTENT_ALIGN",
    "DATA": "NOT_ENOUGH_DATA BAD_ALIGN INCONSISTENT_ALIGN MEM_SIZE_OVERFLOW",
}


def test_every_faulty_file_of_the_reference_is_here() -> None:
    theirs = {f"{part}_{name}" for part, names in THEIRS.items() for name in names.split()}
    assert len(theirs) == 28 and theirs == {name for name in BAD if name.isupper()}


@pytest.mark.parametrize("name", BAD)
def test_a_faulty_file_is_refused_quickly_by_field_and_offset(opened: Callable[[bytes], Gguf], name: str) -> None:
    raw, field, offset = BAD[name]
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        with pytest.raises(ModelFormatError) as caught:
            opened(raw)
        took, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    e = caught.value
    assert (e.field, e.offset) == (field, offset) or (e.field.startswith(field + " ") and e.offset == offset)
    assert e.path.endswith("m.gguf") and "\n" not in str(e)
    assert took < 0.5 and peak < 2_000_000


@pytest.mark.parametrize(
    ("name", "words"), [("big_endian", "big-endian"), ("git_lfs_pointer", "Git LFS"), ("empty", "is empty")]
)
def test_a_common_mistake_is_called_by_its_name(opened: Callable[[bytes], Gguf], name: str, words: str) -> None:
    with pytest.raises(ModelFormatError, match=words):
        opened(BAD[name][0])


@pytest.mark.parametrize("name", GOOD)
def test_an_unusual_file_is_accepted(opened: Callable[[bytes], Gguf], name: str) -> None:
    g = opened(GOOD[name])
    for t in g.tensors.values():
        assert len(g.raw(t.name)) == t.nbytes == math.prod(t.shape) // t.format.elements * t.format.bytes


def everything() -> bytes:
    """A small sound file with a bit of each: every kind of value, two tensors of different formats."""
    kvs = [
        kv("general.architecture", STRING, text("llama")),
        align(16),
        kv("b", BOOL, b"\1"),
        kv("tokens", ARRAY, array(STRING, text("a"), text("é"), text(""))),
        kv("bytes", ARRAY, array(UINT8, b"\1", b"\2", b"\3")),
        kv("deep", ARRAY, array(ARRAY, array(INT32, u32(5)), array(BOOL, b"\0"))),
    ]
    tensors = [tensor("q", [32, 2], Q8_0), tensor("norm", [3], F32, offset=80)]
    data = bytes(range(68)) + bytes(12) + np.array([1, 2, 3], "<f4").tobytes()
    return build(kvs, tensors, data, align=16)


def test_every_value_means_what_was_written(opened: Callable[[bytes], Gguf]) -> None:
    g = opened(everything())
    assert g.metadata == {
        "general.architecture": "llama",
        ALIGN: 16,
        "b": True,
        "tokens": ["a", "é", ""],
        "bytes": [1, 2, 3],
        "deep": [[5], [False]],
    }
    assert type(g.metadata["b"]) is bool and type(g.metadata["bytes"][0]) is int
    q, norm = g.tensors["q"], g.tensors["norm"]
    assert (q.shape, q.format.name, q.nbytes) == ((2, 32), "Q8_0", 68)
    assert g.raw("q").tobytes() == bytes(range(68))
    assert (norm.shape, norm.offset % 16) == ((3,), 0)
    assert g.raw("norm").view("<f4").tolist() == [1, 2, 3]
    assert repr(g) == "<Gguf m.gguf: 6 keys, 2 tensors>"


@pytest.mark.parametrize(
    ("kvs", "counts", "field", "offset"),
    [
        ([kv("ab", STRING, text("", length=1 << 30))], {}, "ab", 38),
        ([kv("ab", ARRAY, array(UINT8, count=1 << 34))], {}, "ab", 42),
        ([kv("ab", ARRAY, array(STRING, count=9 << 20))], {}, "ab", 42),
        # Two of 5 Mi items each: together too many. The first has its bytes, 24 + 26 of header before them.
        ([kv("ab", ARRAY, array(UINT8, count=5 << 20)) + bytes(5 << 20), kv("cd", ARRAY, array(UINT8, count=5 << 20))],
         {}, "cd", 50 + (5 << 20) + 18),
        ([], {"n_kv": (1 << 20) + 1}, "metadata count", 16),
        ([], {"n_tensors": (1 << 20) + 1}, "tensor count", 8),
    ],
)  # fmt: skip
def test_a_header_too_large_is_refused_before_it_is_read(
    tmp_path: Path, kvs: list[bytes], counts: dict[str, int], field: str, offset: int
) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(build(kvs, **counts))
    os.truncate(path, 17 << 30)
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        with pytest.raises(ModelFormatError, match="limit of") as caught:
            read_gguf(path)
        took, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (caught.value.field, caught.value.offset) == (field, offset)
    assert took < 1 and peak < 100_000_000


def test_a_header_is_bounded_as_a_whole(opened: Callable[[bytes], Gguf], monkeypatch: pytest.MonkeyPatch) -> None:
    kvs = [kv(f"k{i}", STRING, text("x" * 300)) for i in range(9)]
    monkeypatch.setattr(header, "MAX_HEADER", len(build(kvs)))
    assert len(opened(build(kvs)).metadata) == 9
    monkeypatch.setattr(header, "MAX_HEADER", len(build(kvs)) - 1)
    with pytest.raises(ModelFormatError, match=r"a header of more than .* is refused") as caught:
        opened(build(kvs))
    assert caught.value.field == "k8"


def test_truncated_anywhere_it_is_refused(opened: Callable[[bytes], Gguf]) -> None:
    raw = everything()
    for n in range(len(raw)):
        with pytest.raises(ModelFormatError) as caught:
            opened(raw[:n])
        assert caught.value.offset is not None and caught.value.offset <= n


@pytest.mark.parametrize("left", [0, 100, -4, -30])
def test_cut_short_after_it_was_opened_it_says_so(opened: Callable[[bytes], Gguf], left: int) -> None:
    """It was mapped once: then this killed the process (SIGBUS)."""
    g = opened(everything())
    os.truncate(g.path, left % len(everything()))
    with pytest.raises(ModelFormatError, match=r"norm data at byte .*: was truncated while being read"):
        g.raw("norm")


def test_cut_short_while_the_header_is_read_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([kv("tokens", ARRAY, array(STRING, *[text("x" * 99)] * 9000))]))
    whole, seen = header.Header.load, []

    def load(self: header.Header, end: int, field: str) -> None:
        seen.append(end)
        if len(seen) == 2:
            os.truncate(path, 300_000)
        whole(self, end, field)

    monkeypatch.setattr(header.Header, "load", load)
    with pytest.raises(ModelFormatError, match=r"tokens.* at byte 300000: was truncated while being read"):
        read_gguf(path)
    assert len(seen) > 1, "it must be longer than one piece for this test to mean anything"


def test_any_part_of_a_tensor_can_be_read(opened: Callable[[bytes], Gguf]) -> None:
    into = np.zeros(5, np.uint8)
    opened(everything()).read("q", 60, into)
    assert into.tolist() == [60, 61, 62, 63, 64]


SIZE = len(everything())


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_never_escape_the_error_tree(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    raw = bytearray(everything())
    for at, value in flips:
        raw[at] = value
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(raw)
    try:
        g = read_gguf(path)
    except GlassboxError as e:
        assert "\n" not in str(e)
    else:
        for t in g.tensors.values():
            assert len(g.raw(t.name)) == t.nbytes


def test_names_from_the_file_cannot_paint_the_terminal(opened: Callable[[bytes], Gguf]) -> None:
    with pytest.raises(ModelFormatError) as caught:
        opened(build([kv("a\n\x1b[31m" + "x" * 5000, 99, b"\0")]))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


def test_what_is_no_file_is_named_as_such(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening one would wait for a writer for ever
    for path, words in (
        (tmp_path, "directory"),
        (tmp_path / "none.gguf", "no such file"),
        (tmp_path / "pipe", "pipe"),
        (tmp_path / ("n" * 300), "name too long"),
        (tmp_path / "a\0b", "cannot be read"),
    ):
        with pytest.raises(ModelNotFound, match="(?i)" + words):
            read_gguf(path)


# ---- against the public implementation


def test_it_reads_what_the_public_writer_writes(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "w.gguf", "llama")
    values: dict[str, Any] = {
        "uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000, "uint32": 1 << 31, "int32": -(1 << 31),
        "uint64": MAX64, "int64": -(1 << 63), "float32": 0.5, "float64": 0.1, "bool": False,
        "string": "héllo\n",
    }  # fmt: skip
    for name, value in values.items():
        getattr(writer, f"add_{name}")(f"x.{name}", value)
    writer.add_array("x.strings", ["a", "", "日本"])
    writer.add_array("x.floats", [0.5, -1.0])
    weights = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(5, dtype=np.float16)}
    for name, w in weights.items():
        writer.add_tensor(name, w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    g = read_gguf(tmp_path / "w.gguf")
    wanted = {f"x.{name}": value for name, value in values.items()}
    wanted |= {"x.strings": ["a", "", "日本"], "x.floats": [0.5, -1.0], "general.architecture": "llama"}
    assert g.metadata == wanted
    assert list(g.tensors) == ["a", "b"]
    for name, w in weights.items():
        assert g.tensors[name].shape == w.shape
        assert np.array_equal(g.raw(name).view(w.dtype).reshape(w.shape), w)


@pytest.mark.model
@pytest.mark.slow
def test_a_real_model_reads_as_in_the_public_reader(smollm2_gguf: Gguf) -> None:
    theirs = GGUFReader(smollm2_gguf.path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert smollm2_gguf.metadata == fields
    assert list(smollm2_gguf.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        ours = smollm2_gguf.tensors[t.name]
        assert (ours.format.code, ours.offset) == (t.tensor_type.value, t.data_offset)
        assert (ours.shape, ours.nbytes) == (tuple(int(d) for d in reversed(t.shape)), t.n_bytes)
    last = theirs.tensors[-1]
    assert smollm2_gguf.raw(last.name).tobytes() == last.data.tobytes()
