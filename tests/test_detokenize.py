"""Detokenizer: never half a character, nothing late, nothing lost (C07)."""

from __future__ import annotations

import codecs
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_cases import byte_level, spm

from glassbox.stop import StopWatcher
from glassbox.text.detokenize import Detokenizer
from glassbox.text.tokenizer import Tokenizer
from glassbox.weights.gguf import Gguf

BYTES = Tokenizer.from_gguf(byte_level(("Ġ a", "ð Ł", "Ã ©")))
SPM = Tokenizer.from_gguf(
    spm({"▁": -1.0, "▁leading": -2.0, "▁x": -3.0, "é": -4.0}, byte=True, user=("  ",), add_space_prefix=True)
)


def stream(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt)
    return [*map(detokenizer.feed, ids), detokenizer.flush()]


def ids_of(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    return [tokenizer.vocab.pieces.index(p) for p in pieces]


@pytest.mark.parametrize("tokenizer", [BYTES, SPM], ids=["byte-level", "sentencepiece"])
@settings(max_examples=500, derandomize=True)
@given(data=st.data())
def test_the_stream_is_the_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(tokenizer.vocab) + 3), max_size=30))
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=500, derandomize=True)
@given(st.binary(max_size=40), st.integers(0, 40))
def test_any_bytes_decode_as_at_once(data: bytes, at: int) -> None:
    """Also where a prompt's bytes end anywhere: only its unfinished character is sent, once."""
    tokens = {BYTES.vocab.bytes_of(t): t for t in range(len(BYTES.vocab)) if BYTES.vocab.kind_of(t) == "normal"}
    ids = [tokens[bytes([b])] for b in data]
    assert "".join(stream(BYTES, ids)) == data.decode("utf-8", "replace")
    head = Detokenizer(BYTES.vocab)
    sent = "".join(map(head.feed, ids[:at]))
    assert sent + "".join(stream(BYTES, ids[at:], prompt=ids[:at])) == data.decode("utf-8", "replace")


def test_nothing_is_held_that_is_decided() -> None:
    detokenizer = BYTES.detokenizer()
    letters = {BYTES.vocab.bytes_of(t): t for t in range(len(BYTES.vocab))}
    assert detokenizer.feed(letters[b"\xff"]) == "\ufffd"  # begins no character
    assert detokenizer.feed(letters[b"\xe0"]) == "" and detokenizer.held == b"\xe0"
    assert detokenizer.feed(letters[b"\x80"]) == "\ufffd\ufffd"  # cannot follow E0
    assert detokenizer.feed(letters[b"\xed"]) == "" and detokenizer.feed(letters[b"\xaa"]) == "\ufffd\ufffd"
    assert detokenizer.held == b"" and detokenizer.feed(letters[b"\xaa"]) == "\ufffd"  # ED AA begins no character
    assert detokenizer.feed(letters[b"\xf0\x9f"]) == "" and detokenizer.held == b"\xf0\x9f"
    assert detokenizer.feed(letters[b"a"]) == "\ufffda"
    assert detokenizer.feed(letters[b"\xc3"]) == "" and detokenizer.flush() == "\ufffd"


def test_only_the_dummy_space_is_dropped_and_once() -> None:  # C07-06
    ids = ids_of(SPM, "▁", "▁leading", "▁x")
    assert stream(SPM, ids) == ["", " leading", " x", ""] and SPM.decode(ids) == " leading x"
    assert stream(SPM, [1, *ids]) == ["", "", " leading", " x", ""]  # <s> is no text
    assert stream(SPM, ids_of(SPM, "▁x"), prompt=ids) == [" x", ""]
    assert stream(SPM, ids_of(SPM, "▁x"), prompt=[1]) == ["x", ""]


def test_an_id_without_text_says_nothing() -> None:  # C02-11
    assert stream(BYTES, [len(BYTES.vocab) + 20, 0]) == ["", "", ""]


@pytest.fixture(scope="module")
def smollm2_tok(smollm2_gguf: Gguf) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_gguf.metadata)


@pytest.mark.model
@pytest.mark.parametrize(
    ("ids", "deltas"),
    [
        ([10813, 242, 218], ["", "", "\U0001f600", ""]),  # C07-01
        ([38699, 905], [" Hello", " world", ""]),  # C07-06
        ([40303, 228], [" ", "\U0001f60a", ""]),  # C07-09
        ([28589, 29184] * 20, ["\u4e2d", "\u6587"] * 20 + [""]),  # C07-10
        ([24211, 24211, 49], ["\ufffd", "\ufffd", "A", ""]),  # C07-03
        ([81, 218, 218, 218, 82], ["a", "\ufffd", "\ufffd", "\ufffd", "b", ""]),  # C02-03
    ],
)
def test_smollm2_deltas(smollm2_tok: Tokenizer, ids: list[int], deltas: list[str]) -> None:
    assert stream(smollm2_tok, ids) == deltas
    assert smollm2_tok.decode(ids) == "".join(deltas)


