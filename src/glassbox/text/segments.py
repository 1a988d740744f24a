"""Whose text is whose. Comes in: the strings of a conversation. Goes out: `Segment`s of the rendered prompt.

Special tokens count only where the template wrote them, so each character of a rendered prompt must know its
author. A template is a program that may trim, split and rearrange what it is given; searching its output for
the messages would guess. Instead each character of a message, but white space, gets a mark right behind it (a
private-use character nobody else uses), the template runs on marked strings, and the marks are read back from
its output. The plain render stays the truth: where the marked one without its marks is another text, the
template looked at something the marks hid, and nothing is concluded from them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from glassbox.errors import PromptError

TEMPLATE = "template"
PRIVATE_USE = range(0xF0000, 0x10FFFE)  # planes 15 and 16: no script, no white space, no case
VARIANTS = 8


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a prompt by one author. Special tokens are looked for only in trusted text."""

    origin: str  # "template" | "message 0" | "tools" | "extra" | "prompt" | "tokenizer"
    role: str | None
    text: str
    trusted: bool = False


def utf8(text: str, param: str = "prompt") -> bytes:
    """The bytes of `text`. Raises PromptError for what has none: half a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        why = f"character {e.start} is a lone surrogate U+{ord(text[e.start]):04X}, not text"
        raise PromptError(why, param=param) from None


class Marks:
    """Some marks for each source of text: the character before a mark decides which of them it is."""

    def __init__(self, sources: int, used: Collection[str]) -> None:
        free = (c for c in map(chr, PRIVATE_USE) if c not in used)
        taken = "".join(islice(free, 1 + sources * VARIANTS))
        if len(taken) < 1 + sources * VARIANTS:
            most = len(taken) // VARIANTS
            raise PromptError(f"too many messages: at most {most:,} texts can be told apart", param="messages")
        self.all = taken
        self.end, marks = taken[0], taken[1:]  # `end` stands where a text to be continued ends
        self._tables = [_Table(marks[i * VARIANTS : (i + 1) * VARIANTS]) for i in range(sources)]
        self._source = {mark: i // VARIANTS for i, mark in enumerate(marks)}
        self._unmark: dict[int, None] = dict.fromkeys(map(ord, marks))

    def mark(self, source: int, text: str, spared: Collection[str] = ()) -> str:
        """Mark `text`, but leave white space and the `spared` texts in it (longest first) as they are."""
        parts = re.split(f"({'|'.join(map(re.escape, spared))})", text) if spared else [text]
        parts[::2] = [part.translate(self._tables[source]) for part in parts[::2]]
        return "".join(parts)

    def read(self, marked: str, plain: str) -> list[int] | None:
        """The source of each character of `plain`, -1 for the template. None if `marked` is another text."""
        if marked.translate(self._unmark) != plain:
            return None
        owners: list[int] = []
        before = ""
        for c in marked:
            source = self._source.get(c)
            if source is None:
                owners.append(-1)
                before = c
            # A mark whose character the template has cut off stands behind another one and says nothing.
            elif before and self._tables[source].marks[ord(before) % VARIANTS] == c:
                owners[-1] = source
        return owners


class _Table(dict[int, str]):
    """Puts marks behind characters: a table for str.translate that is made as it is used."""

    def __init__(self, marks: str) -> None:
        super().__init__()
        self.marks = marks

    def __missing__(self, code: int) -> str:
        c = chr(code)
        self[code] = c if c.isspace() else c + self.marks[code % VARIANTS]
        return self[code]


def give_space(owners: list[int], plain: str, texts: Sequence[str]) -> None:
    """White space has no marks: what lies between marked characters of one source, or where its text has
    white space at its ends, is taken to be its own. (No harm if not: no special token is made of it.)
    """
    edges = [(t[: len(t) - len(t.lstrip())], t[len(t.rstrip()) :]) for t in texts]
    runs = [(owner, len(list(group))) for owner, group in groupby(owners)]
    at = 0
    for i, (owner, n) in enumerate(runs):
        begin, at = at, at + n
        before, after = runs[i - 1][0] if i else -1, runs[i + 1][0] if i + 1 < len(runs) else -1
        if owner >= 0:
            continue
        if before == after >= 0 and plain[begin:at].isspace():
            owners[begin:at] = [before] * n
            continue
        if 0 <= before < len(edges) and plain.startswith(edges[before][1], begin, at):
            n = len(edges[before][1])
            owners[begin : begin + n] = [before] * n
        if 0 <= after < len(edges) and plain.endswith(edges[after][0], begin, at):
            n = len(edges[after][0])
            owners[at - n : at] = [after] * n


def cut(text: str, owners: Sequence[int], authors: Sequence[tuple[str, str | None]]) -> tuple[Segment, ...]:
    """Cut `text` where the owner changes; `authors` names each source as (origin, role)."""
    segments, at = [], 0
    for owner, run in groupby(owners):
        begin, at = at, at + len(list(run))
        origin, role = authors[owner] if owner >= 0 else (TEMPLATE, None)
        segments.append(Segment(origin, role, text[begin:at], trusted=owner < 0))
    return tuple(segments)
