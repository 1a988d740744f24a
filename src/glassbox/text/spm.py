"""SentencePiece BPE with byte fallback. Comes in: text. Goes out: ids with byte spans.

Starts from single characters and joins, again and again, the two neighbours whose joint piece has the highest
score, leftmost on ties: https://github.com/google/sentencepiece/blob/master/src/bpe_model.cc. A character
that is no piece becomes its bytes.

But: not on `tokenizers`. Its BPE wants a ranked list of pairs; for Gemma's 262,144 scored pieces that list
takes longer to derive and load than most prompts take to encode here, and a rank for each pair cannot say
"leftmost on ties" where two pairs make one piece.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate

from glassbox.text.segments import utf8
from glassbox.text.vocab import SPACE, Vocab

WORDS_KEPT = 50_000
Span = tuple[int, int, int]  # id, first byte, byte after the last


def merge(text: str, cost: Mapping[str, float]) -> list[str]:
    """Merge characters into pieces, cheapest pair first, leftmost on ties. O(n log n)."""
    n = len(text)
    end, before = (
        list(range(1, n + 1)),
        list(range(-1, n)),
    )  # of the piece that begins here: its end, the one before it
    heap = [(cost[pair], i, i + 2) for i in range(n - 1) if (pair := text[i : i + 2]) in cost]
    heapify(heap)
    while heap:
        _, left, stop = heappop(heap)
        middle = end[left]
        # A pair is stale if a piece of it was merged meanwhile; end is 0 where no piece begins any more.
        if not 0 < middle < stop or end[middle] != stop:
            continue
        end[left], end[middle], before[stop] = stop, 0, left
        if (ahead := before[left]) >= 0 and (piece := text[ahead:stop]) in cost:
            heappush(heap, (cost[piece], ahead, stop))
        if stop < n and (piece := text[left : end[stop]]) in cost:
            heappush(heap, (cost[piece], left, end[stop]))
    pieces, at = [], 0
    while at < n:
        pieces.append(text[at : end[at]])
        at = end[at]
    return pieces


class SentencePieceBpe:
    """Encodes runs of plain text. Only normal pieces are merged, so no text names a control or byte token."""

    def __init__(self, vocab: Vocab, scores: Sequence[float], *, unknown: int | None, space_prefix: bool) -> None:
        self._pieces = vocab.of_kind("normal")
        self._cost = {piece: -scores[token] for piece, token in self._pieces.items()}
        self._bytes = {vocab.bytes_of(token)[0]: token for token in vocab.of_kind("byte").values()}
        self._unknown, self._space_prefix = unknown, space_prefix
        # No merge reaches over a place that lies within no piece: words end there, and each is merged once.
        inside = re.compile(f"[^{SPACE}](?={SPACE})")
        glue = {c for piece in self._pieces if SPACE in piece[1:] for c in inside.findall(piece)}
        self._cuts = re.compile(f"(?<=[^{SPACE}{''.join(map(re.escape, sorted(glue)))}])(?={SPACE})")
        self._words: dict[str, list[Span]] = {}

    def encode(self, text: str, *, first: bool = False) -> list[Span]:
        """The tokens of `text`. The space put before the `first` text of a prompt has no bytes of its own."""
        utf8(text)
        prefix = SPACE if first and self._space_prefix else ""
        found: list[Span] = []
        at = -len(prefix)
        for word in self._cuts.split(prefix + text.replace(" ", SPACE)):
            spans = self._words.get(word)
            if spans is None:
                spans = self._remember(word)
            found += [(token, begin + at, end + at) for token, begin, end in spans]
            at += len(word.encode()) - 2 * word.count(SPACE)
        if prefix:
            found = [(token, max(begin, 0), end) for token, begin, end in found]
        if SPACE in text:  # typed as such it reads as a space, but has three bytes where a space has one
            width = [1 if c == SPACE else len(c.encode()) for c in text]
            typed = [i for i, c in zip(accumulate(width, initial=0), text, strict=False) if c == SPACE]
            found = [(t, b + 2 * bisect_left(typed, b), e + 2 * bisect_left(typed, e)) for t, b, e in found]
        return found

    def _remember(self, word: str) -> list[Span]:
        if len(self._words) >= WORDS_KEPT:
            self._words.clear()
        spans = self._words[word] = self._word(word)
        return spans

    def _word(self, word: str) -> list[Span]:
        """The tokens of one word, with spans in its bytes, a space being one byte."""
        found: list[Span] = []
        at = 0
        for piece in merge(word, self._cost):
            data = piece.replace(SPACE, " ").encode()
            token = self._pieces.get(piece)
            if token is not None:
                found.append((token, at, at + len(data)))
            elif all(b in self._bytes for b in data):
                found += [(self._bytes[b], at + i, at + i + 1) for i, b in enumerate(data)]
            elif self._unknown is not None and found and found[-1][0] == self._unknown:
                found[-1] = (
                    self._unknown,
                    found[-1][1],
                    at + len(data),
                )  # a run of unknown characters is one token
            elif self._unknown is not None:
                found.append((self._unknown, at, at + len(data)))
            at += len(data)
        return found
