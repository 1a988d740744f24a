"""What an encoder gives back for a run of plain text. Comes in: tokens with their bytes. Goes out: `Encoded`.

All offsets are bytes of the run. What a vocabulary lacks (`missing`) is an error for the caller to raise; what
its own rules map to something else (`lost`, `notes`) is told beside the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from glassbox.text.vocab import SPACE

Span = tuple[int, int, int]  # id, first byte, byte after the last


@dataclass(slots=True)
class Encoded:
    """The ids of a run with their places in it."""

    spans: list[Span] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)  # bytes the ids do not say back, as the tokenizer's rules have it
    missing: list[int] = field(default_factory=list)  # bytes for which there is no token at all
    notes: tuple[str, ...] = ()

    def moved(self, by: int) -> Encoded:
        """The same, `by` bytes further on; what would lie before the run lies at its beginning."""
        spans = [(t, max(begin + by, 0), max(end + by, 0)) for t, begin, end in self.spans]
        lost = [i + by for i in self.lost if i + by >= 0]
        missing = [i + by for i in self.missing if i + by >= 0]
        return Encoded(spans, lost, missing, self.notes)


@dataclass(frozen=True, slots=True)
class Merge:
    """One join: two parts become one. `rank`: place in the list of merges, or score, which decides the order."""

    left: bytes
    right: bytes
    rank: float


@dataclass(frozen=True, slots=True)
class Word:
    """How one word became ids: `merges` in the order they were done, or the best path's `scores`, one an id."""

    text: str
    ids: tuple[int, ...]
    how: str  # "merges" | "whole" | "path" | "special" | "user" | "library"
    merges: tuple[Merge, ...] = ()
    scores: tuple[float, ...] = ()


class Encoder(Protocol):
    """Encodes a run of plain text. `first`: nothing but special tokens stands before it in the prompt."""

    def encode(self, text: str, *, first: bool = False) -> Encoded: ...

    def explain(self, text: str, *, first: bool = False) -> tuple[str, list[Word]]:
        """The text as the encoder sees it, and its words with what was done to each."""
        ...


def walk(data: bytes, ids: Sequence[int], said: Sequence[bytes]) -> Encoded:
    """Place tokens in `data`, of which they say every byte in order, but some bytes perhaps not at all."""
    found, at = Encoded(), 0
    for token, what in zip(ids, said, strict=True):
        begin = at
        if data.startswith(what, at):
            at += len(what)
        else:  # a byte was left out here: before the token, or inside it
            begin = data.index(what[0], at)
            found.missing += range(at, begin)
            at = begin
            for byte in what:
                place = data.index(byte, at)
                found.missing += range(at, place)
                at = place + 1
        found.spans.append((token, begin, at))
    found.missing += range(at, len(data))
    return found


def typed_marks(text: str) -> list[int]:
    """The bytes of each U+2581 in `text`: SentencePiece reads it as a space."""
    if SPACE not in text:
        return []
    lost: list[int] = []
    at = 0
    for part in text.split(SPACE)[:-1]:
        at += len(part.encode())
        lost += range(at, at + 3)
        at += 3
    return lost
