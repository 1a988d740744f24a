"""Grammars that are meant to hurt: each is refused within a second, or works; the process lives on. Case C10-07."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any

import pytest
from test_grammar import guide, takes

from glassbox.errors import GrammarError
from glassbox.policy.guide import _tokenizer

SECOND = 1.0


def chain(n: int, rule: str, last: str, sign: str = ":") -> str:
    return (
        "\n".join(f"{rule.format(i)} {sign} {rule.format(i + 1)}" for i in range(n))
        + f"\n{rule.format(n)} {sign} {last}"
    )


def refs(n: int, step: Any) -> dict[str, Any]:
    """A schema that leads through n definitions; `step` makes one of the reference to the next."""
    defs = {f"r{i}": step({"$ref": f"#/$defs/r{i + 1}"}) for i in range(n)}
    return {"$ref": "#/$defs/r0", "$defs": {**defs, f"r{n}": {"type": "null"}}}


def nested(n: int) -> str:
    return '{"properties":{"a":' * n + "{}" + "}}" * n


TOWER: Any = {"type": "object", "properties": {"a": {"$ref": "#"}}}
for _ in range(45):
    TOWER = {"type": "object", "properties": {"a": TOWER, "b": {"$ref": "#"}}}
POINTERS = ["#/$defs/t" + "/properties/a" * i + more for i in range(45) for more in ("", "/properties")]

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rules in rules, GBNF": ({"gbnf": 'root ::= r0\n' + chain(5000, "r{}", '"a"', "::=")}, "rules and brackets"),
    "rules in rules, Lark": ({"lark": "start: r0\n" + chain(5000, "r{}", '"a"')}, "rules and brackets"),
    "lexemes in lexemes": ({"lark": "start: R0\n" + chain(5000, "R{}", '"a"')}, "rules and brackets"),
    "brackets, GBNF": ({"gbnf": "root ::= " + "(" * 60000 + '"a"' + ")" * 60000}, "rules and brackets"),
    "brackets, Lark": ({"lark": "start: " + "(" * 60000 + '"a"' + ")" * 60000}, "rules and brackets"),
    "brackets, open": ({"gbnf": "root ::= " + "(" * 60000}, "rules and brackets"),
    "brackets, regex": ({"regex": "(" * 60000 + "a" + ")" * 60000}, "rules and brackets"),
    "some brackets, GBNF": ({"gbnf": "root ::= " + "(" * 1500 + '"a"' + ")" * 1500}, "parentheses in each other"),
    "some brackets, Lark": ({"lark": "start: " + "(" * 1500 + '"a"' + ")" * 1500}, "nested"),
    "some brackets, regex": ({"regex": "(" * 1500 + "a" + ")" * 1500}, "regex"),
    "hidden brackets": ({"lark": 'start: /"/ ' + "(" * 60000 + '/"/' + ")" * 60000}, "rules and brackets"),
    "repetitions, GBNF": ({"gbnf": 'root ::= "x"{1,2000000}'}, "repeats more than 10,000 times"),
    "repetitions, Lark": ({"lark": 'start: "x"{1,2000000}'}, "repeats more than 10,000 times"),
    "repetitions, regex": ({"regex": "x{1,2000000}"}, "repeats more than 10,000 times"),
    "repetitions, digits": ({"regex": "x{" + "9" * 5000 + "}"}, "repeats more than 10,000 times"),
    "doubling lexemes": (
        {"lark": "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(40)) + '\nR40: "a"'}, "too big",
    ),
    "a schema that is itself": ({"json_schema": {"$ref": "#"}}, ""),
    "a circle of schemas": ({"json_schema": {"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}}, ""),
    "all of itself": ({"json_schema": {"allOf": [{"$ref": "#"}]}}, ""),
    "schema in schema": ({"json_schema": nested(5000)}, "nests deeper than 100"),
    "lists in lists": ({"json_schema": '{"enum":' + "[" * 100000 + "]" * 100000 + "}"}, "nests deeper than 100"),
    "unclosed lists": ({"json_schema": '{"enum":' + "[" * 100000}, "nests deeper than 100"),
    "references": (
        {"json_schema": refs(3000, lambda r: {"type": "object", "properties": {"a": r}})}, "objects and lists",
    ),
    "references to references": ({"json_schema": refs(900, lambda r: {"allOf": [r]})}, ""),
    "references into a tower": (
        {"json_schema": {"allOf": [{"$ref": p} for p in POINTERS], "$defs": {"t": TOWER}}}, "levels",
    ),
    "properties": ({"json_schema": {"properties": {f"p{i}": {} for i in range(10000)}}}, "objects and"),
    "either or, 24 times": (
        {"json_schema": {"allOf": [{"anyOf": [{"required": [f"{c}{i}"]} for c in "ab"]} for i in range(24)]}}, "",
    ),
    "multiples": ({"json_schema": {"type": "integer", "multipleOf": 99999999}}, "common multiple"),
    "multiples of multiples": ({"json_schema": {"allOf": [{"multipleOf": k} for k in (97, 89, 83, 79)]}}, "common"),
    "a huge multiple": ({"json_schema": '{"multipleOf": 1e300}'}, "common multiple"),
    "a number of many digits": ({"json_schema": '{"minimum": ' + "9" * 5000 + "}"}, "JSON"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    from test_grammar import BYTES

    _tokenizer(BYTES)  # the library's import and the vocabulary are not what is measured


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_within_a_second(name: str) -> None:
    given, words = REFUSED[name]
    begin = time.perf_counter()
    try:
        guide(given)
    except GrammarError as e:
        assert words in str(e) and len(str(e)) < 500 and "\n" not in str(e)
    else:
        assert not words, "was not refused"
    assert time.perf_counter() - begin < SECOND


WORKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "recursion on the left": ({"gbnf": 'root ::= expr\nexpr ::= expr "+" expr | [0-9]+'}, "1+" * 60 + "1", "1++"),
    "stars in stars": ({"gbnf": 'root ::= ("a"*)*'}, "a" * 500, "ab"),
    "stars in stars, Lark": ({"lark": 'start: ("a"*)*'}, "a" * 500, "ab"),
    "stars in stars, regex": ({"regex": "((a*)*)*b"}, "a" * 500 + "b", "aa"),
    "ambiguous": ({"gbnf": 'root ::= root root | "a"'}, "a" * 60, "b"),
    "nothing again and again": ({"gbnf": 'root ::= a "x"\na ::= a a | ""'}, "x", "xx"),
    "doubling rules": (
        {"gbnf": "\n".join(['root ::= r0 "."', *(f"r{i} ::= r{i + 1} r{i + 1}?" for i in range(40)), 'r40 ::= "a"'])},
        "a" * 8 + ".", ".",
    ),
    "repetitions in repetitions": ({"regex": "(((a{1,1000}){1,1000}b?){1,1000})c"}, "ab" * 20 + "c", "c"),
    "a tree": ({"gbnf": 'root ::= "[" root* "]"'}, "[" * 400 + "]" * 400, "[" * 400 + "]" * 399),
    "JSON": ({"json_object": True}, '{"a":' * 400 + "1" + "}" * 400, '{"a":' * 400 + "1" + "}" * 399),
    "many definitions": (
        {"json_schema": refs(300, lambda r: {"type": "array", "items": r, "minItems": 1})},
        "[" * 300 + "null" + "]" * 300, "[" * 300 + "]" * 300,
    ),
    "300 properties": (
        {"json_schema": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(300)}}},
        '{"p7":null,"p200":null}', '{"p7":1}',
    ),
    "a long text": (
        {"json_schema": {"type": "string", "minLength": 3, "maxLength": 2000000}}, '"' + "x" * 500 + '"', '"xx"',
    ),
    "10,000 choices": ({"choice": [f"word {i}" for i in range(10000)]}, "word 9999", "word"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_what_only_looks_bad_works(name: str) -> None:
    given, good, bad = WORKS[name]
    begin = time.perf_counter()
    g = guide(given)
    assert time.perf_counter() - begin < SECOND
    assert takes(g, good) and not takes(g, bad)


def test_a_limit_met_on_the_way_is_an_error_and_the_guide_still_answers() -> None:
    g = guide({"gbnf": 'root ::= a{1,9999} "!"\na ::= b{1,9999}\nb ::= c{1,9999}\nc ::= "x" | "(" root ")"'})
    first = g.allowed([]).tolist()
    with pytest.raises(GrammarError, match="at output token"):
        for n in range(400):
            g.allowed(list(b"x" * n))
    assert g.allowed([]).tolist() == first


def test_random_text_never_breaks_out() -> None:
    """Pieces of grammars thrown together (seed 5), in a process of its own: each is compiled or refused in its time."""
    code = """
