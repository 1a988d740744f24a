"""GBNF, llama.cpp's notation for grammars, read and written anew in Lark.

In: rules with a `root`. Out: Lark of the same language. A grammar that does not come back to itself becomes one regular
expression; of any other each character becomes a lexeme of its own, so that no lexeme takes more than a rule wants.
But: only what llama.cpp's reader takes (grammars/README.md there), without its tokens in angle brackets. What is not
understood is refused with line, column and the piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from glassbox.errors import GrammarError

MAX_DEPTH = 100  # parentheses in parentheses
MAX_REGEX = 50_000  # characters of the one regular expression; a longer one is left to the parser

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
HEX = {"x": 2, "u": 4, "U": 8}  # escape -> digits

# An expression is ("chars", text of a class), ("rule", name), ("all", [expressions]), ("any", [expressions]) or
# ("times", expression, least, most or None).
Expression = tuple[object, ...]

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[0-9A-Za-z_-]+")
_COUNT = re.compile(r"\{[ \t]*([0-9]+)[ \t]*(?:(,)[ \t]*([0-9]*)[ \t]*)?\}")


def lark(text: str) -> str:
    """The same language in Lark. Raises GrammarError."""
    rules = _Reader(text).rules
    if "root" not in rules:
        raise GrammarError("there is no rule named root")
    whole = _regex(rules)
    return f"start: /{whole}/" if whole else _lark_rules(rules)


class _Reader:
    """Reads all rules; a name that is never defined is an error."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.rules: dict[str, Expression] = {}
        uses: dict[str, int] = {}
        self.used = uses
        self.skip(lines=True)
        while self.at < len(text):
            name, at = self.name(), self.at
            self.skip()
            if not self.take("::="):
                self.refuse("expected ::=")
            if name in self.rules:
                self.refuse(f"a second rule {name!r}", at - len(name))
            self.skip(lines=True)
            self.rules[name] = self.alternatives()
            if self.at < len(text) and text[self.at] not in "\r\n":
                self.refuse("expected a new line")
            self.skip(lines=True)
        for name, at in uses.items():
            if name not in self.rules:
                self.refuse(f"no rule {name!r}", at)

    def refuse(self, why: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        line, begin = self.text.count("\n", 0, at) + 1, self.text.rfind("\n", 0, at) + 1
        here = self.text[at : at + 12].partition("\n")[0]
        raise GrammarError(f"{why}, at {here!r}" if here else f"{why}, at the end", line=line, column=at - begin + 1)

    def skip(self, *, lines: bool = False) -> None:
        found = (_SPACE_AND_LINES if lines else _SPACE).match(self.text, self.at)
        self.at = found.end() if found else self.at

    def take(self, mark: str) -> bool:
        found = self.text.startswith(mark, self.at)
        self.at += len(mark) * found
        return found

    def name(self) -> str:
        found = _NAME.match(self.text, self.at)
        if found is None:
            self.refuse("expected a name")
        self.at = found.end()
        return found[0]

    def alternatives(self) -> Expression:
        found = [self.sequence()]
        while self.take("|"):
            self.skip(lines=True)
            found.append(self.sequence())
        return found[0] if len(found) == 1 else ("any", found)

    def sequence(self) -> Expression:
        found: list[Expression] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)\r\n":
            found.append(self.repeated(self.element()))
            self.skip(lines=self.depth > 0)
        return ("all", found)

    def element(self) -> Expression:
        at, c = self.at, self.text[self.at]
        if c == '"':
            return self.literal()
        if c == "[":
            return self.character_class()
        if c == "(":
            return self.group()
        if c == ".":
            self.at += 1
            return ("chars", r"[\x{0}-\x{10FFFF}]")
        if c in "<!":
            self.refuse("tokens are not supported")
        name = self.name()
        self.used.setdefault(name, at)
        return ("rule", name)

    def group(self) -> Expression:
        opened, self.at, self.depth = self.at, self.at + 1, self.depth + 1
        if self.depth > MAX_DEPTH:
            self.refuse(f"more than {MAX_DEPTH} parentheses in each other")
        self.skip(lines=True)
        found = self.alternatives()
        if not self.take(")"):
            self.refuse("this parenthesis is not closed", opened)
        self.depth -= 1
        return found

    def repeated(self, what: Expression) -> Expression:
        self.skip(lines=self.depth > 0)
        while self.at < len(self.text) and self.text[self.at] in "*+?{":
            at, c = self.at, self.text[self.at]
            if c == "{":
                count = _COUNT.match(self.text, at)
                if count is None:
                    self.refuse("expected {N}, {N,} or {N,M}")
                least = int(count[1])
                most = least if not count[2] else int(count[3]) if count[3] else None
                if most is not None and most < least:
                    self.refuse("the upper count is below the lower")
                self.at = count.end()
            else:
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[c]
                self.at += 1
            what = ("times", what, least, most)
            self.skip(lines=self.depth > 0)
        return what

    def literal(self) -> Expression:
        opened, self.at = self.at, self.at + 1
        found: list[Expression] = []
        while not self.take('"'):
            found.append(("chars", _char(self.char(opened))))
        return ("all", found)

    def character_class(self) -> Expression:
        opened, self.at = self.at, self.at + 1
        negated, parts = self.take("^"), list[str]()
        while not self.take("]"):
            low = high = self.char(opened)
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                at, self.at = self.at, self.at + 1
                high = self.char(opened)
                if high < low:
                    self.refuse("a range that ends before it begins", at - 1)
            parts.append(_char(low) if low == high else f"{_char(low)}-{_char(high)}")
        if not parts:
            self.refuse("an empty class", opened)
        return ("chars", f"[{'^' if negated else ''}{''.join(parts)}]")

    def char(self, opened: int) -> str:
        """One character of a literal or a class, escapes understood."""
        if self.at >= len(self.text) or self.text[self.at] in "\r\n":
            self.refuse("this is not closed", opened)
        at, c = self.at, self.text[self.at]
        self.at += 1
        if c != "\\":
            return c
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind in ESCAPES and kind:
            return ESCAPES[kind]
        digits = self.text[self.at : self.at + HEX.get(kind, 0)]
        code = int(digits, 16) if re.fullmatch("[0-9A-Fa-f]+", digits) and len(digits) == HEX[kind] else -1
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code < 0xE000:
            known = ", ".join(["\\" + c for c in ESCAPES] + [f"\\{k} with {n} hex digits" for k, n in HEX.items()])
            self.refuse(f"the escape \\{kind} is not supported (there are {known})", at)
        self.at += len(digits)
        return chr(code)


