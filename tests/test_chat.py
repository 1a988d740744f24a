"""Messages through the API and the command line: tools, named templates, variables, the last message continued."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import glassbox
from glassbox.cli.main import run
from glassbox.errors import ParameterError, PromptError, TemplateError
from glassbox.text.templates import Templates

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}{{ 'c' if add_generation_prompt }}{{ x }}"
USING = "{% for t in tools %}{{ t.name }}{% endfor %}{% for d in documents or [] %}{{ d.text }}{% endfor %}a"
TALK = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "b"}]


@pytest.fixture
def model() -> glassbox.Model:
    """The lab's model (a b c and space), with templates of its own."""
    loaded = glassbox.load("bigram")
    loaded.tokenizer.templates = Templates({"default": PLAIN, "tool_use": USING}, bos="", eos="")
    return loaded


def test_encode_chat_takes_what_templates_take(model: glassbox.Model) -> None:
    def text(**how: Any) -> str:
        return model.encode_chat(TALK, **how).text

    assert text() == "abbc" and text(add_generation_prompt=False) == "abb" and text(continue_final=True) == "abb"
    assert text(template_kwargs={"x": " a"}) == "abbc a"
    assert text(tools=[{"name": "b"}, {"name": "c"}]) == "bca" and text(tools=[]) == "a"
    assert text(tools=[{"name": "b"}], template="default") == "abbc"
    assert text(template="tool_use", tools=[], documents=[{"text": "cc"}]) == "cca"
    assert text(template="{{ messages[0].content }}") == "ab"


def test_what_is_lost_is_told(model: glassbox.Model) -> None:
    talk = [{"role": "assistant", "content": "b "}]
    encoding = model.encode_chat(talk, template="{{ messages[0].content | trim }}", continue_final=True)
    assert encoding.text == "b" and encoding.notes == (
        "the template trims: ' ' at the end of the last message is lost",
    )


@pytest.mark.parametrize(
    ("how", "error", "why"),
    [
        ({"template": "rag"}, TemplateError, "no chat template named 'rag'; it has: default, tool_use"),
        ({"tools": {"name": "f"}}, ParameterError, "tools is .* but must be a list of objects"),
        ({"tools": ["f"]}, ParameterError, "tools is .* but must be a list of objects"),
        ({"documents": [{"x": float("nan")}]}, ParameterError, "documents is .* plain data"),
        ({"template_kwargs": ["x"]}, ParameterError, "template_kwargs"),
        ({"template_kwargs": {"messages": 1}}, ParameterError, "extra is 'messages'"),
        ({"template_kwargs": {"x": object()}}, ParameterError, "plain data"),
        ({"continue_final": 1}, ParameterError, "continue_final is 1"),
        ({"continue_final": True, "add_generation_prompt": True}, ParameterError, "add_generation_prompt is True"),
        ({"tool": []}, TypeError, "unexpected keyword argument 'tool'"),
    ],
)
def test_what_is_wrong_is_named(model: glassbox.Model, how: dict[str, Any], error: type[Exception], why: str) -> None:
    for ask in (lambda: model.encode_chat(TALK, **how), lambda: model.stream(messages=TALK, **how)):
        with pytest.raises(error, match=why):
            ask()


def test_more_messages_than_can_be_told_apart(model: glassbox.Model) -> None:
    with pytest.raises(PromptError, match=r"too many messages: at most 16,383 texts can be told apart"):
        model.encode_chat([{"role": "user", "content": "x"}] * 20000)


def test_a_prompt_takes_none_of_it(model: glassbox.Model) -> None:
    with pytest.raises(ParameterError, match=r"tools is .* given with messages only"):
        model.generate("ab", tools=[])
    assert model.generate("ab", continue_final=False, max_tokens=1).request.chat is None
    with pytest.raises(PromptError, match="has no chat template"):
        glassbox.load("bigram").encode_chat(TALK)


def test_the_trace_says_what_went_in(model: glassbox.Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        how: dict[str, Any] = {"tools": [{"name": "b"}], "template_kwargs": {"x": "a"}, "seed": 1, "max_tokens": 2}
        made = model.generate(messages=TALK, store=store, **how)
        assert made.request.chat == {
            "template": "tool_use", "tools": [{"name": "b"}], "template_kwargs": {"x": "a"}, "continue_final": False,
            "add_generation_prompt": True,
        }  # fmt: skip
        assert made.provenance.template_sha256 == model.tokenizer.templates.choose("tool_use").digest
        kept = store.load(made.run_id)
        assert kept == made and kept.to_dict()["chat"] == made.request.chat and kept.prompt_text == "ba"
        own = model.generate(messages=TALK, template="{{ messages[0].content }}", store=store, max_tokens=1, seed=1)
        assert store.load(own.run_id).request.chat == {
            "template": "given", "source": "{{ messages[0].content }}", "continue_final": False,
            "add_generation_prompt": True,
        }  # fmt: skip
        ids = model.generate(messages=TALK, store=store, retain="ids", **how)
        assert store.load(ids.run_id).to_dict()["chat"] is None
    assert b"add_generation" not in b"".join(_rows(tmp_path / "runs.db", ids.run_id))


def _rows(path: Path, run_id: str) -> list[bytes]:
    with closing(sqlite3.connect(path)) as conn, conn:
        row = conn.execute("SELECT * FROM run WHERE id = ?", (run_id,)).fetchone()
    return [str(value).encode() for value in row]


@pytest.mark.model
def test_smollm2_goes_on_with_the_last_message(smollm2: glassbox.Model) -> None:  # C01-02, C01-05
    plain = smollm2.encode_chat([{"role": "user", "content": "Hi"}])
    assert len(plain.ids) == 31 and plain.ids[:2] == (1, 9690)
    talk = [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "The capital is "}]
    encoding = smollm2.encode_chat(talk, continue_final=True)
    assert (
        encoding.text.endswith("<|im_start|>assistant\nThe capital is ")
        and encoding.segments[-1] == len(encoding.segment_list) - 1
    )
    assert encoding.segment_list[-1].origin == "message 1"


