"""Files and JSON that people give on the command line: what editors put in front, what Python would let pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassbox.cli.main import run
from glassbox.trace.store import open_store

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
TRACE = ["trace", "-m", "bigram", "--seed", "1", "--max-tokens", "2"]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a store of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*TRACE, "--store", "t.db", *arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[{"role": "user", "content": "a", "content": "b"}]', "the key 'content' stands twice"),
        ('{"messages": [], "messages": []}', "the key 'messages' stands twice"),
        ('[{"role": "user", "content": "a", "x": NaN}]', "NaN is no number of JSON"),
        ('[{"role": "user", "content": "a", "x": -Infinity}]', "-Infinity is no number of JSON"),
        ('[{"role": "user",\n  "content" "a"}]', "Expecting ':' delimiter: line 2 column 13 (char 30)"),
    ],
)
def test_messages_are_json_as_its_standard_has_it(
    given: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    (given / "m.json").write_text(text)
    (given / "t.jinja").write_text(PLAIN)
    told = refused(capsys, "--messages", "m.json", "--template", "t.jinja")
    assert told == f"glassbox: --messages m.json: is not JSON: {why}\n"


@pytest.mark.parametrize(
    ("value", "why"), [('{"a": 1, "a": 2}', "the key 'a' stands twice"), ("NaN", "NaN is no number")]
)
def test_so_are_tools_and_variables_of_a_template(
    given: Path, capsys: pytest.CaptureFixture[str], value: str, why: str
) -> None:
    (given / "t.json").write_text(value)
    (given / "t.jinja").write_text(PLAIN)
    assert why in refused(capsys, "ab", "--template", "t.jinja", "--tools", "t.json")
    assert why in refused(capsys, "ab", "--template", "t.jinja", "--template-arg", f"x={value}")


def test_a_byte_order_mark_in_front_is_not_read(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = "\ufeff"
    (given / "m.json").write_text(mark + '[{"role": "user", "content": "ab"}]', encoding="utf-8")
    (given / "t.jinja").write_text(mark + PLAIN, encoding="utf-8")
    (given / "g.gbnf").write_text(mark + 'root ::= "ca"', encoding="utf-8")
    files = ["--messages", "m.json", "--template", "t.jinja", "--grammar", "g.gbnf"]
    assert run([*TRACE, "--store", "t.db", *files]) == 0
    with open_store(given / "t.db") as store:
        made = store.load()
    assert (made.request.encoding.ids, made.text) == ((1, 2), "ca")


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--messages", "--messages is empty: it must name a file"),
        ("--template", "--template is empty: it must be a name, or that of a file"),
        ("--store", "path is '', but must be the path of a file"),
    ],
)
def test_an_empty_path_is_named_as_such(given: Path, capsys: pytest.CaptureFixture[str], flag: str, why: str) -> None:
    prompt = [] if flag == "--messages" else ["ab"]
    assert refused(capsys, *prompt, f"{flag}=") == f"glassbox: {why}\n"
    assert [p.name for p in given.iterdir() if p.suffix != ".db"] == []
