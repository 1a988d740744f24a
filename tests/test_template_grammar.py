"""Small templates made at random of what templates of models use: ours and jinja2 agree, or both refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja_oracle import BOS, EOS, NOW, Refused, reference

from glassbox.errors import TemplateError
from glassbox.text import template
from glassbox.text.template import ChatTemplate

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": " It's <b>\n"},
    {"role": "user", "content": "hello, World\tß \x1c", "n": 3, "on": True},
    {
        "role": "assistant",
        "content": "a<think>b</think>c",
        "tool_calls": [{"name": "f", "args": {"k": [1, "two", None]}}],
    },
    {"role": "user", "content": "ΑΣ\u00a0"},
]
DATA: dict[str, Any] = {"f": 1.5, "big": 1e20, "flag": True, "words": ["b", "a", "B"], "d": {"x": 1, "a": "y"}}


def pick(*options: str) -> st.SearchStrategy[str]:
    return st.sampled_from(options)


def put(form: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda words: form.format(*words))


LITERALS = pick("'a'", "''", "' b\\n'", '"it\'s"', "'é\\u0041\\x42'", "'x' 'y'", "'\\\\d'", "','", "'</think>'")
NUMBERS = pick("0", "1", "2", "-1", "3", "loop.index0", "loop.index", "messages|length", "m.n", "f", "m.content|length")
TEXTS = LITERALS | pick(
    "m.content", "m['role']", "m.role", "messages[0].content", "messages[-1]['content']", "t", "x", "bos_token"
)
METHODS = pick(
    "strip()", "strip('\\n')", "lstrip()", "rstrip()", "upper()", "lower()", "title()", "capitalize()",
    "split('</think>')[-1]",
    "split(',')[0]", "replace('l', 'L')", "replace('a', '')", "removeprefix('a')", "split()|join('-')",
    "splitlines()|length",
    "find('l')", "count('l')", "rsplit(' ', 1)[0]", "zfill(9)", "isdigit()", "startswith('h')",
    "endswith(('s', '\\n'))",
)  # fmt: skip
FILTERS = pick(
    "trim", "upper", "lower", "title", "capitalize", "length", "tojson", "string", "replace('l', 'r')", "default('D')",
    "default('D', true)", "first", "last", "list|length", "indent(2)", "indent(1, true)", "int", "e",
    "reverse|list|join",
)  # fmt: skip
PLACES = pick("[0]", "[-1]", "[1:]", "[:2]", "[::-1]", "[1:-1]", "[:-1]")
TESTS = pick(
    "defined",
    "not defined",
    "none",
    "string",
    "not string",
    "mapping",
    "iterable",
    "sequence",
    "number",
    "true",
    "false",
    "not none",
)
LISTS = pick("messages", "messages[1:]", "words", "[1, 'a', none]", "d|items", "d.items()", "words|sort",
    "messages|map(attribute='role')|list",
             "messages|selectattr('role', 'equalto', 'user')|list", "range(3)", "m.tool_calls", "words|unique|list",
    "d.keys()|list", "d|dictsort",
             "messages|rejectattr('tool_calls', 'defined')|list", "nothing")  # fmt: skip


def grown(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        put("{}.{}", values.filter(lambda v: " " not in v or v[0] == "("), METHODS)
        | put("({})|{}", values, FILTERS)
        | put("({}){}", values, PLACES)
        | put("({} + {})", values, values)
        | put("({} ~ {})", values, values)
        | put("({} if {} else {})", values, values, values)
        | put("({} or {})", values, values)
        | put("({} == {})", values, values)
        | put("({} in {})", values, values)
        | put("(not {})", values)
        | put("({} is {})", values, TESTS)
        | put("m.get('{}', {})", pick("role", "n", "zz"), values)
    )


VALUES = st.recursive(
    TEXTS | NUMBERS | pick("none", "true", "nothing", "m.nothing", "m", "words", "d", "flag", "d.a"),
    grown,
    max_leaves=4,
)
SIGNS = pick("", "-", "")
SPACE = pick("", "\n", "  ", "\n  ", " \n\n ", "text ", "é\n")


def block(form: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A statement with white space control at random."""
    n = form.count("<%")
    signs = st.tuples(*[st.tuples(SIGNS, SIGNS) for _ in range(n)])

    def made(drawn: Any) -> str:
        signed, words = drawn
        text = form.format(*words)
        for left, right in signed:
            text = text.replace("<%", "{%" + left, 1).replace("%>", right + "%}", 1)
        return text

    return st.tuples(signs, st.tuples(*parts)).map(made)


