"""Both readers of model files against sound files that were damaged: never anything but an error of ours, never slow.

`make fuzz` runs the same for as long as one likes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_writer import ARRAY, INT32, Q8_0, STRING, UINT8, UINT32, array, build, kv, tensor, text, u32
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors_cases import GOOD
from safetensors_writer import folder, tensors

from glassbox.errors import GlassboxError
from glassbox.weights.gguf import read_gguf
from glassbox.weights.hf import read_folder

GGUF = build(
    [
        kv("general.architecture", STRING, text("llama")),
        kv("general.alignment", UINT32, u32(16)),
        kv("tokens", ARRAY, array(STRING, text("a"), text("é"), text(""))),
        kv("deep", ARRAY, array(ARRAY, array(INT32, u32(5)), array(UINT8, b"\0"))),
        kv("split.count", UINT32, u32(1)),
    ],
    [tensor("q", [32, 2], Q8_0), tensor("norm", [3], offset=80)],
    bytes(range(92)),
    align=16,
)
SAFE = tensors(
    {"a.weight": np.ones((2, 3), np.float32), "b": np.ones(4, np.float16), "m": np.ones(3, bool)}, {"format": "pt"}
)
INDEX = json.dumps(
    {
        "metadata": {"total_size": 35},
        "weight_map": dict.fromkeys(("a.weight", "b", "m"), "s-00001-of-00001.safetensors"),
    }
).encode()
CONFIG = b'{"model_type": "llama", "vocab_size": 32, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}'

# Numbers that readers trip over: widths, signs, and what wraps when it is multiplied.
ODD = [n.to_bytes(8, "little") for n in (0, 1, 255, 1 << 31, 1 << 32, (1 << 40) + 1, 1 << 62, 1 << 63, (1 << 64) - 1)]
WORDS = [b"[", b"{", b"}", b'"', b",", b"-1", b"1e999", b"NaN", b"null", b'{"a":', b"\\ud800", b"9" * 30, b"../", b"\0"]

change = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 1 << 20), st.integers(0, 255).map(lambda n: bytes([n]))),
    st.tuples(st.just("set"), st.integers(0, 1 << 20), st.sampled_from(ODD)),
    st.tuples(st.just("insert"), st.integers(0, 1 << 20), st.sampled_from(WORDS) | st.binary(max_size=9)),
    st.tuples(st.just("drop"), st.integers(0, 1 << 20), st.integers(1, 20).map(bytes)),
    st.tuples(st.just("repeat"), st.integers(0, 1 << 20), st.integers(1, 60).map(bytes)),
)
changes = st.lists(change, min_size=1, max_size=4)


def damaged(raw: bytes, how: list[tuple[str, int, bytes]]) -> bytes:
    for what, at, data in how:
        at %= len(raw) + 1
        after = raw[at + len(data) :]
        middle = {
            "set": data,
            "insert": data + raw[at : at + len(data)],
            "drop": b"",
            "repeat": raw[at:][: len(data)] * 2,
        }
        raw = raw[:at] + middle[what] + after
    return raw


def whole(read: Callable[[], Any]) -> bool:
    """Whether it could be read, every tensor of it; anything but an error of ours fails the test.

    A bad file must not hold anybody up: half a second at most.
    """
    begin = time.perf_counter()
    try:
        found = read()
        for t in found.tensors.values():
            assert len(found.raw(t.name)) == t.nbytes
    except GlassboxError as e:
        assert str(e).isprintable() and len(str(e)) < 2000
        return False
    finally:
        assert time.perf_counter() - begin < 0.5
    return True


FUZZ = settings(max_examples=600, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def test_what_is_not_damaged_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(GGUF)
    assert whole(lambda: read_gguf(tmp_path / "m.gguf"))
    assert whole(lambda: read_folder(folder(tmp_path / "one", {"config.json": CONFIG, "model.safetensors": SAFE})))
    files = {"config.json": CONFIG, "model.safetensors.index.json": INDEX, "s-00001-of-00001.safetensors": SAFE}
    assert whole(lambda: read_folder(folder(tmp_path / "two", files)))


@FUZZ
@given(changes)
def test_a_damaged_gguf(tmp_path_factory: pytest.TempPathFactory, how: list[tuple[str, int, bytes]]) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(damaged(GGUF, how))
    whole(lambda: read_gguf(path))


@FUZZ
@given(changes, st.sampled_from([SAFE, *GOOD.values()]))
def test_a_damaged_safetensors_file(
    tmp_path_factory: pytest.TempPathFactory, how: list[tuple[str, int, bytes]], raw: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    folder(path, {"config.json": CONFIG, "model.safetensors": damaged(raw, how)})
    whole(lambda: read_folder(path))


@FUZZ
@given(changes, changes, st.sampled_from(["index", "config", "both"]))
def test_a_damaged_index_or_config(
    tmp_path_factory: pytest.TempPathFactory, index: Any, config: Any, which: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz_index"
    files = {
        "config.json": CONFIG if which == "index" else damaged(CONFIG, config),
        "model.safetensors.index.json": INDEX if which == "config" else damaged(INDEX, index),
        "s-00001-of-00001.safetensors": SAFE,
    }
    whole(lambda: read_folder(folder(path, files)))