@pytest.mark.model
def test_a_prompt_that_ends_in_half_a_character(smollm2_tok: Tokenizer) -> None:  # C07-04
    assert stream(smollm2_tok, [218, 49], prompt=[19556, 10813, 242]) == ["\U0001f600", "A", ""]


@pytest.mark.model
def test_real_replacement_characters_take_linear_time(smollm2_tok: Tokenizer) -> None:  # C07-03
    def seconds(n: int) -> float:
        begin = time.perf_counter()
        assert stream(smollm2_tok, [24211] * n)[:n] == ["\ufffd"] * n
        return time.perf_counter() - begin

    seconds(1000)
    assert min(seconds(40_000) for _ in range(3)) < 8 * min(seconds(10_000) for _ in range(3)) + 0.01


# --- streaming changes nothing ---------------------------------------------------------------------------------------


def offsets(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = ()) -> list[int]:
    detokenizer, out = tokenizer.detokenizer(prompt), []
    for token in ids:
        detokenizer.feed(token)
        out.append(detokenizer.offset)
    return out


def offsets_of_whole_text(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The oracle: the character of the whole text that holds a token's first byte, found by decoding beginnings.

    A beginning of the bytes shows as many characters as are begun in it, so the byte after it is of the next one,
    unless that byte adds none.
    """
    vocab, drop, data, begins = tokenizer.vocab, tokenizer.facts.space_prefix, b"", []
    for token in ids:
        piece = vocab.text_bytes(token)
        if drop and piece:
            drop, piece = False, piece.removeprefix(b" ")
        begins.append((len(data), bool(piece)))
        data += piece
    shown = [len(data[:n].decode("utf-8", "replace")) for n in range(len(data) + 1)]
    whole = [shown[at + 1] - 1 if says else None for at, says in begins]
    # An id that says nothing stands where the next byte will: after all that is finished.
    finished = [len(codecs.getincrementaldecoder("utf-8")("replace").decode(data[:at])) for at, _ in begins]
    return [f if w is None else w for w, f in zip(whole, finished, strict=True)]


@pytest.mark.parametrize("tokenizer", [BYTES, SPM], ids=["byte-level", "sentencepiece"])
@settings(max_examples=500, derandomize=True)
@given(data=st.data())
def test_offsets_are_places_in_the_text(tokenizer: Tokenizer, data: st.DataObject) -> None:  # C03-09
    ids = data.draw(st.lists(st.integers(0, len(tokenizer.vocab) + 3), max_size=30))
    assert offsets(tokenizer, ids) == offsets_of_whole_text(tokenizer, ids)


def test_bytes_of_one_character_share_an_offset() -> None:
    letters = {BYTES.vocab.bytes_of(t): t for t in range(len(BYTES.vocab))}
    ids = [letters[bytes([b])] for b in "é가A".encode()]
    assert offsets(BYTES, ids) == [0, 0, 1, 1, 1, 2]
    broken = [letters[b"\xe0"], letters[b"a"], letters[b"\xff"], letters[b"b"]]
    assert offsets(BYTES, broken) == [0, 1, 2, 3] and BYTES.decode(broken) == "\ufffda\ufffdb"


@pytest.mark.model
@pytest.mark.parametrize("stem", ["smollm2", "gemma3"])
def test_a_thousand_random_streams(stem: str, request: pytest.FixtureRequest) -> None:  # C07-06
    """Deltas of any cutting join to the one-shot decoding, and a stop is found at the same character (seed 7)."""
    tokenizer = Tokenizer.from_gguf(request.getfixturevalue(f"{stem}_gguf").metadata)
    rng = random.Random(7)
    bytes_alone = [t for t in range(len(tokenizer.vocab)) if len(tokenizer.vocab.text_bytes(t)) == 1]
    for n in range(1000):
        ids = [
            rng.choice(bytes_alone) if rng.random() < 0.3 else rng.randrange(len(tokenizer.vocab) + 2)
            for _ in range(rng.randrange(40))
        ]
        whole, at = tokenizer.decode(ids), rng.randint(0, len(ids))
        assert "".join(stream(tokenizer, ids)) == whole, (n, ids)
        assert offsets(tokenizer, ids) == offsets_of_whole_text(tokenizer, ids), (n, ids)
        head = tokenizer.detokenizer()
        shown = "".join(map(head.feed, ids[:at]))
        assert shown + "".join(stream(tokenizer, ids[at:], prompt=ids[:at])) == whole and len(head.held) < 4, (n, ids)
        stops = [whole[i : i + rng.randint(1, 4)] for i in rng.sample(range(len(whole)), min(2, len(whole)))]
        assert by_token(tokenizer, ids, stops) == by_character(whole, stops), (n, ids, stops)


def by_token(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str]) -> tuple[str, str | None]:
    watcher, detokenizer, text = StopWatcher(stops), tokenizer.detokenizer(), ""
    for piece in [*map(detokenizer.feed, ids), detokenizer.flush()]:
        shown = watcher.feed(piece)
        text += shown.text
        if shown.matched is not None:
            return text, shown.matched
    return text + watcher.flush(), None


def by_character(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        if found := [s for s in stops if text[:end].endswith(s)]:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None
