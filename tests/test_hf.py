"""Folders with config.json and safetensors: what sound ones mean, and that no faulty one gets more than a refusal."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from safetensors import SafetensorError
from safetensors_cases import BAD, GOOD
from safetensors_writer import build, entry, folder, tensors

from glassbox.errors import GlassboxError, ModelFormatError, ModelNotFound, Unsupported
from glassbox.provenance import model_digest
from glassbox.weights.checkpoint import Checkpoint, OpenFile
from glassbox.weights.hf import Folder, eos_ids, read_folder
from glassbox.weights.opening import open_checkpoint
from glassbox.weights.safetensors import read_safetensors

CONFIG = {"model_type": "llama", "eos_token_id": 2}
ONE = tensors({"t": np.array([1.5, -2], np.float32)})
RNG = np.random.default_rng(3)


def sharded(path: Path, **more: Any) -> Path:
    """Three tensors in two files. `more`: files in place of those, None to leave one out."""
    arrays = {n: RNG.standard_normal((2, 3)).astype(np.float32) for n in ("a", "b", "c")}
    one, two = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    files: dict[str, Any] = {
        "config.json": CONFIG,
        "model.safetensors.index.json": {"metadata": {"total_size": 72}, "weight_map": {"a": one, "b": two, "c": one}},
        one: tensors({"a": arrays["a"], "c": arrays["c"]}),
        two: tensors({"b": arrays["b"]}),
    }
    return folder(path, {k: v for k, v in (files | more).items() if v is not None})


def refused(path: Path, kind: type[GlassboxError] = ModelFormatError) -> Any:
    """The error, which must come at once and cost nothing."""
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        with pytest.raises(kind) as caught:
            open_checkpoint(path)
        took, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert took < 0.5 and peak < 50_000_000
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000
    return caught.value


@pytest.mark.parametrize("name", BAD)
def test_a_faulty_file_is_refused_quickly_by_field_and_offset(tmp_path: Path, name: str) -> None:
    raw, field, offset = BAD[name]
    e = refused(folder(tmp_path / "m", {"config.json": CONFIG, "model.safetensors": raw}))
    assert (e.field, e.offset) == (field, offset)
    assert e.path == str(tmp_path / "m" / "model.safetensors")


# What the public reader lets through: two readers that see two different files are a way to hide one.
LENIENT = ("a_key_too_many", "nine_dimensions", "a_name_twice", "a_name_twice_by_an_escape")


@pytest.mark.parametrize("name", [name for name in BAD if name not in LENIENT])
def test_the_public_reader_refuses_the_same(name: str) -> None:
    with pytest.raises(SafetensorError):
        safetensors.deserialize(BAD[name][0])


@pytest.mark.parametrize("name", GOOD)
def test_an_unusual_file_is_accepted(tmp_path: Path, name: str) -> None:
    f = read_folder(folder(tmp_path / "m", {"config.json": CONFIG, "model.safetensors": GOOD[name]}))
    for t in f.tensors.values():
        assert len(f.raw(t.name)) == t.nbytes == math.prod(t.shape) // t.format.elements * t.format.bytes


def test_truncated_anywhere_it_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"config.json": CONFIG})
    for n in range(len(ONE)):
        (path / "model.safetensors").write_bytes(ONE[:n])
        with pytest.raises(ModelFormatError) as caught:
            read_folder(path)
        assert caught.value.offset is not None and caught.value.offset <= n + 8


def test_it_reads_what_the_public_writer_writes(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "model.embed.weight": RNG.standard_normal((5, 8)).astype(np.float32),
        "half": RNG.standard_normal((3, 2, 2)).astype(np.float16),
        "ids": np.arange(7, dtype=np.int64),
        "mask": np.array([True, False]),
        "none": np.empty((0, 4), np.float32),
        "one": np.array(2.5, np.float32),
    }
    path = folder(tmp_path / "m", {"config.json": CONFIG, "generation_config.json": {"eos_token_id": [2, 7]}})
    safetensors.numpy.save_file(arrays, path / "model.safetensors", {"format": "pt"})
    f = read_folder(path)
    face: Checkpoint = f
    assert set(face.tensors) == set(arrays) and f.notes == {"format": "pt"}
    for name, a in arrays.items():
        t = f.tensors[name]
        assert t.shape == a.shape and t.name == name
        assert np.array_equal(f.raw(name).view(a.dtype).reshape(a.shape), a)
    assert [f.tensors[n].format.name for n in ("half", "ids", "mask")] == ["F16", "I64", "BOOL"]
    into = np.zeros(4, np.uint8)
    f.read("model.embed.weight", 36, into)
    assert into.view(np.float32)[0] == arrays["model.embed.weight"].ravel()[9]
    assert (face.metadata, face.config, eos_ids(f)) == ({}, CONFIG, (2, 7))
    assert face.path == path and repr(f) == "<Folder m: 6 tensors in 1 files>"


def test_shards_are_one_model(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m")
    f = read_folder(path)
    for name, home in (("a", "1"), ("b", "2"), ("c", "1")):
        theirs = safetensors.numpy.load_file(path / f"model-0000{home}-of-00002.safetensors")[name]
        assert np.array_equal(f.raw(name).view(np.float32).reshape(2, 3), theirs)
    assert {p.name for p in f.files} == set(os.listdir(path))


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    "name",
    ["../m2.safetensors", "/etc/x.safetensors", "..\\x.safetensors", "a/b.safetensors", "c:x.safetensors", "..", "",
     "model.bin", "a\0.safetensors", "config.json"],
)  # fmt: skip
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    (tmp_path / "m2.safetensors").write_bytes(ONE)
    e = refused(sharded(tmp_path / "m", **{INDEX: {"weight_map": {"a": name}}}))
    assert e.field == "weight_map a" and "in this folder" in e.why


@pytest.mark.parametrize(
    ("index", "field", "words"),
    [
        ({}, "weight_map", "object of file names"),
        ({"weight_map": {}}, "weight_map", "object of file names"),
        ({"weight_map": {"a": 1}}, "weight_map", "object of file names"),
        ([], INDEX, "must be an object"),
        (b"{", INDEX, "not JSON"),
        (b'{"weight_map":{"a":"x","a":"y"}}', INDEX, "'a' stands twice"),
        (b"[" * 100_000, INDEX, "nests too deep"),
        ({"weight_map": {"a": "model-00001-of-00002.safetensors"}}, "c", "is in this file, but"),
        ({"weight_map": dict.fromkeys("acz", "model-00001-of-00002.safetensors")}, "z", "is not in this file"),
    ],
)
def test_a_faulty_index(tmp_path: Path, index: Any, field: str, words: str) -> None:
    e = refused(sharded(tmp_path / "m", **{INDEX: index}))
    assert e.field == field and words in e.why and e.offset is not None


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    e = refused(sharded(tmp_path / "m", **{"model-00002-of-00002.safetensors": None}), ModelNotFound)
    assert "model-00002-of-00002.safetensors" in str(e) and "no such file" in str(e)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    twice = tensors({n: np.zeros(2, np.float32) for n in "ab"})
    e = refused(sharded(tmp_path / "m", **{"model-00002-of-00002.safetensors": twice}))
    assert e.field == "a" and e.path.endswith("00002-of-00002.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "generation_config.json"])
def test_links_may_not_lead_out(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path / "m", {"config.json": CONFIG, "generation_config.json": {}, "model.safetensors": ONE})
    os.rename(path / name, tmp_path / "elsewhere")
    for to in (tmp_path / "elsewhere", Path("../elsewhere")):
        (path / name).symlink_to(to)
        assert "leads out of the folder" in str(refused(path, ModelNotFound))
        (path / name).unlink()
    (path / name).symlink_to(name)  # to itself
    refused(path, ModelNotFound)


def test_links_of_the_hubs_cache_are_what_it_is_made_of(tmp_path: Path) -> None:
    blobs, path = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "c0ffee"
    blobs.mkdir(parents=True)
    path.mkdir(parents=True)
    for name, data in (("config.json", json.dumps(CONFIG).encode()), ("model.safetensors", ONE)):
        (blobs / f"hash-{name}").write_bytes(data)
        (path / name).symlink_to(f"../../blobs/hash-{name}")
    (tmp_path / "link").symlink_to(path)
    for way in (path, tmp_path / "link"):  # the folder itself may be a link: it was asked for
        assert read_folder(way).raw("t").view(np.float32).tolist() == [1.5, -2]


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"config.json": CONFIG})
    os.mkfifo(path / "model.safetensors")
    assert "a pipe" in str(refused(path, ModelNotFound))
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").mkdir()
    assert "is a directory" in str(refused(path, ModelNotFound))


@pytest.mark.parametrize(
    ("config", "words"),
    [(b"", "not JSON"), (b"[]", "must be an object"), (b"{}", "says nothing"), (b'{"a":1,"a":2}', "'a' stands twice"),
     (b'{"a":' * 100_000, "nests too deep"), (b"\xff", "not UTF-8"), (b'{"a":"\x01"}', "not JSON")],
)  # fmt: skip
def test_a_faulty_config(tmp_path: Path, config: bytes, words: str) -> None:
    e = refused(folder(tmp_path / "m", {"config.json": config, "model.safetensors": ONE}))
    assert words in e.why and e.path.endswith("config.json") and e.offset is not None


def test_cut_short_after_it_was_opened_it_says_so(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"config.json": CONFIG, "model.safetensors": ONE})
    f = read_folder(path)
    os.truncate(path / "model.safetensors", len(ONE) - 3)
    with pytest.raises(ModelFormatError, match=r"t data at byte .*: was truncated while being read"):
        f.raw("t")


@pytest.mark.parametrize(
    ("files", "kind", "words"),
    [
        ({}, ModelNotFound, "without model.safetensors"),
        ({"model.safetensors": ONE}, ModelNotFound, "holds no config.json"),
        ({"config.json": CONFIG, "pytorch_model.bin": b"PK"}, Unsupported, r"PyTorch pickle \(pytorch_model.bin\)"),
        ({"config.json": CONFIG, "consolidated.00.pth": b"PK"}, Unsupported, "PyTorch pickle"),
        ({"config.json": CONFIG, "tf_model.h5": b""}, Unsupported, "Keras HDF5"),
        ({"config.json": CONFIG, "m.Q8_0.gguf": b""}, ModelNotFound, "holds m.Q8_0.gguf: name the file"),
        ({"config.json": CONFIG, "gptq.safetensors": ONE}, ModelNotFound, "holds gptq.safetensors, but neither"),
        ({"adapter_config.json": {}, "adapter_model.safetensors": ONE}, Unsupported, "LoRA adapter"),
        ({"config.json": CONFIG, "model.safetensors": ONE, "adapter_config.json": {}}, Unsupported, "LoRA adapter"),
        ({"config.json": CONFIG, "model.safetensors": tensors({}, {"format": "tf"})}, Unsupported, "framework 'tf'"),
    ],
)
def test_what_is_no_such_folder_is_called_by_its_name(
    tmp_path: Path, files: dict[str, Any], kind: type[GlassboxError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        open_checkpoint(folder(tmp_path / "m", files))


def test_a_digest_is_over_config_and_weights(tmp_path: Path) -> None:
    """The sha256 of what `sha256sum` prints for the files, and of nothing else in the folder."""
    path = sharded(tmp_path / "m")
    one = model_digest(read_folder(path).files)
    command = "LC_ALL=C; export LC_ALL; sha256sum config.json model* | sha256sum"
    theirs = subprocess.run(command, shell=True, cwd=path, capture_output=True, check=True, text=True).stdout
    assert one == theirs.split()[0]
    (path / "README.md").write_text("hello")
    assert model_digest(read_folder(path).files) == one
    (path / "config.json").write_text(json.dumps(CONFIG | {"x": 1}))
    assert model_digest(read_folder(path).files) != one


def test_a_large_header_is_read_soon(tmp_path: Path) -> None:
    """20,000 tensors: a model of experts in one file."""
    names = [f"model.layers.{i // 500}.mlp.experts.{i % 500}.down_proj.weight" for i in range(20_000)]
    raw = build({n: entry("F32", [1], 4 * i, 4 * i + 4) for i, n in enumerate(names)}, bytes(80_000))
    (tmp_path / "m").write_bytes(raw)
    begin = time.perf_counter()
    found, _ = read_safetensors(OpenFile(tmp_path / "m", "a file"))
    assert time.perf_counter() - begin < 2 and list(found) == names


def test_two_who_read_one_file_at_once_do_not_move_its_place_for_each_other(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"aaaabbbb")
    both = threading.Barrier(2)

    class Slow(io.FileIO):
        """Waits between the seek and the read, until another has sought, or for a while."""

        def seek(self, at: int, whence: int = 0) -> int:
            place = super().seek(at, whence)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            return place

    shared = OpenFile(tmp_path / "m", "a file")
    with Slow(tmp_path / "m") as shared.file, ThreadPoolExecutor(2) as two:
        assert [*two.map(lambda at: shared.take(at, 4, "t"), (0, 4))] == [b"aaaa", b"bbbb"]


def test_ends_must_be_ids(tmp_path: Path) -> None:
    for value in ("2", [2, None], -1, True, 1.5):
        f = Folder(tmp_path, (), {"eos_token_id": value}, {}, {}, {})
        with pytest.raises(ModelFormatError, match="must be an id or a list of ids"):
            eos_ids(f)
    assert eos_ids(Folder(tmp_path, (), {}, {"eos_token_id": None}, {}, {})) == ()
