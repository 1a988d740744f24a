"""Unigram tokenization: of all ways to cut a word into pieces, the one with the highest sum of scores.

As SentencePiece does it (https://github.com/google/sentencepiece/blob/master/src/unigram_model.cc), in float64 like
the `tokenizers` library; of equal sums the one found first, going from left to right. Comes in: a word and
scores. Goes out: pieces; a character that is no piece stands alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


def prefixes_of(pieces: Iterable[str]) -> frozenset[str]:
    """Every beginning of every piece: where a text leaves this set, no longer piece can match."""
    return frozenset(piece[:n] for piece in pieces for n in range(1, len(piece) + 1))


def best_path(word: str, scores: Mapping[str, float], prefixes: frozenset[str], unknown: float) -> list[str]:
    """The best pieces. `unknown`: the score of a character that is no piece. O(n × longest piece)."""
    n = len(word)
    best, came_from = [0.0] + [-math.inf] * n, [-1] * (n + 1)
    for i in range(n):
        here = best[i]
        end = i + 1
        if word[i] not in scores and here + unknown > best[end]:
            best[end], came_from[end] = here + unknown, i
        while end <= n and (piece := word[i:end]) in prefixes:
            score = scores.get(piece)
            if score is not None and (here + score > best[end] or came_from[end] < 0):
                best[end], came_from[end] = here + score, i
            end += 1
    pieces = []
    while n:
        pieces.append(word[came_from[n] : n])
        n = came_from[n]
    return pieces[::-1]
