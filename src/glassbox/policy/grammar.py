"""A grammar the output must follow, as plain data; and the step that keeps to it.

In: a kind and a text, or {"json_schema": {…}}, {"regex": "…"}, {"choice": ["a", "b"]}, … Out: a `Grammar`: comparable,
stored with the policy. The step asks the `Guide` of the generation (guide.py) which ids may follow.
But: whether a grammar can be used is found out when it is compiled (lark.py says how, within which limits).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glassbox.errors import ParameterError
from glassbox.policy.distribution import Distribution
from glassbox.policy.step import Past

KINDS = ("json_schema", "json_object", "regex", "lark", "gbnf", "choice")
MAX_TEXT = 1 << 18  # characters of a grammar

_ALLOWED = f"None, or one of {', '.join(KINDS)} with what it says, such as {{'regex': '[0-9]+'}}"
_SHOWN = 40
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)


@dataclass(frozen=True)
class Grammar:
    """What the output must be. `text` is the schema as JSON, the pattern, the rules, or a JSON list of choices.

    Raises ParameterError for an unknown kind, for what is not text of its kind, and for more than MAX_TEXT characters.
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if not (isinstance(self.kind, str) and self.kind in KINDS and isinstance(self.text, str)):
            raise ParameterError("grammar", (self.kind, self.text), _ALLOWED)
        for name in ("kind", "text"):
            object.__setattr__(self, name, str.__str__(getattr(self, name)))  # of an enum, too, the string it is
        if self.kind == "json_object" and self.text:
            raise ParameterError("grammar", {self.kind: self.text}, "left without a text: any object will do")
        if len(self.text) > MAX_TEXT:
            raise ParameterError("grammar", f"of {len(self.text):,} characters", f"at most {MAX_TEXT:,} characters")
        if not self.text.strip() and self.kind != "json_object":
            raise ParameterError("grammar", {self.kind: self.text}, "given with some text")
        try:
            self.text.encode()
        except UnicodeEncodeError as e:
            raise ParameterError("grammar", self.kind, f"text: character {e.start} is a lone surrogate") from None
        if self.kind == "choice":
            _choices(_listed(self.text))

    @classmethod
    def of(cls, value: object) -> Grammar:
        """From a mapping of one kind to what it says; a `Grammar` is itself. Raises ParameterError."""
        if isinstance(value, Grammar):
            return value
        if not isinstance(value, Mapping) or len(value) != 1:
            raise ParameterError("grammar", value, _ALLOWED)
        kind, said = next(iter(value.items()))
        if kind == "json_object":
            if said is not True:
                raise ParameterError("grammar", value, "{'json_object': True}")
            return cls(kind)
        if kind == "choice":
            return cls(kind, _choices(said))
        return cls(kind, said if isinstance(said, str) else _json(said) if kind == "json_schema" else said)

    @classmethod
    def written(cls, text: str) -> Grammar:
        """Rules in GBNF, where a line begins `name ::=`; otherwise in Lark."""
        return cls("gbnf" if _GBNF_RULE.search(text) else "lark", text)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `of` gives an equal grammar back. A schema stays text: the order of its keys counts."""
        if self.kind == "json_object":
            return {self.kind: True}
        return {self.kind: json.loads(self.text) if self.kind == "choice" else self.text}

    def __str__(self) -> str:
        text = " ".join(self.text.split())
        return f"{self.kind} {text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'}".rstrip()


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise ParameterError("grammar", "a schema", f"plain data: {e}") from None


def _listed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _choices(value: object) -> str:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(s, str) and s for s in value):
        raise ParameterError("grammar", {"choice": value}, "a list of strings, none of them empty")
    return _json(list(dict.fromkeys(value)))


@dataclass(frozen=True)
class InGrammar:
    """p_i = 0 unless the bytes of the output and of i begin a text of the grammar; an end of text stays where the
    output is such a text already

    Source: Willard & Louf, "Efficient Guided Generation for Large Language Models", 2023; computed by llguidance, with
    Earley's parser over derivatives of regular expressions
    """

    name: ClassVar[str] = "grammar"
    argmax_invariant: ClassVar[bool] = False
    grammar: Grammar

    @property
    def params(self) -> Mapping[str, float]:
        return {}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        if past.guide is None:
            why = "left out where there is no guide: a model compiles it (glassbox.policy.guide.compiled)"
            raise ParameterError("grammar", str(self.grammar), why)
        ids, forced = past.guide.allowed(past.output_ids), past.guide.forced(past.output_ids)
        forced = max(forced, int(len(ids) == 1))
        notes = {"allowed": len(ids)} | ({"forced": 1, "forced_tokens": forced} if forced else {})
        return before.narrowed(before.among(ids)).noted(**notes)