import random, time
from test_grammar import guide, BYTES
from glassbox.errors import GrammarError, ParameterError
from glassbox.policy.guide import _tokenizer
_tokenizer(BYTES)
rng = random.Random(5)
pieces = [
    'root', '::=', ':', 'start', '"a"', '[', ']', '(', ')', '|', '*', '+', '?', '{1,3}', '{', '}', '\\\\', '/', '/a/',
    '\\n', ' ', '#', '%json', '%llguidance', '%ignore', '"', 'x', '-', '^', '.', '<', '>', '~', '&', '$ref', ',',
    '"type"',
    '@x', '"object"', '"anyOf"', '"$ref":"#"', 'A', '\\x00', 'é', '\\U0001F600', '[max_tokens=3]', '=', '\\u2028',
]
made = 0
for n in range(1500):
    kind = rng.choice(['json_schema', 'regex', 'lark', 'gbnf'])
    begin = {'gbnf': 'root ::= "a" ', 'lark': 'start: "a" ', 'json_schema': '{"type":', 'regex': ''}[kind]
    text = begin + ''.join(rng.choice(pieces) for _ in range(rng.randrange(1, 25)))
    start = time.perf_counter()
    try:
        g = guide({kind: text})
        ids = []
        for _ in range(20):
            allowed = [i for i in g.allowed(ids).tolist() if i < 256]
            if not allowed or g.finished(ids):
                break
            ids.append(rng.choice(allowed))
        made += 1
    except (GrammarError, ParameterError) as e:
        assert '\\n' not in str(e), str(e)
    took = time.perf_counter() - start
    assert took < 2, (kind, text, took)
