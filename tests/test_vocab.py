"""Vocab: bytes, kinds, and what it refuses."""

from __future__ import annotations

import time
from typing import Any

import pytest
from text_cases import byte_level, spm

from glassbox.errors import ModelFormatError
from glassbox.text.vocab import ALPHABET, TOKENS, TYPES, Vocab
from glassbox.weights.gguf import Gguf

MISSING = bytes([0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)])


def test_the_alphabet_says_every_byte_once() -> None:
    assert sorted(ALPHABET.values()) == list(range(256))
    assert (ALPHABET["Ġ"], ALPHABET["Ċ"], ALPHABET["a"]) == (0x20, 0x0A, 0x61)


def test_kinds_and_bytes_of_a_byte_level_vocabulary() -> None:
    vocab = Vocab.from_gguf(byte_level(("Ġ a", "Ã ©"), user=("<b>",)), "byte-level")
    end, user = vocab.pieces.index("<|end|>"), vocab.pieces.index("<b>")
    space_a, e_acute = vocab.pieces.index("Ġa"), vocab.pieces.index("Ã©")
    assert vocab.bytes_of(space_a) == b" a" and vocab.kind_of(space_a) == "normal"
    assert vocab.bytes_of(e_acute) == "é".encode() and vocab.text_of(e_acute) == "é"
    assert vocab.text_of(vocab.pieces.index("Ã")) == "\\xc3"
    assert (vocab.kind_of(end), vocab.bytes_of(end), vocab.text_bytes(end)) == ("control", b"<|end|>", b"")
    assert (vocab.kind_of(user), vocab.text_bytes(user)) == ("user", b"<b>")


def test_kinds_and_bytes_of_a_sentencepiece_vocabulary() -> None:
    vocab = Vocab.from_gguf(spm({"▁a": -1.0, "<0xEA>": -2.0}, byte=True, user=("\n\n",)), "sentencepiece")
    assert vocab.bytes_of(vocab.pieces.index("▁a")) == b" a"
    byte = vocab.pieces.index("<0xEA>")
    assert (vocab.kind_of(byte), vocab.bytes_of(byte)) == ("byte", b"\xea")
    # C02-04 c: a normal piece of that name stays literal
    literal = len(vocab) - 1
    assert (vocab.kind_of(literal), vocab.bytes_of(literal)) == ("normal", b"<0xEA>")
    assert vocab.kind_of(0) == "control"


def test_an_id_past_the_vocabulary_has_no_bytes() -> None:  # C02-11
    vocab = Vocab.from_gguf(byte_level(), "byte-level")
    for token in (len(vocab), len(vocab) + 10_000):
        assert (vocab.bytes_of(token), vocab.text_of(token), vocab.kind_of(token)) == (b"", "", "unused")
    with pytest.raises(IndexError):
        vocab.bytes_of(-1)


def test_an_unused_piece_says_nothing_and_of_pieces_that_stand_twice_the_lower_id_counts() -> None:
    vocab = Vocab(["a", "b", "a", "b"], ["normal", "unused", "normal", "unused"], "byte-level")
    assert [vocab.text_bytes(i) for i in range(4)] == [b"a", b"", b"a", b""] and vocab.bytes_of(1) == b"b"
    assert vocab.of_kind("normal") == {"a": 0} and vocab.of_kind("unused") == {"b": 1}


def test_missing_bytes() -> None:
    assert Vocab.from_gguf(byte_level(without=b"\x04\xff"), "byte-level").missing_bytes == {0x04, 0xFF}
    assert Vocab.from_gguf(spm({"a": -1.0}, byte=True), "sentencepiece").missing_bytes == set()
    missing = Vocab.from_gguf(spm({"a": -1.0, "▁": -2.0, "é": -3.0}), "sentencepiece").missing_bytes
    assert missing == set(range(256)) - {0x20, 0x61}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({TOKENS: None}, TOKENS),
        ({TOKENS: []}, TOKENS),
        ({TOKENS: ["a", 3]}, TOKENS),
        ({TOKENS: ["a", "b" * (1 << 21)], TYPES: [1, 1]}, TOKENS),
        ({TYPES: [1, 1]}, TYPES),
        ({TYPES: "normal"}, TYPES),
        ({TOKENS: ["a", "b"], TYPES: [1, 9]}, TYPES),
        ({TOKENS: ["a", "b"], TYPES: [1, -1]}, TYPES),
        ({TOKENS: ["a", "b"], TYPES: [1, [1]]}, TYPES),
        *(
            ({TOKENS: ["a", piece], TYPES: [1, 6]}, TYPES)
            for piece in ("<0xG0>", "<0x-1>", "<0x+1>", "<0x 1>", "<0x٣٣>", "<0x1>", "<0X01>", "<0x01>\n", "a")
        ),
    ],
)
def test_a_broken_vocabulary_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFormatError) as e:
        Vocab.from_gguf(byte_level() | change, "byte-level")
    assert e.value.field == field


@pytest.mark.model
def test_smollm2_lacks_21_bytes(smollm2_gguf: Gguf) -> None:
    vocab = Vocab.from_gguf(smollm2_gguf.metadata, "byte-level")
    assert vocab.missing_bytes == set(MISSING) and len(vocab) == 49152
    assert vocab.bytes_of(10813) == b"\xf0\x9f"
    assert vocab.bytes_of(24211) == b"\xef\xbf\xbd"


@pytest.mark.model
def test_gemma_loads_fast_and_its_bytes_join(gemma3_gguf: Gguf) -> None:
    begin = time.perf_counter()
    vocab = Vocab.from_gguf(gemma3_gguf.metadata, "sentencepiece")
    assert time.perf_counter() - begin < 1.0
    ids = [vocab.pieces.index(p) for p in ("<0xEA>", "<0xB9>", "<0xB0>")]
    assert b"".join(map(vocab.bytes_of, ids)).decode() == "\uae70"
    assert vocab.missing_bytes == set()
