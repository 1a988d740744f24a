"""Filters, tests and methods of strings as jinja2 and Python have them, where minijinja's differ. Comes in: values of a
running template. Goes out: what jinja2 would give.

minijinja's fuel does not see what is made here, so each run has a budget of characters (`Budget`). rewrite.py makes
templates use these: methods as filters, and a mark for what is undefined, which minijinja would hand over as None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from glassbox.text.frozen import FrozenList

METHOD = "glassbox_"  # before a method's name: the filter that does its work
UNDEFINED = "glassbox_undefined"
MAX_MADE = 1 << 24  # characters made here in one run
MAX_WIDTH = 10_000
ITEM = 8  # characters that an item of a list counts as


class Undefined:
    """Stands for what a template has not got."""


MISSING = Undefined()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods that give a text no longer than a few times the one they are called on, or a number, or True or False.
PLAIN_METHODS = _words(
    "strip lstrip rstrip upper lower title capitalize swapcase casefold removeprefix removesuffix startswith endswith "
    "find rfind index rindex count isdigit isalpha isalnum isspace isupper islower istitle isnumeric isdecimal isascii "
    "isidentifier isprintable"
)
LIST_METHODS = frozenset({"split", "rsplit", "splitlines", "partition", "rpartition"})
WIDE_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})
METHODS = PLAIN_METHODS | LIST_METHODS | WIDE_METHODS | {"replace", "join"}

# What is undefined is shown to these as such, where minijinja would hand over None.
WITH_UNDEFINED = _words("tojson trim upper lower capitalize title replace int float indent e escape round")
NULL = "glassbox_null"  # a function that says so where a list is wanted
ITERATING = _words("list join map select reject selectattr rejectattr unique sort")
UNDEFINED_TESTS = frozenset({"sequence", "iterable", "number"})

_WORDS = re.compile(r"([-\s({\[<]+)")
_HTML = {"&": "&amp;", ">": "&gt;", "<": "&lt;", "'": "&#39;", '"': "&#34;"}


class Budget:
    """How much a run may still make here."""

    def __init__(self) -> None:
        self.left = MAX_MADE

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise ValueError(f"the template's filters make more than {MAX_MADE} characters")


def text_of(value: object) -> str:
    """As jinja2 turns a value into text."""
    return value if isinstance(value, str) else "" if value is MISSING else str(value)


def has_whole(value: object) -> bool:
    """Whether a whole number is in it: that may have been a float, which minijinja hands over as one."""
    if isinstance(value, dict):
        return any(map(has_whole, value.values()))
    return any(map(has_whole, value)) if isinstance(value, list | tuple) else type(value) is int


def filters(budget: Budget) -> dict[str, Callable[..., Any]]:
    """By name, with methods among them."""

    def texts(change: Callable[..., str]) -> Callable[..., str]:
        def run(value: object, *rest: Any, **named: Any) -> str:
            made = change(text_of(value), *rest, **named)
            budget.spend(len(made))
            return made

        return run

    def replace(value: object, old: object, new: object, count: int | None = None) -> str:
        return _replace(budget, text_of(value), text_of(old), text_of(new), -1 if count is None else count)

    def indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        if not isinstance(value, str):
            raise TypeError(f"indent is given {type(value).__name__}")
        text = value
        margin = width if isinstance(width, str) else " " * _width(width)
        budget.spend(len(text) + (text.count("\n") + 1) * len(margin))
        head, *lines = f"{text}\n".splitlines()
        lines = [margin + line if line or blank else line for line in lines]
        return (margin if first else "") + "\n".join([head, *lines])

    plain: dict[str, Callable[..., str]] = {
        "trim": str.strip, "upper": str.upper, "lower": str.lower, "capitalize": str.capitalize, "title": _title,
        "e": _escape, "escape": _escape,
    }  # fmt: skip
    methods = {METHOD + name: _method(name, budget) for name in METHODS}
    others: dict[str, Callable[..., Any]] = {
        "int": _int,
        "float": _float,
        "round": _round,
    }
    others |= {"replace": replace, "indent": indent}
    return {name: texts(f) for name, f in plain.items()} | others | methods


TESTS: Mapping[str, Callable[[Any], bool]] = {
    "sequence": lambda value: value is MISSING or isinstance(value, str | list | tuple | dict),
    "iterable": lambda value: value is MISSING or hasattr(value, "__iter__"),
    "number": lambda value: isinstance(value, int | float),
    "lower": lambda value: text_of(value).islower(),
    "upper": lambda value: text_of(value).isupper(),
}


def null() -> NoReturn:
    raise TypeError("null, or what is undefined, stands where a list is wanted")


def _method(name: str, budget: Budget) -> Callable[..., Any]:
    def run(value: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(value, list | tuple) and name in ("count", "index"):
            return getattr(value, name)(*rest)
        if not isinstance(value, str):
            raise TypeError(f"{type(value).__name__} has no method {name}")
        if name == "replace":
            return _replace(budget, value, *rest, **named)
        if name == "join":
            items = [item for part in rest[:1] for item in part]
            budget.spend(sum(len(item) + len(value) for item in items))
            return value.join(items)
        if name in WIDE_METHODS:
            _width(*rest[:1])
        if name in ("startswith", "endswith") and rest and isinstance(rest[0], list):
            rest = (tuple(rest[0]), *rest[1:])
        made = getattr(str, name)(value, *rest, **named)
        if name in LIST_METHODS:
            budget.spend(sum(map(len, made)) + ITEM * len(made))
            return made if isinstance(made, tuple) else FrozenList(made)
        budget.spend(len(made) if isinstance(made, str) else 0)
        return made

    return run


def _replace(budget: Budget, text: str, old: str, new: str, count: int = -1) -> str:
    times = text.count(old) if count < 0 else min(count, text.count(old))
    budget.spend(len(text) + times * max(0, len(new) - len(old)))
    return text.replace(old, new, count)


def _width(width: int) -> int:
    if width > MAX_WIDTH:
        raise ValueError(f"the template makes a text wider than {MAX_WIDTH}")
    return width


def _title(text: str) -> str:
    return "".join(part[0].upper() + part[1:].lower() for part in _WORDS.split(text) if part)


def _escape(text: str) -> str:
    return "".join(_HTML.get(c, c) for c in text)


def _defined(value: Any) -> Any:
    if value is MISSING:
        raise ValueError("a number is made of what is undefined")
    return value


def _int(value: Any, default: object = 0, base: int = 10) -> object:
    value = _defined(value)
    try:
        return int(value, base) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        try:
            return int(float(value))
        except (TypeError, ValueError, OverflowError):
            return default


def _float(value: Any, default: object = 0.0) -> object:
    try:
        return float(_defined(value))
    except (TypeError, ValueError):
        if value is MISSING:
            raise
        return default


def _round(value: Any, precision: int = 0, method: str = "common") -> object:
    if method not in ("common", "ceil", "floor"):
        raise ValueError("round knows the methods common, ceil and floor")
    if abs(precision) > 300:
        raise ValueError("round to so many digits")
    if method == "common":
        return round(_defined(value), precision)
    import math

    return (math.ceil if method == "ceil" else math.floor)(_defined(value) * (10**precision)) / (10**precision)
