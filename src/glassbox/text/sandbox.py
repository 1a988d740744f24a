"""Runs a template that came out of a model file. Comes in: source and plain data. Goes out: text, or TemplateError.

minijinja reaches nothing outside its data, and its fuel bounds steps and text; what is added in Python here is bounded
by hand. White space, filters and functions are as transformers sets jinja2 up (utils/chat_template_utils.py).

But: fuel does not see values that nest, nor all of what comparing costs. A template that may make such values
(tame.py), or takes much fuel, runs in a process of its own (child.py), by the same `run`, so that the text is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import minijinja

from glassbox.errors import TemplateError
from glassbox.text.filters import MISSING, NULL, TESTS, UNDEFINED, Budget, filters, has_whole, null
from glassbox.text.frozen import FrozenDict, FrozenList, frozen, whole_floats

MAX_INDENT = 16
MAX_FORMAT = 100
MAX_SAID = 1000  # characters of an error
MARKS = "glassbox_marks"  # among the data: the characters that mark whose text is whose (segments.py)
OPENS, CLOSES = "\U0010fffc", "\U0010fffd"  # around what generation tags enclose, where that is asked for

# What minijinja has and jinja2, as transformers sets it up, has not: there it is undefined, or an error.
NOT_JINJAS = ("debug",)
NOT_ITS_FILTERS = ("lines", "split", "bool", "zip", "pluralize", "chain", "pprint")


_WHOLE = re.compile(r"[0-9]{1,300}\.0{1,300}(?![0-9])")


class OutOfFuel(TemplateError):
    """The template takes more steps, or makes more text, than its fuel allows."""


class _Refused(Exception):
    """The template called raise_exception."""


class _Helpers:
    """What templates may call. Remembers whether the clock was asked for."""

    def __init__(self, now: datetime) -> None:
        self.now, self.asked_clock, self.budget = now, False, Budget()
        self.whole: set[float] = set()  # whole floats that the data or the template itself hold

    def raise_exception(self, message: object) -> str:
        raise _Refused(str(message))

    def strftime_now(self, form: str) -> str:
        if len(form) > MAX_FORMAT:
            raise ValueError(f"a date format has more than {MAX_FORMAT} characters")
        self.asked_clock = True
        return self.now.strftime(form)

    def tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: Sequence[str] | None = None,
        sort_keys: bool = False,
        glassbox_float: bool | None = None,
    ) -> str:
        """JSON as models were trained on: in the order given, nothing escaped for HTML."""
        if value is MISSING:
            raise TypeError("tojson is given what is undefined")
        if glassbox_float and isinstance(value, int):  # minijinja hands 1.0 over as 1
            value = float(value)
        elif not glassbox_float and self.whole and (glassbox_float is None or not isinstance(value, int)):
            self._refuse_unclear(value)
        width = len(indent) if isinstance(indent, str) else indent or 0
        if width > MAX_INDENT or any(len(s) > MAX_INDENT for s in separators or ()):
            raise ValueError(f"tojson indents by more than {MAX_INDENT}")
        pair = (separators[0], separators[1]) if separators else None
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)
        self.budget.spend(len(text))
        return text

    def _refuse_unclear(self, value: object) -> None:
        """What a template builds itself comes without a sign of which whole numbers were floats; data has it."""
        if isinstance(value, FrozenList | FrozenDict):
            return
        if type(value) is int and value in self.whole:
            raise TemplateError(f"the chat template hides from tojson whether {value} is {value} or {value}.0")
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
            self._refuse_unclear(part)

    def shown(self, value: object) -> object:
        """As Python writes what is no text, where minijinja writes it otherwise."""
        if not isinstance(value, float | list | tuple | dict) or has_whole(value):
            return NotImplemented
        text = str(value)
        self.budget.spend(len(text))
        return text


def check(source: str) -> None:
    """Raises TemplateError where `source` cannot be parsed."""
    _environment(source, 1, _Helpers(datetime.min))


def run(source: str, data: Mapping[str, object], fuel: int, now: datetime) -> tuple[str, bool]:
    """The text, and whether the template asked for the time. Raises TemplateError (its own words)."""
    marks = str(data.get(MARKS, ""))
    data = {name: value for name, value in data.items() if name != MARKS}
    helpers = _Helpers(now)
    helpers.whole = whole_floats(data) | {float(n) for n in _WHOLE.findall(source)}
    env = _environment(source, fuel, helpers)
    try:
        return env.render_template(
            "chat", **{name: frozen(value, marks) for name, value in data.items()}
        ), helpers.asked_clock
    except _Refused as e:
        raise TemplateError(f"the chat template says: {_on_one_line(str(e))}") from None
    except TemplateError:
        raise
    except minijinja.TemplateError as e:
        raise _explained(e) from None
    except (MemoryError, RecursionError):
        raise TemplateError("the chat template was stopped: its values take too much memory or nest too deep") from None
    except Exception as e:  # whatever a hostile template makes our helpers stumble over is its own fault
        raise TemplateError(f"the chat template failed: {e}") from None


def _environment(source: str, fuel: int, helpers: _Helpers) -> minijinja.Environment:
    given: dict[str, Any] = filters(helpers.budget) | {"tojson": helpers.tojson, "glassbox_generated": _marked}
    env = minijinja.Environment(
        debug=False,
        fuel=fuel,
        trim_blocks=True,
        lstrip_blocks=True,
        filters=given,
        tests=TESTS,
        globals={
            "raise_exception": helpers.raise_exception, "strftime_now": helpers.strftime_now, UNDEFINED: MISSING,
            NULL: null,
        },
        finalizer=helpers.shown,
    )  # fmt: skip
    for name in NOT_JINJAS:
        env.remove_global(name)
    for name in NOT_ITS_FILTERS:
        env.remove_filter(name)
    try:
        env.add_template("chat", source)
    except minijinja.TemplateError as e:
        raise _explained(e) from None
    return env


def _marked(text: str) -> str:
    return OPENS + text + CLOSES


def _on_one_line(text: str) -> str:
    """A template's words without what would move a terminal's cursor or colour it."""
    text = "".join(c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in text[: MAX_SAID + 1])
    return text if len(text) <= MAX_SAID else text[:MAX_SAID] + "…"


def _explained(e: minijinja.TemplateError) -> TemplateError:
    if e.kind == "OutOfFuel":
        return OutOfFuel("the chat template was stopped: it runs too long or makes too much text")
    where = f", line {e.line}" if e.line else ""
    return TemplateError(f"the chat template failed{where}: {e.detail or e.message}")
