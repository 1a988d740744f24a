"""Finds whole pieces in a text: leftmost first, the longest of those that begin at one place."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

Accept = Callable[[int, int, int], bool]  # begin, end, id


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
        for begin, end, token in self.find(text):
            if begin > at:
                yield text[at:begin], None
            yield text[begin:end], token
            at = end
        if at < len(text):
            yield text[at:], None

    def find(self, text: str, accept: Accept | None = None) -> Iterator[tuple[int, int, int]]:
        """(begin, end, id) of each piece; one that is not accepted there is no piece there."""
        at = 0
        while self._firsts and (first := self._firsts.search(text, at)):
            at = first.start()
            for n in self._lengths[text[at]]:
                token = self._pieces.get(text[at : at + n])
                if token is not None and (accept is None or accept(at, at + n, token)):
                    yield at, at + n, token
                    at += n
                    break
            else:
                at += 1
