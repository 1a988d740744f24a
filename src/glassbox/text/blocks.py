"""A template's blocks as tokens, in time linear in its length. Comes in: source. Goes out: `Block`s.

Jinja's own words, as far as they are needed to know what a template does before anything parses it. But: it checks no
grammar. What cannot be told apart as jinja would (a string or a block without end, a statement without a word) ends the
stream as a block BROKEN; so does one of too many tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

MOST_TOKENS = 10_000  # of a block; those of real templates have some 100

_OPEN = re.compile(r"\{([{%#])[-+]?")
_SPACE = re.compile(r"\s*")
_CLOSE = {"{": re.compile(r"[-+]?\}\}"), "%": re.compile(r"[-+]?%\}")}
_END_RAW = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}")
_TOKEN = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<name>[A-Za-z_]\w*)|(?P<number>\d+(?:\.\d+)?)"""
    r"""|(?P<operator>//|\*\*|[=!<>]=|[-+*/%~|.,:()\[\]{}=<>])""",
    re.DOTALL | re.ASCII,
)

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = "\n\\'\"abfnrtvxuUN01234567"


class Token(NamedTuple):
    """A word of a block; of a string, with its quotes."""

    kind: Literal["string", "name", "number", "operator"]
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between {{ and }}, or between {% and %}."""

    tag: Literal["{", "%"]
    tokens: tuple[Token, ...]
    begin: int = 0  # where its first brace stands in the source, and what comes after its last
    end: int = 0
    spans: tuple[tuple[int, int], ...] = ()  # of each token

    @property
    def word(self) -> str:
        """The statement's name: "for", "endif"; empty for {{ and an empty block."""
        return self.tokens[0].text if self.tag == "%" and self.tokens else ""


BROKEN = Block("%", ())


def blocks(source: str) -> Iterator[Block]:
    """The blocks that print or act, in order. What stands in a raw block is text."""
    at = 0
    while opened := _OPEN.search(source, at):
        begin, tag, at = opened.start(), opened[1], opened.end()
        if tag == "#":
            at = source.find("#}", at) + 2
            if at < 2:
                yield BROKEN
                return
            continue
        tokens: list[Token] = []
        spans: list[tuple[int, int]] = []
        while not (closed := _CLOSE[tag].match(source, at := _SPACE.match(source, at).end())):  # type: ignore[union-attr]
            found = _TOKEN.match(source, at)
            if found is None or len(tokens) == MOST_TOKENS:  # no end, or nothing jinja knows
                yield BROKEN
                return
            tokens.append(Token(found.lastgroup, found[0]))  # type: ignore[arg-type]
            spans.append(found.span())
            at = found.end()
        at = closed.end()
        if tag == "%" and not tokens:
            yield BROKEN
            return
        yield Block("{" if tag == "{" else "%", tuple(tokens), begin, at, tuple(spans))
        if tag == "%" and tokens == [Token("name", "raw")]:
            if (ended := _END_RAW.search(source, at)) is None:
                yield BROKEN
                return
            at = ended.end()


def string_literals(source: str) -> list[str]:
    """The string literals in a template's blocks: what it can search for in a message. Longest first."""
    words = {t.text for block in blocks(source) for t in block.tokens if t.kind == "string"}
    found = set(map(said, words))
    return sorted((s for s in found if s and not s.isspace()), key=lambda s: (-len(s), s))


def said(literal: str) -> str:
    """What a string literal says; jinja reads it as Python reads one without its prefix."""
    inside = literal[1:-1]
    if "\\" not in inside:
        return inside
    known = _ESCAPE.sub(lambda e: e[0] if e[1] in _ESCAPES else "\\" + e[0], inside)  # \d stays \d
    try:
        return known.encode("ascii", "backslashreplace").decode("unicode-escape")
    except UnicodeDecodeError:
        return inside
