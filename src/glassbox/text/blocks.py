"""A template's blocks as tokens, in time linear in its length. Comes in: source. Goes out: `Block`s.

Jinja's own words, as far as they are needed to know what a template does before anything parses it. But: it checks no
grammar. What cannot be told apart as jinja would (a string or a block without end) ends the stream as a block BROKEN.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

_OPEN = re.compile(r"\{([{%#])[-+]?")
_SPACE = re.compile(r"\s*")
_CLOSE = {"{": re.compile(r"[-+]?\}\}"), "%": re.compile(r"[-+]?%\}")}
_TOKEN = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<name>[A-Za-z_]\w*)|(?P<number>\d+(?:\.\d+)?)"""
    r"""|(?P<operator>//|\*\*|[=!<>]=|[-+*/%~|.,:()\[\]{}=<>])""",
    re.DOTALL | re.ASCII,
)


class Token(NamedTuple):
    """A word of a block; of a string, with its quotes."""

    kind: Literal["string", "name", "number", "operator"]
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between {{ and }}, or between {% and %}."""

    tag: Literal["{", "%"]
    tokens: tuple[Token, ...]


BROKEN = Block("%", ())


def blocks(source: str) -> Iterator[Block]:
    """The blocks that print or act, in order."""
    at = 0
    while opened := _OPEN.search(source, at):
        tag, at = opened[1], opened.end()
        if tag == "#":
            at = source.find("#}", at) + 2
            if at < 2:
                yield BROKEN
                return
            continue
        tokens: list[Token] = []
        while not (closed := _CLOSE[tag].match(source, at := _SPACE.match(source, at).end())):  # type: ignore[union-attr]
            found = _TOKEN.match(source, at)
            if found is None:  # no end, or nothing jinja knows
                yield BROKEN
                return
            tokens.append(Token(found.lastgroup, found[0]))  # type: ignore[arg-type]
            at = found.end()
        yield Block("{" if tag == "{" else "%", tuple(tokens))
        at = closed.end()


def string_literals(source: str) -> list[str]:
    """The string literals in a template's blocks: what it can search for in a message. Longest first."""
    words = {t.text for block in blocks(source) for t in block.tokens if t.kind == "string"}
    found = set(map(_said, words))
    return sorted((s for s in found if s and not s.isspace()), key=lambda s: (-len(s), s))


def _said(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal.replace("\n", "\\n")))
    except (ValueError, SyntaxError):
        return literal[1:-1]
