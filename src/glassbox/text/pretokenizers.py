"""How byte-level tokenizers cut text into words before merging. Data only: a name is a row.

A row is the patterns in order (each isolates its matches, what lies between stays a word) and flags. Names as
in GGUF's `tokenizer.ggml.pre`; patterns as in the models' own tokenizer.json, which the public converters'
table (llama.cpp, src/llama-vocab.cpp) restates, for some names (tekken, gpt-4o) only for ASCII. A name that is not here
is refused: a near miss changes ids without a word. Left out on purpose: deepseek-llm (the published copies of
its letter ranges contradict each other), pixtral, superbpe, and whatever no supported architecture uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut into words: each pattern in turn isolates its matches."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token, even if no merges lead to it
    add_bos: bool = False  # what is assumed where the file does not say
    nfc: bool = False  # the models of this name were trained on text in Unicode form NFC


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_SEED_CODER = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
# Words that begin with capitals and go on in small letters, or are all capitals.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SIGNS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SIGNS}"
_GPT4O = rf"{_CASED[0]}{_SHORT}?|{_CASED[1]}{_SHORT}?|\p{{N}}{{1,3}}|{_SIGNS}"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CJK = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_CJK_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)

_BYTE_LEVEL = PreTokenizer((_GPT2,))
_DIGITS = PreTokenizer((_DIGIT, _GPT2))  # digits one by one, then as gpt-2
_LLAMA = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN = PreTokenizer((_QWEN2,), nfc=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": _BYTE_LEVEL,
    "mpt": PreTokenizer((_GPT2,), nfc=True),  # gpt-neox
    "olmo": PreTokenizer((_GPT2,), nfc=True),
    "a.x-4.0": _BYTE_LEVEL,
    "mellum": _BYTE_LEVEL,
    "trillion": _BYTE_LEVEL,
    "granite-docling": _BYTE_LEVEL,
    "starcoder": _DIGITS,
    "refact": _DIGITS,  # granite
    "smollm": _DIGITS,
    "exaone": _DIGITS,
    "minerva-7b": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": PreTokenizer((_DIGIT, _GPT2), nfc=True),
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "falcon3": _LLAMA,
    "dbrx": PreTokenizer((_LLAMA3,)),  # olmo2, phi-4
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "megrez": _QWEN,
    "stablelm2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),  # phi-4-mini
    "bloom": PreTokenizer((_BLOOM,)),
    "poro-chat": PreTokenizer((_BLOOM,)),
    "gpt3-finnish": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT)),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", _CJK_KANA, _DEEPSEEK3)),
}