# -- the command line


def cli(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert run(["trace", "--model", "bigram", "--max-tokens", "2", "--seed", "7", *arguments]) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return out, err


def test_a_conversation_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template, talk, tools = tmp_path / "t.jinja", tmp_path / "m.json", tmp_path / "tools.json"
    template.write_text("{% for t in tools %}{{ t.name }}{% endfor %}" + PLAIN)
    tools.write_text('[{"name": "c"}]')
    store = ["--store", str(tmp_path / "s.db")]
    for messages in (TALK, {"messages": TALK, "tools": [{"name": "c"}]}):
        talk.write_text(json.dumps(messages))
        how = [] if isinstance(messages, dict) else ["--tools", str(tools)]
        out, _ = cli(
            capsys, "--messages", str(talk), "--template", str(template), "--template-arg", 'x=" b"', "--continue",
            "--json", *how, *store,
        )  # fmt: skip
        got = json.loads(out)
        assert got["prompt_text"] == "cabb" and got["chat"]["template"] == "given" and got["messages"] == TALK
        assert got["chat"]["template_kwargs"] == {"x": " b"} and got["chat"]["continue_final"]
    out, _ = cli(capsys, "ab", "--template", str(template), "--tools", str(tools), *store)
    assert "template given, 1 tools" in out


@pytest.mark.parametrize("flag", ["--messages", "--tools", "--template"])
def test_only_a_file_of_sense_is_read(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for ever
    (tmp_path / "long").write_bytes(b" " * ((16 << 20) + 1))
    prompt = [] if flag == "--messages" else ["ab"]
    for path, why in (
        ("/dev/zero", "is a device or a pipe"), (tmp_path / "pipe", "is a device or a pipe"),
        (tmp_path, "is a folder"), (tmp_path / "long", "has more than [0-9,]+ bytes"),
    ):  # fmt: skip
        out, err = cli(capsys, *prompt, flag, str(path), code=2)
        assert (out, len(err.splitlines())) == ("", 1)
        assert re.search("is no file" if flag == "--template" and path != tmp_path / "long" else why, err), err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ab", "--messages", "M"], "--messages stands in place of PROMPT"),
        (["--messages", "M", "--system", "a"], "--messages stands in place of PROMPT"),
        (["--messages", "M", "--raw"], "--raw leaves out the chat template"),
        (["--messages", "M"], "--messages needs a chat template, and bigram has none"),
        (["ab", "--tools", "M"], "--tools or --template-arg needs a chat template"),
        (["ab", "--continue"], "--continue needs --messages"),
        (["ab", "--template", "rag"], "--template rag: no such file, and no template of the model's"),
        (["ab", "--template", "BAD"], "the file holds no chat template"),
        (["ab", "--template", "T", "--template-arg", "x"], "--template-arg is 'x', but must be NAME=VALUE"),
        (
            ["ab", "--template", "T", "--template-arg", "messages=1"],
            "'messages=1', but must be of another name",
        ),
        (["ab", "--template", "T", "--template-arg", "x=y"], "NAME=VALUE with a JSON value"),
        (["--messages", "BAD"], "is not JSON"),
        (["--messages", "DEEP"], "nests too deep|is not JSON"),
        (["--messages", "OTHER"], "has 'model', but may have messages, tools, documents"),
        (["--messages", "NONE"], "must hold a list of messages"),
        (["--messages", "nowhere.json"], "nowhere.json: No such file"),
    ],
)
def test_bad_flags_are_named(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "M": json.dumps(TALK),
        "BAD": "{",
        "DEEP": "[" * 100_000,
        "OTHER": '{"model": 1}',
        "NONE": "{}",
        "T": PLAIN,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    given = [str(tmp_path / a) if a in files else a for a in arguments]
    _, err = cli(capsys, *given, "--store", str(tmp_path / "s.db"), code=2)
    assert re.search(why, err) and err.count("\n") == 1
