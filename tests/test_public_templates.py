"""Templates of well-known models, written from their documented form, rendered as transformers renders them.

Each with many conversations; ours and jinja2 give the same characters, or both refuse.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from jinja_oracle import BOS, EOS, NOW, Refused, reference

from glassbox.errors import TemplateError
from glassbox.text import template
from glassbox.text.template import ChatTemplate, Rendered
from glassbox.weights.gguf import Gguf

FOLDER = Path(__file__).parent / "data" / "templates"
SOURCES = {p.name.removesuffix(".jinja"): p.read_text(encoding="utf-8") for p in sorted(FOLDER.glob("*.jinja"))}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city. It's <b>\"live\"</b> & 'true'.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "City, e.g. 서울 "},
                    "days": {"type": "array", "items": {"type": "integer"}, "description": "Days"},
                    "unit": {"type": ["string", "integer"], "enum": ["C", "F"], "description": "Unit"},
                    "deep": {"type": "object", "additionalProperties": {"type": "number"}, "description": ""},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}},
    },
]
U, A, S = ({"role": r} for r in ("user", "assistant", "system"))
CALL = {"id": "abcdefghi", "type": "function"}
CALLS = [
    CALL | {"function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2], "f": 1.5, "n": None}}},
    CALL | {"function": {"name": "noop", "arguments": {}}},
]
RESULT = {
    "role": "tool",
    "name": "get_weather",
    "tool_call_id": "abcdefghi",
    "content": '{"t": 21.5, "sky": "<클리어>"}',
}
THOUGHT = "<think>\nLet me see.\n</think>\n\nFour."

TALKS: dict[str, list[dict[str, Any]]] = {
    "one": [U | {"content": "hello"}],
    "spaces": [U | {"content": "  two words \n"}],
    "empty": [U | {"content": ""}],
    "system": [S | {"content": "Be brief.\n"}, U | {"content": "hi"}],
    "turns": [U | {"content": "a"}, A | {"content": " b "}, U | {"content": "c\n\nd"}, A | {"content": "e"}],
    "system turns": [S | {"content": " s "}, U | {"content": "1+1?"}, A | {"content": "2"}, U | {"content": "and?"}],
    "thoughts": [U | {"content": "2+2?"}, A | {"content": THOUGHT}, U | {"content": "sure?"}, A | {"content": THOUGHT}],
    "reasoning": [U | {"content": "2+2?"}, A | {"content": "4", "reasoning_content": "easy\n"}, U | {"content": "5?"}],
    "reasoning last": [U | {"content": "q"}, A | {"content": "4", "reasoning": "hm"}],
    "two users": [U | {"content": "a"}, U | {"content": "b"}],
    "assistant first": [A | {"content": "x"}, U | {"content": "y"}],
    "late system": [U | {"content": "a"}, A | {"content": "b"}, S | {"content": "c"}, U | {"content": "d"}],
    "unicode": [
        U | {"content": "é안녕 \U0001f469‍\U0001f4bb ａ\u00a0\u2028x\x1c"},
        A | {"content": "ß\x85"}, U | {"content": "ΑΣ"},
    ],
    "syntax": [U | {"content": "{{ 7*7 }} {% for %} {# c #} {% endraw %} \\n '\" <|im_end|> [INST] </s>"}],
    "call": [
        U | {"content": "weather?"}, A | {"tool_calls": CALLS[:1]}, RESULT, A | {"content": "Warm."},
        U | {"content": "ok"},
    ],
    "null call": [U | {"content": "w?"}, A | {"content": None, "tool_calls": CALLS[:1]}, RESULT],
    "calls": [S | {"content": "s"}, U | {"content": "w?"}, A | {"content": "Hm", "tool_calls": CALLS}, RESULT, RESULT],
    "text arguments": [
        U | {"content": "w"}, A | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": '{"a": 1}'}}]},
    ],
    "long": [(U, A)[i % 2] | {"content": f"message {i}"} for i in range(15)],
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "prompt": {},
    "no prompt": {"add_generation_prompt": False},
    "tools": {"tools": TOOLS},
    "documents": {"documents": [{"title": "T", "text": "Some <text> é"}, {"title": "U", "text": "More"}]},
    "not thinking": {"enable_thinking": False, "add_generation_prompt": True},
    "thinking": {"enable_thinking": True, "tools": TOOLS[:1]},
    "variables": {
        "code_mode": True, "shout": 1, "bot_name": "", "controls": {"length": "long"}, "tools_in_user_message": False,
        "tools": TOOLS[:1], "citation_mode": "accurate", "documents": [{"a": 1.0, "b": True, "c": None}],
    },
}  # fmt: skip


@lru_cache(maxsize=64)
def opened(source: str, is_tame: object) -> ChatTemplate:
    """is_tame: what judges the template when it is opened, which a test may have replaced."""
    return ChatTemplate(source, bos=BOS, eos=EOS)


def ours(source: str, talk: list[dict[str, Any]], **how: Any) -> Rendered:
    named = {k: how.pop(k) for k in ("tools", "documents", "add_generation_prompt", "continue_final") if k in how}
    rendered = opened(source, template.is_tame).render(talk, now=NOW, extra=how, **named)
    assert "".join(s.text for s in rendered.segments) == rendered.text
    return rendered


def agree(source: str, talk: list[dict[str, Any]], **how: Any) -> bool:
    """Whether something is rendered; what, is the same. Ours may refuse, by name, to guess whose text is whose."""
    try:
        expected = reference(source, talk, **how)
    except Refused as why:
        with pytest.raises(TemplateError):
            print(why, "but ours gives", ours(source, talk, **how))
        return False
    if not expected:
        with pytest.raises(TemplateError, match="renders nothing"):
            ours(source, talk, **how)
        return False
    assert ours(source, talk, **how).text == expected
    return True


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.slow
def test_the_text_is_the_references(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "is_tame", lambda _: True)  # for speed: test_template.py shows that nothing changes
    rendered = [agree(SOURCES[name], talk, **how) for talk in TALKS.values() for how in WAYS.values()]
    assert sum(rendered) >= len(rendered) // 6


def test_there_are_enough() -> None:
    assert len(SOURCES) >= 25


FINALS = ["The capital is ", "", "assistant", "\n\n", " a", "x\ny", "<think>\nhm\n</think>\n\nso", "é\u00a0"]


@pytest.mark.parametrize("name", SOURCES)
def test_the_last_message_is_continued_as_the_reference_does(name: str) -> None:
    """But where the template trims and nothing is left: there transformers trims the turn's opening as well."""
    for final in FINALS:
        talk = [U | {"content": "assistant?"}, A | {"content": final}]
        how = {"continue_final": True, "add_generation_prompt": False}
        try:
            expected = reference(SOURCES[name], talk, **how)
        except Refused:
            with pytest.raises(TemplateError):
                ours(SOURCES[name], talk, continue_final=True)
            continue
        got = ours(SOURCES[name], talk, continue_final=True)
        if final.strip():
            assert got.text == expected, final
        else:
            assert got.text.startswith(expected) and not got.text[len(expected) :].strip(), final


