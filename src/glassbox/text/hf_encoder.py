"""Encodes runs of plain text as a tokenizer.json says. Comes in: text. Goes out: ids with byte spans.

Order, as the library has it: normalise, cut out the added tokens that are looked for in normalised text, cut into
words, then merge (the library's BPE) or take the best path (unigram.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer as Engine

from glassbox.text.added import AddedMatcher
from glassbox.text.encoded import Encoded, Merge, Word, typed_marks, walk
from glassbox.text.hf import HfParts, engine_of
from glassbox.text.library import library
from glassbox.text.merges import explain_words, merge_by_rank
from glassbox.text.normalise import LibraryNormaliser, to_raw
from glassbox.text.segments import utf8
from glassbox.text.spm import SentencePieceEncoder
from glassbox.text.vocab import ALPHABET, SPACE


class HfEncoder:
    """`unknown`: what stands for that which no token says; None: it is missing."""

    def __init__(self, parts: HfParts, unknown: int | None) -> None:
        self._parts, self._vocab, self._unknown = parts, parts.vocab, unknown
        self._bytes_in_pieces = parts.vocab.style == "byte-level"
        self._normaliser = None if parts.normaliser is None else LibraryNormaliser(parts.normaliser)
        change = self._normaliser.change if self._normaliser else str
        late = [t for t in parts.added if t.normalized and not t.special]
        self._late = AddedMatcher([replace(t, content=change(t.content)) for t in late])
        self._unigram: SentencePieceEncoder | None = None
        self._engines: tuple[Engine, Engine] | None = None
        if parts.scores:
            self._unigram = SentencePieceEncoder(
                parts.vocab, parts.scores, unknown=unknown, space_prefix=False, unigram=True
            )
        else:
            model = engine_of(parts, unknown)
            self._engines = (Engine(model), Engine(model))
            for engine, cutter in zip(self._engines, parts.cutters, strict=True):
                if cutter is not None:
                    engine.pre_tokenizer = cutter

    def encode(self, text: str, *, first: bool = False) -> Encoded:
        """The tokens of `text`; `first`: it stands at the very beginning of the prompt."""
        utf8(text)
        changed = self._normaliser.change(text) if self._normaliser else text
        found = self._changed(changed, first)
        if self._normaliser is None or changed == text:
            found.lost = sorted({*found.lost, *(typed_marks(text) if not self._bytes_in_pieces else ())})
            return found
        if not self._bytes_in_pieces and SPACE not in text:  # spaces are marks by now, which count as one byte
            marked = text.replace(" ", SPACE)
            if changed == marked:
                return found
            if changed == SPACE + marked:
                return found.moved(-1)
        return to_raw(found, changed, self._normaliser.places(text), text)

    def explain(self, text: str, *, first: bool = False) -> tuple[str, list[Word]]:
        """The normalised text, and its words with their merges or their best path."""
        changed = self._normaliser.change(text) if self._normaliser else text
        words: list[Word] = []
        for part, token in self._late.cut(changed):
            words += [Word(part, (token,), "user")] if token is not None else self._explain(part, first)
            first = False
        return changed, words

    def _changed(self, text: str, first: bool) -> Encoded:
        """The tokens of normalised text. In SentencePiece's style, a space mark counts as one byte."""
        found, at = Encoded(), 0
        for part, token in self._late.cut(text):
            size = len(self._meant(part))
            if token is not None:
                found.spans.append((token, at, at + size))
            else:
                here = self._part(part, first)
                found.spans += [(t, at + a, at + b) for t, a, b in here.spans]
                found.lost += [at + b for b in here.lost]
                found.missing += [at + b for b in here.missing]
                found.notes += tuple(n for n in here.notes if n not in found.notes)
            at, first = at + size, False
        return found

    def _part(self, part: str, first: bool) -> Encoded:
        ids, offsets = self._ids(part, first)
        said = [self._vocab.bytes_of(i) for i in ids]
        joined, meant = b"".join(said), self._meant(part)
        if joined == meant:
            return walk(meant, ids, said)
        if joined == b" " + meant:  # the space that the tokenizer puts in front has no bytes of its own
            return walk(joined, ids, said).moved(-1)
        return self._uneven(part, first, ids, offsets)

    def _uneven(self, part: str, first: bool, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> Encoded:
        """The tokens do not say the part back: unknown tokens, missing ones, or a rule that drops text."""
        before = list(accumulate((len(self._meant(c)) for c in part), initial=0))
        found, last = Encoded(), 0
        for token, (a, b) in zip(ids, offsets, strict=True):
            begin, end = max(before[a], last), max(before[b], last)
            if not last and self._vocab.bytes_of(token) == b" " and not part.startswith((" ", SPACE)):
                begin, end = 0, 0  # the space in front
            found.spans.append((token, begin, end))
            if token == self._unknown:
                found.lost += range(before[a], before[b])
            last = end
        words = self._words(part, first)
        unsaid = [word for word, _ in words if self._unsaid(word)] if self._unknown is None else []
        covered = {i for _, a, b in found.spans for i in range(a, b)}
        gaps = [i for i in range(len(self._meant(part))) if i not in covered]
        if unsaid:
            found.missing = self._missing(part) or gaps
        elif gaps:
            found.lost = sorted({*found.lost, *gaps})
            found.notes = ("the tokenizer's own rules drop a part of the text",)
        return found

    def _unsaid(self, word: str) -> bool:
        """Whether a character of a word in the alphabet of the pieces has no token."""
        return any(self._lacks(c) for c in word)

    def _lacks(self, c: str) -> bool:
        if c in self._normal:
            return False
        return self._bytes_in_pieces or not all(b in self._byte_tokens for b in c.encode())

    def _missing(self, part: str) -> list[int]:
        if self._bytes_in_pieces:
            lacking = {b for c, b in ALPHABET.items() if c not in self._normal}
            return [i for i, b in enumerate(part.encode()) if b in lacking]
        missing: list[int] = []
        at = 0
        for c in part:
            size = len(self._meant(c))
            missing += range(at, at + size) if self._lacks(SPACE if c == " " else c) else ()
            at += size
        return missing

    def _meant(self, part: str) -> bytes:
        return (part if self._bytes_in_pieces else part.replace(SPACE, " ")).encode()

    def _words(self, part: str, first: bool) -> list[tuple[str, tuple[int, int]]]:
        cutter = self._parts.cutters[0 if first else 1]
        if cutter is None:
            return [(part, (0, len(part)))]
        with library("pre_tokenizer"):  # of its regular expressions, some texts are too much
            return list(cutter.pre_tokenize_str(part))

    def _ids(self, part: str, first: bool) -> tuple[list[int], Sequence[tuple[int, int]]]:
        if self._engines is not None:
            with library("pre_tokenizer"):
                done = self._engines[0 if first else 1].encode(part, add_special_tokens=False)
            return done.ids, _Offsets(done)
        assert self._unigram is not None
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for word, (begin, end) in self._words(part, first):
            more = len(word) - (end - begin)  # the space that the tokenizer puts in front is no part of the text
            starts = list(accumulate((len(c.encode()) for c in word), initial=0))  # of each character, in bytes
            for token, *span in self._unigram.encode(word).spans:
                a, b = (min(max(begin, begin + bisect_left(starts, byte) - more), end) for byte in span)
                ids.append(token)
                offsets.append((a, b))
        return ids, offsets

    def _explain(self, part: str, first: bool) -> list[Word]:
        words = [w for w, _ in self._words(part, first)]
        if self._unigram is not None:
            return [w for word in words for w in self._unigram.explain(word)[1]]
        whole = self._normal if self._parts.ignore_merges else {}
        if self._bytes_in_pieces:
            return explain_words(words, self._vocab, self._ranks, whole)
        found = []
        for word in words:
            ids = tuple(self._engines[1].model.tokenize(word)) if self._engines else ()
            numbers = tuple(t.id for t in ids)
            if word in whole:
                found.append(Word(word, numbers, "whole"))
                continue
            _, steps = merge_by_rank(list(word), self._ranks)
            merges = tuple(Merge(a.encode(), b.encode(), rank) for rank, a, b in steps)
            found.append(Word(word, numbers, "merges", merges))
        return found

    @cached_property
    def _normal(self) -> dict[str, int]:
        return self._vocab.of_kind("normal")

    @cached_property
    def _byte_tokens(self) -> frozenset[int]:
        return frozenset(self._vocab.bytes_of(t)[0] for t in self._vocab.of_kind("byte").values())

    @cached_property
    def _ranks(self) -> dict[tuple[str, str], int]:
        return {pair: i for i, pair in enumerate(self._parts.merges)}


class _Offsets(Sequence[tuple[int, int]]):
    """The library's offsets, made only when looked at."""

    def __init__(self, done: Any) -> None:
        self._done = done

    @cached_property
    def _list(self) -> list[tuple[int, int]]:
        return list(self._done.offsets)

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, i: Any) -> Any:
        return self._list[i]
