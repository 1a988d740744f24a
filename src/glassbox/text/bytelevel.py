"""Byte-level BPE (GPT-2 and its heirs) on the `tokenizers` library. Comes in: text. Goes out: ids with byte
spans.

What distinguishes one such tokenizer from another beside its merges is how it cuts text into words before
merging: one row of a table each. A name that is not in the table is refused, because a near miss changes ids
without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from glassbox.errors import ModelFormatError
from glassbox.text.segments import utf8
from glassbox.text.vocab import Vocab

MERGES = "tokenizer.ggml.merges"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut into words: each pattern in turn isolates its matches."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token, even if no merges lead to it
    add_bos: bool = False  # what is assumed where the file does not say


# Patterns as in llama.cpp, src/llama-vocab.cpp, llm_tokenizer_bpe
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer((_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),)),
}


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


class ByteLevelBpe:
    """Encodes runs of plain text. A byte no token says is left out, as in the reference: spans have a gap."""

    def __init__(self, vocab: Vocab, merges: Sequence[tuple[str, str]], how: PreTokenizer) -> None:
        self._vocab = vocab
        model = models.BPE(vocab.of_kind("normal"), list(merges), ignore_merges=how.ignore_merges)
        self._engine = Engine(model)
        self._engine.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(p), "isolated") for p in how.patterns]
            + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    def encode(self, text: str, *, first: bool = False) -> list[tuple[int, int, int]]:
        """(id, first byte, byte after the last) for each token of `text`. `first` changes nothing here."""
        data, at = utf8(text), 0
        found = []
        for token in self._engine.encode(text, add_special_tokens=False).ids:
            said = self._vocab.bytes_of(token)
            begin = at
            if data.startswith(said, at):
                at += len(said)
            else:  # a byte was left out here: before the token, or inside it
                begin = at = data.index(said[0], at)
                for byte in said:
                    at = data.index(byte, at) + 1
            found.append((token, begin, at))
        return found