print(made)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, cwd="tests")
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 50  # enough of them are grammars


def test_generated_json_follows_random_schemas() -> None:
    """Schemas drawn with seed 8: what a random walk through a guide says is JSON of the schema's shape."""
    rng = random.Random(8)

    def draw(depth: int) -> dict[str, Any]:
        kind = rng.choice(["string", "integer", "boolean", "null", "enum", *(["object", "array"] if depth else [])])
        if kind == "enum":
            return {"enum": rng.sample(["a", "bb", 3, None, True, 2.5], 2)}
        if kind == "array":
            return {"type": "array", "items": draw(depth - 1), "minItems": rng.randrange(2), "maxItems": 3}
        if kind == "object":
            names = rng.sample("abcd", 2)
            inner = {name: draw(depth - 1) for name in names}
            return {"type": "object", "properties": inner, "required": names[:1], "additionalProperties": False}
        return {"type": "string", "maxLength": 5} if kind == "string" else {"type": kind}

    def fits(value: Any, schema: dict[str, Any]) -> bool:
        if "enum" in schema:
            return any(value == x and type(value) is type(x) for x in schema["enum"])
        kind = schema["type"]
        if kind == "object":
            known = schema["properties"]
            inside = isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(known)
            return inside and all(fits(v, known[k]) for k, v in value.items())
        if kind == "array":
            inside = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return inside and all(fits(v, schema["items"]) for v in value)
        types = {"string": str, "integer": int, "boolean": bool, "null": type(None)}
        return type(value) is types[kind] and (kind != "string" or len(value) <= 5)

    for _ in range(40):
        schema = draw(3)
        g, ids = guide({"json_schema": schema}), list[int]()
        while not g.finished(ids):
            allowed = g.allowed(ids).tolist()
            assert allowed
            ids.append(256 if 256 in allowed else rng.choice(allowed))
            assert len(ids) < 20_000
        text = bytes(t for t in ids if t < 256).decode()
        assert fits(json.loads(text), schema), (schema, text)
