"""Byte-pair merges, step by step. Comes in: words and ranks. Goes out: parts, and each merge in its order.

The encoders use compiled code; this says the same slowly, for `glassbox tokenize --explain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from glassbox.text.encoded import Merge, Word
from glassbox.text.vocab import ALPHABET, Vocab

Ranks = Mapping[tuple[str, str], int]
Step = tuple[int, str, str]  # rank, left, right


def merge_by_rank(symbols: Sequence[str], ranks: Ranks) -> tuple[list[str], list[Step]]:
    """Join neighbours, lowest rank first, leftmost on ties, until no pair has a rank. O(n log n)."""
    parts: list[str | None] = list(symbols)
    n = len(parts)
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    heap = [(ranks[pair], i, pair) for i in range(n - 1) if (pair := (symbols[i], symbols[i + 1])) in ranks]
    heapify(heap)
    steps: list[Step] = []

    def offer(i: int, j: int) -> None:
        if i >= 0 and j < n and (pair := (parts[i], parts[j])) in ranks:
            heappush(heap, (ranks[pair], i, pair))  # type: ignore[index, misc]

    while heap:
        rank, i, (left, right) = heappop(heap)
        j = after[i]
        if parts[i] != left or j >= n or parts[j] != right:
            continue  # one of them was merged meanwhile
        steps.append((rank, left, right))
        parts[i], parts[j] = left + right, None
        after[i] = after[j]
        if after[i] < n:
            before[after[i]] = i
        offer(before[i], i)
        offer(i, after[i])
    return [p for p in parts if p is not None], steps


def explain_words(words: Sequence[str], vocab: Vocab, ranks: Ranks, whole: Mapping[str, int]) -> list[Word]:
    """Each word (in the byte alphabet) with its merges; words that are `whole` tokens are taken as they are."""
    ids = vocab.of_kind("normal")
    found = []
    for word in words:
        text = _said(word).decode("utf-8", "backslashreplace")
        if word in whole:
            found.append(Word(text, (whole[word],), "whole"))
            continue
        parts, steps = merge_by_rank([c for c in word if c in ids], ranks)
        merges = tuple(Merge(_said(left), _said(right), rank) for rank, left, right in steps)
        found.append(Word(text, tuple(ids[p] for p in parts), "merges", merges))
    return found


def _said(piece: str) -> bytes:
    return b"".join(bytes([ALPHABET[c]]) if c in ALPHABET else c.encode() for c in piece)
