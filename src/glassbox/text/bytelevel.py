"""Byte-level BPE (GPT-2 and its heirs) on the `tokenizers` library. Comes in: text. Goes out: ids with byte
spans.

What distinguishes one such tokenizer from another beside its merges is how it cuts text into words before
merging: see pretokenizers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from glassbox.errors import ModelFormatError
from glassbox.text.encoded import Encoded, Word, walk
from glassbox.text.merges import explain_words
from glassbox.text.normalise import is_nfc
from glassbox.text.pretokenizers import PreTokenizer
from glassbox.text.segments import utf8
from glassbox.text.vocab import Vocab

MERGES = "tokenizer.ggml.merges"


def read_merges(metadata: Mapping[str, Any], pieces: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges in order. Raises ModelFormatError where one is no pair or names an unknown token."""
    lines = metadata.get(MERGES)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ModelFormatError("must be a list of strings", field=MERGES)
    merges = []
    for i, line in enumerate(lines):
        left, space, right = line.partition(" ")
        if not (left and space and right):
            raise ModelFormatError(f"entry {i} is {line!r}, not two pieces with a space between", field=MERGES)
        for piece in (left, right, left + right):
            if piece not in pieces:
                raise ModelFormatError(f"entry {i} names {piece!r}, which is no normal token", field=MERGES)
        merges.append((left, right))
    return merges


def cutter(how: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """The row as the library does it: words in the byte alphabet."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in how.patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


class ByteLevelBpe:
    """Encodes runs of plain text. A byte that no token says is `missing`."""

    def __init__(self, vocab: Vocab, merges: Sequence[tuple[str, str]], how: PreTokenizer) -> None:
        self._vocab, self._how, self._merges = vocab, how, merges
        model = models.BPE(vocab.of_kind("normal"), list(merges), ignore_merges=how.ignore_merges)
        self._engine = Engine(model)
        self._engine.pre_tokenizer = cutter(how)

    def encode(self, text: str, *, first: bool = False) -> Encoded:
        """The tokens of `text`. `first` changes nothing here."""
        data = utf8(text)
        ids = self._engine.encode(text, add_special_tokens=False).ids
        found = walk(data, ids, list(map(self._vocab.bytes_of, ids)))
        if self._how.nfc and not is_nfc(text):
            found.notes = ("the text is not in Unicode form NFC, in which this model was trained: it is left as it is",)
        return found

    def explain(self, text: str, *, first: bool = False) -> tuple[str, list[Word]]:
        """The words of `text` with their merges."""
        words = self._engine.pre_tokenizer.pre_tokenize_str(text)
        whole = self._vocab.of_kind("normal") if self._how.ignore_merges else {}
        return text, explain_words([w for w, _ in words], self._vocab, self._ranks, whole)

    @cached_property
    def _ranks(self) -> dict[tuple[str, str], int]:
        ranks: dict[tuple[str, str], int] = {}
        for i, pair in enumerate(self._merges):
            ranks[pair] = i  # where a pair stands twice the library counts the later place
        return ranks
