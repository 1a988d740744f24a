"""Finds whole pieces in a text: leftmost first, the longest of those that begin at one place."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping


class Matcher:
    """Cuts texts at the pieces it knows. There may be thousands: too many for one regular expression."""

    def __init__(self, pieces: Mapping[str, int]) -> None:
        self._pieces = {p: token for p, token in pieces.items() if p}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for piece in self._pieces:
            lengths[piece[0]].add(len(piece))
        self._lengths = {c: sorted(found, reverse=True) for c, found in lengths.items()}
        self._firsts = re.compile(f"[{''.join(map(re.escape, lengths))}]") if lengths else None

    def cut(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The parts of `text` in order, none empty: (piece, id), and (text, None) for what lies between."""
        at = 0
        for start, piece in self._matches(text):
            if start > at:
                yield text[at:start], None
            yield piece, self._pieces[piece]
            at = start + len(piece)
        if at < len(text):
            yield text[at:], None

    def _matches(self, text: str) -> Iterator[tuple[int, str]]:
        at = 0
        while self._firsts and (begin := self._firsts.search(text, at)):
            at = begin.start()
            for n in self._lengths[text[at]]:
                if (piece := text[at : at + n]) in self._pieces:
                    yield at, piece
                    at += len(piece)
                    break
            else:
                at += 1
