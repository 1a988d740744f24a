"""GGUF files that were split: any part finds the others, and parts that do not belong together are refused."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_writer import INT32, STRING, UINT32, build, kv, tensor, text, u32

from glassbox.errors import ModelFormatError, ModelNotFound
from glassbox.provenance import model_digest
from glassbox.weights.gguf import read_gguf
from glassbox.weights.split import part_names

UINT16 = 2
DATA = {n: np.arange(8, dtype=np.float32) + 10 * i for i, n in enumerate("abcd")}
PARTS = ("ab", "c", "d")


def part(no: int, count: int = 3, total: int = 4, names: str | None = None, *, drop: str = "") -> bytes:
    """Part `no` of the model abcd."""
    names = PARTS[no] if names is None else names
    kvs = {
        "split.no": kv("split.no", UINT16, no.to_bytes(2, "little")),
        "split.count": kv("split.count", UINT16, count.to_bytes(2, "little")),
        "split.tensors.count": kv("split.tensors.count", INT32, u32(total)),
    }
    more = [kv("general.architecture", STRING, text("llama"))] if no == 0 else []
    entries = [tensor(n, [8], offset=32 * i) for i, n in enumerate(names)]
    return build(
        [*more, *(v for k, v in kvs.items() if k != drop)], entries, b"".join(DATA[n].tobytes() for n in names)
    )


def name(no: int, count: int = 3) -> str:
    return f"m-{no + 1:05}-of-{count:05}.gguf"


def write(to: Path, **more: Any) -> Path:
    """The three parts; `more`: p0, p1, p2 in place of one, None to leave it out."""
    for no in range(3):
        raw = more.get(f"p{no}", part(no))
        if raw is not None:
            (to / name(no)).write_bytes(raw)
    return to


@pytest.mark.parametrize("given", range(3))
def test_any_part_finds_the_others(tmp_path: Path, given: int) -> None:
    g = read_gguf(write(tmp_path) / name(given))
    assert list(g.tensors) == list("abcd") and g.path.name == name(0)
    for n, values in DATA.items():
        assert np.array_equal(g.raw(n).view(np.float32), values)
    assert g.metadata["general.architecture"] == "llama"
    assert [p.name for p in g.files] == [name(i) for i in range(3)]


def test_it_reads_what_the_public_tool_writes(tmp_path: Path) -> None:
    """The gguf package writes split files too."""
    code = (
        "import sys, numpy as np, gguf\n"
        "w = gguf.GGUFWriter(sys.argv[1] + '/w.gguf', 'llama', split_max_tensors=2)\n"
        "for i in range(5): w.add_tensor(f't{i}', np.full((2, 32), i, np.float32))\n"
        "w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60, capture_output=True)
    g = read_gguf(tmp_path / "w-00002-of-00003.gguf")
    assert len(g.tensors) == 5
    for i in range(5):
        assert (g.raw(f"t{i}").view(np.float32) == i).all()


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"m-00002-of-00003.gguf.*it is part 2 of 3"):
        read_gguf(write(tmp_path, p1=None) / name(0))


@pytest.mark.parametrize(
    ("no", "raw", "field", "words"),
    [
        (1, part(1, names="a"), "a", r"stands in m-00001-of-00003\.gguf too"),
        (1, part(1, count=4), "split.count", "is 4, but 3"),
        (2, part(1, names="d"), "split.no", "is 1, but 2"),
        (2, part(2, names=""), "split.tensors.count", "is 4, but 3"),
        (1, part(1, total=5), "split.tensors.count", "is 5, but 4"),
        (1, part(1, drop="split.no"), "split.no", "is missing, in part 2 of 3"),
        (1, part(1, drop="split.count"), "split.count", "is missing, in part 2 of 3"),
        (1, part(1, drop="split.tensors.count"), "split.tensors.count", "is missing, in part 2 of 3"),
        (2, b"GGUF", "version", "ends after 0 more"),
    ],
)
def test_parts_that_do_not_belong_together(tmp_path: Path, no: int, raw: bytes, field: str, words: str) -> None:
    with pytest.raises(ModelFormatError, match=words) as caught:
        read_gguf(write(tmp_path, **{f"p{no}": raw}) / name(0))
    assert caught.value.field == field and caught.value.path


@pytest.mark.parametrize("called", ["m.gguf", name(1), name(0, 4), "m-1-of-3.gguf", "m-00000-of-00003.gguf"])
def test_a_name_that_does_not_fit_its_part(tmp_path: Path, called: str) -> None:
    (tmp_path / called).write_bytes(part(0))
    with pytest.raises(ModelFormatError, match=r"this is part 1 of 3: the name must end in -00001-of-00003\.gguf"):
        read_gguf(tmp_path / called)


@pytest.mark.parametrize("key", ["split.no", "split.count"])
def test_counts_are_whole_numbers(tmp_path: Path, key: str) -> None:
    (tmp_path / name(0)).write_bytes(build([kv(key, STRING, text("two"))]))
    with pytest.raises(ModelFormatError, match="must be a whole number"):
        read_gguf(tmp_path / name(0))


def test_a_file_in_one_part_may_have_any_name(tmp_path: Path) -> None:
    for called, raw in (("m.gguf", part(0, 1, 2)), (name(1), build([kv("x", UINT32, u32(1))]))):
        (tmp_path / called).write_bytes(raw)
        assert read_gguf(tmp_path / called).files == (tmp_path / called,)


def test_names_of_parts() -> None:
    assert part_names("a/b-00002-of-00003.gguf") == [f"a/b-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for alone in ("m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-00001-of-00000.gguf", ""):
        assert part_names(alone) == [alone]


def test_a_digest_is_over_all_parts(tmp_path: Path) -> None:
    files = read_gguf(write(tmp_path) / name(1)).files
    lines = [f"{hashlib.sha256(part(i)).hexdigest()}  {name(i)}\n" for i in range(3)]
    assert model_digest(files) == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert model_digest(files[:1]) == hashlib.sha256(part(0)).hexdigest()
