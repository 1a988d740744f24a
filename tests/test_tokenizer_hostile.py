"""Tokenizer folders that somebody wrote to mislead, to hang or to read other files: each is refused by name."""

from __future__ import annotations

import base64
import copy
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from glassbox.errors import GlassboxError, ModelFormatError, ModelNotFound, Unsupported
from glassbox.text.template import templates_from_folder
from glassbox.text.tokenizer import Tokenizer

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BPE: dict[str, Any] = {
    "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": LEVEL, "post_processor": None,
    "decoder": LEVEL, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2}, "merges": []},
}  # fmt: skip
PIECES = [["<unk>", 0.0], ["a", -1.0], ["▁", -2.0]]
UNIGRAM = BPE | {
    "pre_tokenizer": META, "decoder": META, "model": {"type": "Unigram", "unk_id": 0, "vocab": PIECES},
}  # fmt: skip


def opened(folder: Path, data: dict[str, Any] | str) -> Tokenizer:
    (folder / "tokenizer.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return Tokenizer.from_folder(folder)


def replace(pattern: Any, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def steps(kind: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: list(children)}


def test_the_files_that_the_others_are_made_of_are_sound(tmp_path: Path) -> None:
    assert opened(tmp_path, BPE).encode("a b").ids == (0, 2, 1)
    assert opened(tmp_path, UNIGRAM).encode("a a").ids == (2, 1, 2, 1)
    added = [{"id": 1, "content": "b"}, {"id": 4, "content": "<y>"}, {"id": 3, "content": "<x>"}]
    assert opened(tmp_path, BPE | {"added_tokens": added}).encode("a<x>b<y>").ids == (0, 3, 1, 4)


@pytest.mark.parametrize(
    ("added", "why"),
    [
        ([{"id": 1, "content": "SHADOW"}], "'SHADOW' the id 1, which is that of 'b'"),
        ([{"id": 3, "content": "b"}], "'b' two ids"),
        ([{"id": 3, "content": "<x>"}, {"id": 4, "content": "<x>"}], "stands twice"),
        ([{"id": 3, "content": "<x>"}, {"id": 3, "content": "<y>"}], "stands twice"),
        ([{"id": 3, "content": "<x>"}, {"id": 5, "content": "<y>"}], "has the id 5, but only 5 ids are used"),
        ([{"id": (1 << 24) - 1, "content": "<x>"}], "has the id 16777215, but only 4 ids are used"),
    ],
)
def test_an_id_has_one_text_and_ids_have_no_gaps(added: list[Any], why: str, tmp_path: Path) -> None:
    begin = time.perf_counter()
    with pytest.raises(ModelFormatError, match=why) as e:
        opened(tmp_path, BPE | {"added_tokens": added})
    assert e.value.field == "added_tokens" and e.value.path.endswith("tokenizer.json")
    assert time.perf_counter() - begin < 1


def test_ids_of_other_files_and_of_the_vocabulary_have_no_gaps_either(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="has the id 9000000, but only 2 ids"):
        opened(tmp_path, BPE | {"model": {"type": "BPE", "vocab": {"a": 0, "b": 9_000_000}, "merges": []}})
    (tmp_path / "added_tokens.json").write_text('{"<x>": 77}')
    with pytest.raises(ModelFormatError, match="has the id 77, but only 4 ids"):
        opened(tmp_path, BPE)
    (tmp_path / "added_tokens.json").write_text('{"<x>": 1}')
    with pytest.raises(ModelFormatError, match="the id 1, which is that of 'b'"):
        opened(tmp_path, BPE)


@pytest.mark.parametrize("score", ["NaN", "1e999", "-1e999", "1" + "0" * 400, "true", "null", '"x"'])
def test_scores_are_finite_numbers(score: str, tmp_path: Path) -> None:
    text = json.dumps(UNIGRAM).replace("-1.0", score)
    with pytest.raises(ModelFormatError, match=r"entry 1 is no|score of entry 1 is not finite") as e:
        opened(tmp_path, text)
    assert e.value.field == "model.vocab"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pre_tokenizer": None}, "nothing writes a space as U"),
        ({"pre_tokenizer": META | {"replacement": "_"}}, "writes a space as '_'"),
        ({"model": UNIGRAM["model"] | {"vocab": [*PIECES, ["a", -0.5]]}}, "entries 1 and 3 are both 'a'"),
        ({"decoder": steps("decoders", META, replace({"String": "a"}, "J"))}, "decoder 'Replace by J'"),
        (
            {"decoder": steps("decoders", META, {"type": "Strip", "content": "a", "start": 1, "stop": 0})},
            "'Strip of a'",
        ),
        ({"decoder": steps("decoders", META, {"type": "Strip", "content": " ", "start": 2, "stop": 0})}, "Strip"),
        ({"decoder": steps("decoders", META, {"type": "CTC"})}, "decoder 'CTC'"),
    ],
)
def test_what_the_library_would_read_otherwise_is_refused(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises((ModelFormatError, Unsupported), match=why):
        opened(tmp_path, copy.deepcopy(UNIGRAM) | change)


def charsmap(text: str) -> str:
    return base64.b64encode(struct.pack("<II", 4, 0) + text.encode() + b"\0").decode()


DOUBLE = replace({"String": "a"}, "aa")


@pytest.mark.parametrize(
    "rules",
    [
        steps("normalizers", *[DOUBLE] * 31),
        steps("normalizers", *[replace({"String": "a"}, "a" * 1000)] * 3),
        steps("normalizers", *[steps("normalizers", DOUBLE, DOUBLE)] * 4),
        steps("normalizers", *[replace({"Regex": "a"}, "aa")] * 5),
        {"type": "Precompiled", "precompiled_charsmap": charsmap("a" * 65)},
    ],
)
def test_rules_that_make_a_text_long_without_end_are_refused(rules: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="times as long, more than 64 times") as e:
        opened(tmp_path, BPE | {"normalizer": rules})
    assert e.value.field == "normalizer"


def test_rules_within_the_bound_are_used(tmp_path: Path) -> None:
    assert opened(tmp_path, BPE | {"normalizer": steps("normalizers", *[DOUBLE] * 6)}).encode("ab").ids == (0,) * 64 + (
        1,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": replace({"String": ""}, "x")},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 65}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}},
    ],
)
def test_rules_the_library_dies_of_are_refused(
    change: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelFormatError) as e:
        opened(tmp_path, BPE | change)
    assert e.value.field in change and capfd.readouterr().err == ""


