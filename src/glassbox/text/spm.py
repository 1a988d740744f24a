"""SentencePiece vocabularies: BPE by score, and unigram. Comes in: text. Goes out: ids with byte spans.

BPE starts from single characters and joins, again and again, the two neighbours whose joint piece has the highest
score, leftmost on ties: https://github.com/google/sentencepiece/blob/master/src/bpe_model.cc. Unigram: see
unigram.py. A character that is no piece becomes its bytes.

But: not on `tokenizers`. Its BPE wants a ranked list of pairs; for Gemma's 262,144 scored pieces that list
takes longer to derive and load than most prompts take to encode here, and a rank for each pair cannot say
"leftmost on ties" where two pairs make one piece.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate

from glassbox.text.encoded import Encoded, Merge, Span, Word, typed_marks
from glassbox.text.normalise import SentencePieceNormaliser, to_raw
from glassbox.text.segments import utf8
from glassbox.text.unigram import best_path, prefixes_of
from glassbox.text.vocab import SPACE, Vocab

WORDS_KEPT = 50_000
Step = tuple[float, str, str]  # score, left, right


def merge(text: str, cost: Mapping[str, float], log: list[Step] | None = None) -> list[str]:
    """Merge characters into pieces, cheapest pair first, leftmost on ties. O(n log n). `log`: what was done."""
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
        if log is not None:
            log.append((-cost[text[left:stop]], text[left:middle], text[middle:stop]))
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


def word_ends(pieces: Iterable[str]) -> re.Pattern[str]:
    """Where words may be cut apart before they are encoded: where no piece reaches over, before a space."""
    inside = re.compile(f"[^{SPACE}](?={SPACE})")
    glue = {c for piece in pieces if SPACE in piece[1:] for c in inside.findall(piece)}
    return re.compile(f"(?<=[^{SPACE}{''.join(map(re.escape, sorted(glue)))}])(?={SPACE})")


class SentencePieceEncoder:
    """Encodes runs of plain text. Only normal pieces are made, so no text names a control or byte token.

    `unknown`: what a character becomes that neither a piece nor byte tokens say; None: it is missing.
    `normaliser`: only where the rules are more than "a space is U+2581, perhaps one in front".
    """

    def __init__(
        self, vocab: Vocab, scores: Sequence[float], *, unknown: int | None, space_prefix: bool,
        unigram: bool = False, normaliser: SentencePieceNormaliser | None = None,
    ) -> None:  # fmt: skip
        self._pieces = vocab.of_kind("normal")
        self._bytes = {vocab.bytes_of(token)[0]: token for token in vocab.of_kind("byte").values()}
        self._unknown, self._space_prefix, self._normaliser = unknown, space_prefix, normaliser
        self._scores = {piece: scores[token] for piece, token in self._pieces.items()}
        self._split = self._unigram() if unigram else self._bpe()
        self._is_unigram = unigram
        self._cuts = word_ends(self._pieces)
        self._words: dict[str, Encoded] = {}

    def encode(self, text: str, *, first: bool = False) -> Encoded:
        """The tokens of `text`. The space put before the `first` text of a prompt has no bytes of its own."""
        utf8(text)
        if self._normaliser is not None:
            changed, places = self._normaliser(text, first)
            return to_raw(self._in_words(changed, 0), changed, places, text)
        prefix = SPACE if first and self._space_prefix else ""
        found = self._in_words(prefix + text.replace(" ", SPACE), -len(prefix))
        if prefix:
            found.spans = [(token, max(begin, 0), end) for token, begin, end in found.spans]
            found.lost = [b for b in found.lost if b >= 0]
        if SPACE in text:  # typed as such it reads as a space, but has three bytes where a space has one
            _widen(found, text)
        return found

    def explain(self, text: str, *, first: bool = False) -> tuple[str, list[Word]]:
        """The text with its spaces as U+2581, and its words with their merges or their best path."""
        prefix = SPACE if first and self._space_prefix else ""
        seen = self._normaliser(text, first)[0] if self._normaliser else prefix + text.replace(" ", SPACE)
        return seen, [self._explain(word) for word in self._cuts.split(seen) if word]

    def _explain(self, word: str) -> Word:
        ids = tuple(token for token, _, _ in self._word(word).spans)
        if self._is_unigram:
            return Word(word, ids, "path", scores=tuple(self._scores.get(p, self._lowest) for p in self._split(word)))
        log: list[Step] = []
        merge(word, self._cost, log)
        return Word(word, ids, "merges", tuple(Merge(a.encode(), b.encode(), score) for score, a, b in log))

    def _bpe(self) -> Callable[[str], list[str]]:
        self._cost = {piece: -score for piece, score in self._scores.items()}
        return lambda word: merge(word, self._cost)

    def _unigram(self) -> Callable[[str], list[str]]:
        self._lowest = min(self._scores.values(), default=0.0) - 10.0  # SentencePiece's price of an unknown
        prefixes = prefixes_of(self._scores)
        return lambda word: best_path(word, self._scores, prefixes, self._lowest)

    def _in_words(self, text: str, at: int) -> Encoded:
        """The tokens of text whose spaces are U+2581, which count as one byte; the first byte is number `at`."""
        found = Encoded()
        for word in self._cuts.split(text):
            known = self._words.get(word)
            if known is None:
                known = self._remember(word)
            found.spans += [(token, begin + at, end + at) for token, begin, end in known.spans]
            if known.lost or known.missing:
                found.lost += [b + at for b in known.lost]
                found.missing += [b + at for b in known.missing]
            at += len(word.encode()) - 2 * word.count(SPACE)
        return found

    def _remember(self, word: str) -> Encoded:
        if len(self._words) >= WORDS_KEPT:
            self._words.clear()
        found = self._words[word] = self._word(word)
        return found

    def _word(self, word: str) -> Encoded:
        """The tokens of one word, with spans in its bytes, a space being one byte."""
        found: list[Span] = []
        lost: list[int] = []
        missing: list[int] = []
        at = 0
        for piece in self._split(word):
            data = piece.replace(SPACE, " ").encode()
            token = self._pieces.get(piece)
            if token is not None:
                found.append((token, at, at + len(data)))
            elif all(b in self._bytes for b in data):
                found += [(self._bytes[b], at + i, at + i + 1) for i, b in enumerate(data)]
            elif self._unknown is None:
                missing += range(at, at + len(data))
            else:
                lost += range(at, at + len(data))
                begin = at
                if found and found[-1][0] == self._unknown:  # a run of unknown characters is one token
                    begin = found.pop()[1]
                found.append((self._unknown, begin, at + len(data)))
            at += len(data)
        return Encoded(found, lost, missing)


def _widen(found: Encoded, text: str) -> None:
    """Count the bytes of each U+2581 in `text` as the three they are."""
    width = [1 if c == SPACE else len(c.encode()) for c in text]
    typed = [i for i, c in zip(accumulate(width, initial=0), text, strict=False) if c == SPACE]

    def moved(b: int) -> int:
        return b + 2 * bisect_left(typed, b)

    found.spans = [(t, moved(b), moved(e)) for t, b, e in found.spans]
    found.missing = [moved(b) for b in found.missing]
    found.lost = sorted({*map(moved, found.lost), *typed_marks(text)})