def larger(body: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        block("{}<% if {} %>{}<% endif %>{}", SPACE, VALUES, body, SPACE)
        | block("<% if {} %>{}<% elif {} %>{}<% else %>{}<% endif %>{}", VALUES, body, VALUES, body, body, SPACE)
        | block("{}<% for m in {} %>{}<% endfor %>{}", SPACE, LISTS, body, SPACE)
        | block(
            "<% for m in messages if m.role {} %>{}<% else %>{}<% endfor %>{}",
            pick("== 'user'", "!= 'x'", "in words"),
            body,
            body,
            SPACE,
        )
        | block("<% for k, v in d.items() %>{}{{{{ k }}}}{{{{ v }}}}<% endfor %>", body)
        | block("<% macro g(a, b='B') %>{}{{{{ a }}}}{{{{ b }}}}<% endmacro %>{{{{ g({}) }}}}", SPACE, VALUES)
        | block("<% set t %>{}<% endset %>{{{{ t|trim }}}}", body)
        | block("<% generation %>{}<% endgeneration %>{}", body, SPACE)
        | put("{}{}", body, body)
    )


LEAVES = (
    put("{}{{{{ {} }}}}{}", SPACE, VALUES, SPACE)
    | put("{{{{- {} -}}}}{}", VALUES, SPACE)
    | block("<% set {} = {} %>{}", pick("x", "t", "y"), VALUES, SPACE)
    | block("<% set ns = namespace(a={}) %><% set ns.b = {} %>{{{{ ns.a }}}}{{{{ ns.b }}}}", VALUES, VALUES)
    | block("<% if {} %><% break %><% endif %>", VALUES)
    | put("{{# {} #}}{}", pick("note", "{{ x }}", "-"), SPACE)
    | put("{{%{} raw %}}{{{{ x }}}}{{% endraw %}}{}", pick("", "-"), SPACE)
    | pick("{{ t }}{{ x }}{{ y }}", "{{ loop.last }}", "{{ loop.cycle('a', 'b') }}", "text\n", "\r\n")
)
TEMPLATES = st.recursive(LEAVES, larger, max_leaves=6)


# Ours may refuse what the reference renders, by name only; `in` asks more of its left side there.
NAMED = re.compile("hides which text|outside a loop's own body|right behind a filter|a list is wanted|cannot be sliced")
STRICTER = re.compile("'in <string>' requires string|unhashable type")


@pytest.fixture(autouse=True, scope="module")
def in_this_process() -> Iterator[None]:
    """The text is the same in a process of its own (test_template.py shows that), but hundreds of them take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "is_tame", lambda _: True)
        yield


@settings(max_examples=600, derandomize=True, deadline=None)
@given(TEMPLATES)
@pytest.mark.slow
def test_any_template(source: str) -> None:
    try:
        expected = reference(source, TALK, **DATA)
    except Refused as why:
        if STRICTER.search(str(why)):
            return
        expected = ""
    try:
        got = ChatTemplate(source, bos=BOS, eos=EOS).render(TALK, now=NOW, extra=DATA).text
    except TemplateError as e:
        assert not expected or NAMED.search(str(e)), (e, expected)
    else:
        assert got == expected


def test_the_grammar_reaches_what_templates_do() -> None:
    """A third of what it makes renders to something with jinja2: agreeing to refuse proves little."""
    texts: list[str] = []

    @settings(max_examples=200, derandomize=True, deadline=None, database=None)
    @given(TEMPLATES)
    def collect(source: str) -> None:
        with suppress(Refused):
            texts.append(reference(source, TALK, **DATA))

    collect()
    assert sum(map(bool, texts)) >= 60