@pytest.mark.parametrize("stage", ["normalizer", "pre_tokenizer"])
def test_an_expression_without_end_is_an_error(stage: str, tmp_path: Path) -> None:
    pattern = {"Regex": "(a+)+$"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    rule = replace(pattern, "a") if stage == "normalizer" else steps("pretokenizers", split, LEVEL)
    tokenizer = opened(tmp_path, BPE | {stage: rule})
    with pytest.raises(ModelFormatError, match="retry-limit") as e:
        tokenizer.encode("a" * 60 + "b")
    assert stage in e.value.field


# -- where files lie, and what they are


NAMES = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",
         "generation_config.json", "chat_template.jinja")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_links_out_of_the_folder_are_not_followed(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(json.dumps(BPE) if name.endswith(".json") else "secret")
    (tmp_path / "m").mkdir()
    opened(tmp_path / "m", BPE)
    (tmp_path / "m" / name).unlink(missing_ok=True)
    (tmp_path / "m" / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ModelNotFound, match="is a link that leads out of the folder"):
        Tokenizer.from_folder(tmp_path / "m")


def test_a_folder_of_templates_that_is_a_link_out_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rag.jinja").write_text("secret")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "additional_chat_templates").symlink_to(tmp_path / "other")
    with pytest.raises(ModelNotFound, match="leads out"):
        templates_from_folder(tmp_path / "m")


def test_the_hubs_own_links_are_followed(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    (folder / "additional_chat_templates").mkdir(parents=True)
    for i, (name, text) in enumerate({
        "tokenizer.json": json.dumps(BPE), "chat_template.jinja": "hi", "additional_chat_templates/rag.jinja": "r",
    }.items()):  # fmt: skip
        (blobs / str(i)).write_text(text)
        (folder / name).symlink_to(blobs / str(i))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("ab").ids == (0, 1)
    assert templates_from_folder(folder) == {"default": "hi", "rag": "r"}


@pytest.mark.parametrize("name", NAMES)
def test_pipes_and_folders_are_not_read(name: str, tmp_path: Path) -> None:
    opened(tmp_path, BPE)
    (tmp_path / name).unlink(missing_ok=True)
    for make in (os.mkfifo, os.mkdir):
        make(tmp_path / name)
        with pytest.raises(ModelFormatError, match=r"is no regular file|cannot be read") as e:
            Tokenizer.from_folder(tmp_path)
        assert e.value.field == name
        (os.unlink if make is os.mkfifo else os.rmdir)(tmp_path / name)


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith(".json")])
def test_json_is_read_strictly(name: str, tmp_path: Path) -> None:
    opened(tmp_path, BPE)
    sound = json.dumps(BPE) if name == "tokenizer.json" else "{}"
    for data, why in (("\ufeff" + sound, "BOM"), (sound[:-1] + ', "a": 1, "a": 2}', "'a' stands twice")):
        (tmp_path / name).write_text(data.replace("{,", "{"))
        with pytest.raises(GlassboxError, match=why) as e:
            Tokenizer.from_folder(tmp_path)
        assert name in str(e.value)
