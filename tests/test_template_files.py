"""Where templates come from, and which one is taken: as transformers reads a folder, and gguf writes a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glassbox.errors import ModelFormatError, TemplateError
from glassbox.text.template import ChatTemplate, templates_from_folder, templates_from_gguf
from glassbox.text.templates import Templates

HI = [{"role": "user", "content": "hi"}]


def folder(path: Path, config: Any = None, **files: str) -> Path:
    (path / "additional_chat_templates").mkdir()
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        place = path if name == "chat_template" else path / "additional_chat_templates"
        (place / f"{name}.jinja").write_text(text)
    return path


def test_tokenizer_config(tmp_path: Path) -> None:
    assert templates_from_folder(folder(tmp_path, {"chat_template": "é{{ x }}"})) == {"default": "é{{ x }}"}


def test_tokenizer_config_with_names(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    assert templates_from_folder(folder(tmp_path, {"chat_template": named})) == {"default": "a", "rag": "b"}


def test_files_replace_what_the_config_has(tmp_path: Path) -> None:
    path = folder(tmp_path, {"chat_template": [{"name": "rag", "template": "old"}]}, chat_template="a", tool_use="b")
    assert templates_from_folder(path) == {"default": "a", "tool_use": "b"}


def test_a_named_file_alone_replaces_the_config_too(tmp_path: Path) -> None:
    assert templates_from_folder(folder(tmp_path, {"chat_template": "old"}, tool_use="b")) == {"tool_use": "b"}


def test_no_template(tmp_path: Path) -> None:
    assert templates_from_folder(folder(tmp_path)) == {} == templates_from_folder(tmp_path / "none")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"chat_template": 5}, "must be a string"),
        ({"chat_template": ["a"]}, "name and template"),
        ({"chat_template": [{"name": "a"}]}, "name and template"),
        ({"chat_template": [{"name": str(i), "template": ""} for i in range(65)]}, "more than 64"),
    ],
)
def test_broken_configs_are_named(tmp_path: Path, config: Any, why: str) -> None:
    with pytest.raises(ModelFormatError, match=why):
        templates_from_folder(folder(tmp_path, config))


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = folder(tmp_path)
    for name, data, why in (
        ("tokenizer_config.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b"[" * 100_000, "is not JSON"),
        ("chat_template.jinja", b"ab\xff", "is not UTF-8"),
        ("chat_template.jinja", b"x" * ((1 << 20) + 1), "more than"),
    ):
        (path / name).write_bytes(data)
        with pytest.raises(ModelFormatError, match=why) as e:
            templates_from_folder(path)
        assert name in str(e.value)


def test_gguf() -> None:
    key = "tokenizer.chat_template"
    metadata = {key: "a", key + ".tool_use": "b", "tokenizer.chat_templates": ["tool_use"], "tokenizer.ggml.pre": "x"}
    assert templates_from_gguf(metadata) == {"default": "a", "tool_use": "b"}
    assert templates_from_gguf({}) == {}
    for broken, why in (
        ({key: 3}, "must be a string"),
        ({key + ".x": 3}, "must be a string"),
        ({"tokenizer.chat_templates": "rag"}, "list of strings"),
        ({"tokenizer.chat_templates": ["rag"]}, "names 'rag', but there is no"),
    ):
        with pytest.raises(ModelFormatError, match=why):
            templates_from_gguf(broken)


def test_which_one_is_taken() -> None:
    t = Templates({"default": "d{{ 1 }}", "tool_use": "t", "rag": "r"}, bos="", eos="")
    assert [t.choose(tools=tools).name for tools in (False, True)] == ["default", "tool_use"]
    assert t.choose("rag", tools=True).source == "r" and t.choose() is t.choose("default")
    given = t.choose("{% if true %}x{% endif %}")
    assert (given.name, given.render(HI).text) == ("given", "x")
    with pytest.raises(TemplateError, match="no chat template named 'rga'; it has: default, rag, tool_use"):
        t.choose("rga")
    only = Templates({"rag": "r", "x": "y"}, bos="", eos="")
    with pytest.raises(TemplateError, match="several chat templates and no default: name one of rag, x"):
        only.choose()
    with pytest.raises(TemplateError, match="has no chat template"):
        Templates({}, bos="", eos="").choose()
    assert not Templates({}, bos="", eos="") and only


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% do x.append(1) %}", r"uses \{% do %\}"),
        ("{% include 'x' %}", r"uses \{% include %\}"),
        ("{{ 1 < 2 < 3 }}", "chains comparisons"),
        ("{% for t in tools %}{{ t.items }}{% endfor %}", "takes .items for a value"),
    ],
)
def test_what_means_something_else_in_jinja2_is_refused_by_name(source: str, why: str) -> None:
    with pytest.raises(TemplateError, match=why):
        ChatTemplate(source, bos="", eos="")