@pytest.mark.parametrize("name", [n for n in SOURCES if "generation %}" in SOURCES[n]])
def test_generation_tags_keep_their_spans(name: str) -> None:
    for talk in (TALKS["turns"], TALKS["thoughts"], TALKS["one"]):
        expected = reference(SOURCES[name], talk, marks=True)
        rendered = ours(SOURCES[name], talk)
        marked, at = "", 0
        for begin, end in rendered.generated:
            marked += f"{rendered.text[at:begin]}⟦{rendered.text[begin:end]}⟧"
            at = end
        assert marked + rendered.text[at:] == expected
        assert len(rendered.generated) == sum(m["role"] == "assistant" for m in talk)


def test_a_float_stays_one() -> None:
    """minijinja hands 1.0 to filters as 1; arguments of calls are written one by one in many templates."""
    source = (
        "{% for k, v in messages[0].args.items() %}{{ k }}={{ v | tojson }},{{ v|tojson(indent=2) }},{{ v }},"
        "{{ v|string }};{% endfor %}{{ messages[0].args | tojson }}{{ messages[0].args['a']|tojson(false, none) }}"
        "{{ messages[0].args }}{% for k, v in messages[0].args|items %}{{ v }}{% endfor %}"
        "{% for v in messages[0].args.values()|list %}{{ v }}{% endfor %}{{ messages[0].args.e|join(' ') }}"
        "{{ messages[0].args.e[:1] }}{{ messages[0].args|dictsort }}"
    )
    args = {"a": 1.0, "b": 1, "c": -0.5, "d": True, "e": [1.0, 2, "x'"], "f": 0.0, "g": {"h": 3.0}}
    assert agree(source, [{"role": "user", "content": "x", "args": args}])


@pytest.mark.model
def test_the_template_in_a_models_file(smollm2_gguf: Gguf) -> None:
    source = smollm2_gguf.metadata["tokenizer.chat_template"]
    assert sum(agree(source, talk, **how) for talk in TALKS.values() for how in WAYS.values()) > 100