def _char(c: str) -> str:
    return c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):X}}}"


def _times(least: int, most: int | None) -> str:
    marks = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return marks.get((least, most)) or f"{{{least},{'' if most is None else most}}}"


def _regex(rules: Mapping[str, Expression]) -> str | None:
    """The grammar as one regular expression; None where a rule comes back to itself, or where it gets too long."""
    known: dict[str, str] = {}
    for name in _order(rules) or ():
        known[name] = f"(?:{_written(rules[name], known.__getitem__)})"
        if len(known[name]) > MAX_REGEX:
            return None
    return known.get("root")


def _order(rules: Mapping[str, Expression]) -> list[str] | None:
    """The rules that root needs, each after those it needs; None where there is no such order."""
    found: dict[str, bool] = {}  # False while its own are looked at
    stack: list[tuple[str, Iterable[str]]] = [("root", iter(_names(rules["root"])))]
    found["root"] = False
    while stack:
        name, needs = stack[-1]
        need = next(iter(needs), None)
        if need is None:
            found[name] = True
            found[name] = found.pop(name)  # in the order of being done
            stack.pop()
        elif need not in found:
            found[need] = False
            stack.append((need, iter(_names(rules[need]))))
        elif not found[need]:
            return None
    return list(found)


def _names(e: Expression) -> list[str]:
    if e[0] == "rule":
        return [str(e[1])]
    inner = e[1:2] if e[0] == "times" else e[1] if e[0] in ("all", "any") else ()
    return [name for x in inner for name in _names(x)]  # type: ignore[attr-defined]


def _written(e: Expression, rule: Callable[[str], str], between: str = "") -> str:
    """An expression as a regular expression, or with `between` a space and each class in slashes as Lark."""
    kind, inner = e[0], e[1]
    if kind == "chars":
        return f"/{inner}/" if between else str(inner)
    if kind == "rule":
        return rule(str(inner))
    if kind == "times":
        return _grouped(_written(inner, rule, between), between) + _times(e[2], e[3])  # type: ignore[arg-type]
    parts = [_written(x, rule, between) for x in inner]  # type: ignore[attr-defined]
    if kind == "all":
        return between.join(parts) or ('""' if between else "")
    return _grouped("|".join(parts), between)


def _grouped(text: str, between: str) -> str:
    return f"({text})" if between else f"(?:{text})"


def _lark_rules(rules: Mapping[str, Expression]) -> str:
    """Rule for rule, with each group a rule of its own: nothing nests."""
    names = {name: "start" if name == "root" else f"r{i}" for i, name in enumerate(rules)}
    lines: list[str] = []

    def flat(e: Expression) -> Expression:
        if e[0] == "times":
            return ("times", alone(e[1]), e[2], e[3])  # type: ignore[arg-type]
        if e[0] == "all":
            return ("all", [alone(x) if x[0] in ("all", "any") else flat(x) for x in e[1]])  # type: ignore[attr-defined]
        return e

    def alone(e: Expression) -> Expression:
        if e[0] in ("chars", "rule"):
            return e
        name = f"g{len(names)}"
        names[name] = name
        lines.append(f"{name}: {body(e)}")
        return ("rule", name)

    def body(e: Expression) -> str:
        each = e[1] if e[0] == "any" else [e]
        return " | ".join(_written(flat(x), names.__getitem__, " ") for x in each)  # type: ignore[attr-defined]

    for name, e in list(rules.items()):
        lines.append(f"{names[name]}: {body(e)}")
    return "\n".join(lines)
