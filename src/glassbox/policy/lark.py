"""A grammar of any kind as llguidance takes it: Lark. And what is refused before the library sees it.

In: a `Grammar`. Out: Lark text. Raises GrammarError.
The library is compiled code that cannot be interrupted. It bounds most of what it does, but calls itself for every
rule in a rule, and looks through all remainders of a `multipleOf`; so those are bounded here (docs/grammar.md).
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from typing import Any

from glassbox.errors import GrammarError
from glassbox.policy import gbnf
from glassbox.policy.grammar import Grammar

BLANKS = 8  # of JSON's white space in a row, between its parts
MAX_DEPTH = 100  # of a schema: objects and lists in each other
MAX_PARTS = 2_000  # objects and lists of a schema; rules and brackets of a grammar
MAX_LEVELS = 3_000  # of a schema and all it refers to, one after the other
MAX_MULTIPLE = 10_000  # the least common multiple of a schema's multipleOf, without their decimal point
MAX_TIMES = 10_000  # in {N,M}

# Without this the library would allow only its own way to cut a text that is sure to come into tokens.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'
_WHITE_SPACE = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{BLANKS}}}"}
_ANY_OBJECT = '{"type": "object"}'
_STRING = r'"(?:\\.|[^"\\\n])*"'
_SPOKEN = re.compile(rf"{_STRING}|\[(?:\\.|[^\]\\\n])*\]|\\.")  # strings, classes, escapes: no repetitions
_TIMES = re.compile(r"\{\s*([0-9]*)\s*(?:,\s*([0-9]*)\s*)?\}")


def lark_of(grammar: Grammar) -> str:
    """What the library is given. Raises GrammarError for what is wrong, or beyond the limits above."""
    if grammar.kind in ("json_schema", "json_object"):
        text = f"start: %json {_schema(grammar.text or _ANY_OBJECT)}"
    elif grammar.kind == "choice":
        text = f"start: /{'|'.join(''.join(map(_literal, s)) for s in json.loads(grammar.text))}/"
    elif grammar.kind == "regex":
        _within(grammar.text)
        text = "start: /" + re.sub(r"\\.|[/\n]", _slashed, grammar.text) + "/"
    else:
        _within(grammar.text)
        text = gbnf.lark(grammar.text) if grammar.kind == "gbnf" else grammar.text
    return text + _OPTIONS


def _literal(c: str) -> str:
    return c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):X}}}"


def _slashed(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n"}.get(found[0], found[0])


def _within(text: str) -> None:
    """Raises where there are too many rules, brackets (those in strings count too) or repetitions."""
    parts = sum(map(text.count, "([{")) + len(re.findall(":+", text))
    if parts > MAX_PARTS:
        raise GrammarError(f"it has {parts:,} rules and brackets, more than {MAX_PARTS:,}")
    for count in _TIMES.finditer(_SPOKEN.sub("", text)):
        for digits in count.groups():
            if digits and (len(digits) > 9 or int(digits) > MAX_TIMES):
                raise GrammarError(f"{count[0][:40]} repeats more than {MAX_TIMES:,} times")


def _schema(text: str) -> str:
    """The schema as it is compiled: on one line, with bounded white space."""
    _nesting(text)
    try:
        found = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except json.JSONDecodeError as e:
        raise GrammarError(f"the schema is no JSON: {e.msg}", line=e.lineno, column=e.colno) from None
    except (ValueError, RecursionError) as e:
        raise GrammarError(f"the schema is no JSON: {e}") from None
    if not isinstance(found, dict):
        raise GrammarError("the schema must be a JSON object")
    if "x-guidance" in found:
        raise GrammarError("x-guidance, which would change the rules of white space, must be left out")
    _bounded(found)
    return json.dumps(found | {"x-guidance": _WHITE_SPACE})


def _nesting(text: str) -> None:
    depth = parts = 0
    for mark in re.findall(r"[\[\]{}]", re.sub(_STRING, "", text)):
        depth += 1 if mark in "[{" else -1
        parts += mark in "[{"
        if depth > MAX_DEPTH:
            raise GrammarError(f"the schema nests deeper than {MAX_DEPTH}")
    if parts > MAX_PARTS:
        raise GrammarError(f"the schema has {parts:,} objects and lists, more than {MAX_PARTS:,}")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has one key twice")
    return found


def _bounded(schema: dict[str, Any]) -> None:
    """Raises where following all references, or counting in multiples, would take too long."""
    refs, multiples, deepest, patterned = set[str](), 1, dict[int, int](), list[dict[str, Any]]()

    def depth(value: Any) -> int:
        nonlocal multiples
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                refs.add(value["$ref"])
            multiples = math.lcm(multiples, _multiple(value.get("multipleOf")))
            patterned.append(value)
        if not isinstance(value, dict | list):
            return 0
        inner = value.values() if isinstance(value, dict) else value
        deepest[id(value)] = 1 + max(map(depth, inner), default=0)
        return deepest[id(value)]

    whole = depth(schema)
    levels = whole + sum(deepest.get(id(_target(schema, ref)), whole) for ref in refs)
    if levels > MAX_LEVELS:
        raise GrammarError(f"the schema and what it refers to have {levels:,} levels, more than {MAX_LEVELS:,}")
    if multiples > MAX_MULTIPLE:
        raise GrammarError(f"its multipleOf have the common multiple {multiples:.6g}, more than {MAX_MULTIPLE:,}")
    for value in patterned:
        _no_key_twice(value)


def _no_key_twice(schema: dict[str, Any]) -> None:
    """Raises where only patterns may give further keys and one gives a key that has its own schema: the library would
    allow a comma after which no key is left."""
    names, patterns = schema.get("properties"), schema.get("patternProperties")
    if schema.get("additionalProperties") is not False or not isinstance(names, dict) or not isinstance(patterns, dict):
        return
    for pattern in patterns:
        for name in names:
            if _matches(pattern, name):
                raise GrammarError(
                    f"the pattern {pattern[:40]!r} of patternProperties matches the property {name[:40]!r}"
                )


def _matches(pattern: str, name: str) -> bool:
    from llguidance import LLMatcher, LLTokenizer

    schema = LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern})
    matcher, said = LLMatcher(LLTokenizer("byte"), schema, log_level=0), json.dumps(name, ensure_ascii=False).encode()
    return bool(matcher.try_consume_tokens(list(said)) == len(said) and matcher.is_accepting())


def _multiple(value: Any) -> int:
    """A number's digits without the point; 1 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 1
    return abs(Fraction(str(value)).numerator) or 1 if abs(value) < 1e30 else MAX_MULTIPLE + 1


def _target(schema: Any, ref: str) -> Any:
    for key in ref.removeprefix("#").split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list):
            schema = schema[int(key)] if key.isdecimal() and int(key) < len(schema) else None
        else:
            schema = schema.get(key) if isinstance(schema, dict) else None
    return schema
