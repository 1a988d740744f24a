"""The two real vocabularies on the whole corpus: ids equal the libraries', and the text comes back."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
import sentencepiece
from text_corpus import corpus
from tokenizers import Tokenizer as Engine
from tokenizers import models, pre_tokenizers

from glassbox.errors import PromptError
from glassbox.text.tokenizer import Tokenizer
from glassbox.weights.gguf import Gguf

LINES = corpus()


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_on_the_corpus(smollm2_gguf: Gguf) -> None:
    tokenizer = Tokenizer.from_gguf(smollm2_gguf.metadata)
    engine = Engine(models.BPE({p: i for i, p in enumerate(tokenizer.vocab.pieces)}, list(tokenizer.facts.merges)))
    digits, level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    said = 0
    for line in LINES:
        if tokenizer.vocab.missing_bytes & set(line.encode()):
            with pytest.raises(PromptError, match="cannot be expressed"):
                tokenizer.encode(line)
            continue
        e = tokenizer.encode(line)
        assert list(e.ids) == engine.encode(line, add_special_tokens=False).ids
        assert tokenizer.decode(e.ids) == line and not e.lossy and not e.notes
        said += 1
    assert said > 2000
    for line in LINES[::9]:
        if not tokenizer.vocab.missing_bytes & set(line.encode()):
            assert [i for w in tokenizer.explain(line)[1] for i in w.ids] == list(tokenizer.encode(line).ids)


@pytest.mark.model
def test_gemma3_on_the_corpus(gemma3_gguf: Gguf) -> None:
    """The same pieces, scores and types in a file of sentencepiece's own, written here byte by byte."""
    tokenizer = Tokenizer.from_gguf(gemma3_gguf.metadata)
    library = sentencepiece.SentencePieceProcessor(model_proto=proto_of(gemma3_gguf.metadata))
    for line in LINES:
        e = tokenizer.encode(line, add_special=False)
        assert list(e.ids) == library.encode(line), line
        assert tokenizer.decode(e.ids) == line and not e.lossy and not e.notes
    for line in LINES[::9]:
        assert [i for w in tokenizer.explain(line)[1] for i in w.ids] == library.encode(line)


@pytest.mark.model
@pytest.mark.slow
def test_a_megabyte_takes_seconds(smollm2_gguf: Gguf, gemma3_gguf: Gguf) -> None:
    text = "".join(line for line in corpus(control=False) * 12 if line)[: 10**6]
    text = text.translate(dict.fromkeys((0x10FFFF, 0x1D518)))
    for gguf in (smollm2_gguf, gemma3_gguf):
        tokenizer = Tokenizer.from_gguf(gguf.metadata)
        for long in ("a" * 10**6, " " * 10**6, text):
            begin = time.perf_counter()
            assert tokenizer.decode(tokenizer.encode(long).ids) == long
            assert time.perf_counter() - begin < 20  # a second or three on an idle machine


def proto_of(metadata: dict[str, Any]) -> bytes:
    """sentencepiece_model.proto, by hand: pieces, then BPE with byte fallback and no rules about spaces."""

    def number(n: int) -> bytes:
        out = bytearray()
        while n > 127:
            out.append(n & 127 | 128)
            n >>= 7
        return bytes([*out, n])

    def message(field: int, body: bytes) -> bytes:
        return number(field << 3 | 2) + number(len(body)) + body

    def spelled(piece: str, kind: int) -> bytes:  # a converter writes user-defined pieces with plain spaces
        return (piece.replace(" ", "▁") if kind == 4 else piece).encode()

    said = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    pieces = b"".join(
        message(1, message(1, spelled(piece, kind)) + b"\x15" + struct.pack("<f", score) + b"\x18" + number(kind))
        for piece, score, kind in zip(*said, strict=True)
    )
    # TrainerSpec: model_type 2, byte_fallback (35), unk, bos and eos by name; NormalizerSpec: flags 3 to 5
    names = message(45, b"<unk>") + message(46, b"<bos>") + message(47, b"<eos>") + message(48, b"<pad>")
    trainer = b"\x18\x02" + number(35 << 3) + b"\x01" + names
    rules = message(1, b"identity") + b"\x18\x00\x20\x00\x28\x01"
    return pieces + message(2, trainer) + message(3, rules)
