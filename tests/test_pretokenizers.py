"""Every row of the table cuts as an independent statement of the same rule does, on the whole corpus."""

from __future__ import annotations

import time

import pytest
import regex
from text_corpus import corpus
from tokenizers import pre_tokenizers

from glassbox.text.bytelevel import cutter
from glassbox.text.pretokenizers import PRE_TOKENIZERS
from glassbox.text.vocab import ALPHABET

LINES = corpus()

# ruff: noqa: E501
# The patterns as each model's own tokenizer.json has them, letter by letter, for another regular-expression engine.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SEED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
DEEPSEEK3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""

STATED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "a.x-4.0", "mellum", "trillion", "granite-docling"), (GPT2,)),
    **dict.fromkeys(
        ("starcoder", "refact", "smollm", "exaone", "minerva-7b", "codeshell", "command-r"), (r"\p{N}", GPT2)
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), (LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), (QWEN2,)),
    "qwen35": (QWEN35,), "seed-coder": (SEED,), "tekken": (TEKKEN,), "gpt-4o": (GPT4O,),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (BLOOM,)),
    "viking": (BLOOM, r"\p{N}"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek-v3": (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK3),
}  # fmt: skip
WHOLE = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}  # ignore_merges


def cut(text: str, patterns: tuple[str, ...]) -> list[str]:
    """Each pattern in turn isolates its matches."""
    pieces = [text]
    for pattern in patterns:
        pieces = [p for piece in pieces for p in _isolate(piece, pattern)]
    return pieces


def _isolate(text: str, pattern: str) -> list[str]:
    parts, at = [], 0
    for m in regex.finditer(pattern, text):
        if m.end() > m.start():
            parts += [text[at : m.start()], m[0]]
            at = m.end()
    return [p for p in (*parts, text[at:]) if p]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_a_row_cuts_as_its_pattern(name: str) -> None:
    how = cutter(PRE_TOKENIZERS[name])
    for line in LINES:
        words = [bytes(ALPHABET[c] for c in w).decode() for w, _ in how.pre_tokenize_str(line)]
        assert words == cut(line, STATED[name]), line


def test_rows_and_statements_are_the_same_set() -> None:
    assert set(STATED) == set(PRE_TOKENIZERS)
    assert {name for name, how in PRE_TOKENIZERS.items() if how.ignore_merges} == WHOLE


def test_digits_as_the_library_splits_them() -> None:
    """The models of these rows use the library's Digits and its built-in pattern rather than patterns of their own."""
    there = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
    here = cutter(PRE_TOKENIZERS["starcoder"])
    plain, built_in = cutter(PRE_TOKENIZERS["gpt-2"]), pre_tokenizers.ByteLevel(False)
    for line in LINES:
        assert [w for w, _ in here.pre_tokenize_str(line)] == [w for w, _ in there.pre_tokenize_str(line)]
        assert [w for w, _ in plain.pre_tokenize_str(line)] == [w for w, _ in built_in.pre_tokenize_str(line)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "Hello  world1234", ["Hello", " ", " world", "1234"]),
        ("smollm", "x12", ["x", "1", "2"]),
        ("llama-bpe", "12345 'Tis I'M", ["123", "45", " '", "Tis", " I", "'M"]),
        ("qwen2", "a.b 12\n\n c", ["a", ".b", " ", "1", "2", "\n\n", " c"]),
        ("tekken", "helloWorld ABCdef", ["hello", "World", " ABCdef"]),
        ("gpt-4o", "it's HELLOworld", ["it's", " HELLOworld"]),
        ("bloom", "Hi, you (all)", ["Hi", ",", " you", " (", "all", ")"]),
        ("deepseek-v3", "日本12345x", ["日本", "123", "45", "x"]),
        ("deepseek-coder", "a 1\nb", ["a", " ", "1", "\n", "b"]),
    ],
)
def test_examples_by_hand(name: str, text: str, words: list[str]) -> None:
    got = [bytes(ALPHABET[c] for c in w).decode() for w, _ in cutter(PRE_TOKENIZERS[name]).pre_tokenize_str(text)]
    assert got == words


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gpt-2", "starcoder", "llama-bpe", "tekken", "gpt-4o", "bloom", "deepseek-coder", "deepseek-v3"]
)
def test_no_row_is_quadratic(name: str) -> None:
    how = cutter(PRE_TOKENIZERS[name])
    for unit in ("a", "A", " ", "日", "A日", "\n", " \n", "1", "!", "a ", "e\u0301", "'", "👍"):
        begin = time.perf_counter()
        how.pre_tokenize_str((unit * 300_000)[:300_000] + "x")
        assert time.perf_counter() - begin < 4
