"""Small tokenizers trained on the test corpus, as folders the way transformers writes them, and as GGUF metadata."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
from text_corpus import corpus
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from glassbox.text.spm_file import _fields

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>", "<|turn|>"]
SPM_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def _bos(engine: Tokenizer) -> None:
    token = engine.token_to_id("<s>")
    engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", token)])


def _byte_level(*, nfc: bool = False, prefix: bool = False) -> Tokenizer:
    engine = Tokenizer(models.BPE())
    if nfc:
        engine.normalizer = normalizers.NFC()
    split = [] if prefix else [pre_tokenizers.Split(Regex(LLAMA3), "isolated")]
    engine.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(prefix, use_regex=prefix)])
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=SPECIAL[1:], initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(corpus(800, seed=1), trainer)
    _bos(engine)
    return engine


def _spm_like(kind: str) -> Tokenizer:
    """`kind`: where the space in front is made: "prepend" (normaliser), "first" or "always" (Metaspace), "never"."""
    engine = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    mark = normalizers.Replace(" ", "▁")
    decoder = SPM_DECODER
    if kind == "prepend":
        engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), mark])
    elif kind == "never":  # as gemma has it
        engine.normalizer = mark
        engine.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        decoder = SPM_DECODER[:-1]
    else:
        engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
    engine.decoder = decoders.Sequence(decoder)
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[*SPECIAL, *BYTES], limit_alphabet=200, max_token_length=8, show_progress=False
    )
    engine.train_from_iterator([w for line in corpus(800, seed=1) for w in line.split("\n")], trainer)
    data = json.loads(engine.to_str())  # bytes are pieces of the model, not added tokens
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in BYTES]
    engine = Tokenizer.from_str(json.dumps(data))
    _bos(engine)
    return engine


def _unigram(byte_fallback: bool) -> Tokenizer:
    engine = Tokenizer(models.Unigram())
    engine.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    engine.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=900, special_tokens=[*SPECIAL, *(BYTES if byte_fallback else [])], unk_token="<unk>",
        show_progress=False,
    )  # fmt: skip
    engine.train_from_iterator(corpus(800, seed=1), trainer)
    data = json.loads(engine.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in BYTES]
    data["model"]["byte_fallback"] = byte_fallback
    return Tokenizer.from_str(json.dumps(data))


def _with_flags() -> Tokenizer:
    engine = _byte_level(nfc=True)
    engine.add_special_tokens([AddedToken("<|user|>", rstrip=True, normalized=False), AddedToken("<|l|>", lstrip=True)])
    engine.add_tokens([
        AddedToken("  ", normalized=True), AddedToken("caf\u00e9", normalized=True),
        AddedToken("many", single_word=True),
        AddedToken("\n\n", normalized=False), AddedToken("<tool>", lstrip=True, rstrip=True, normalized=False),
    ])  # fmt: skip
    return engine


def _whole_words() -> Tokenizer:
    """Words that are tokens are taken whole, as in llama 3; some are reached by no merge."""
    data = json.loads(_byte_level().to_str())
    data["model"]["ignore_merges"] = True
    data["model"]["merges"] = data["model"]["merges"][:-150]
    return Tokenizer.from_str(json.dumps(data))


def charsmap_of(data: bytes) -> bytes:
    """The compiled character map inside a sentencepiece model."""
    return dict(_fields(dict(_fields(data))[3]))[2]


def _precompiled() -> Tokenizer:
    """With sentencepiece's own NFKC map, as converted unigram models have it."""
    data = json.loads(_unigram(True).to_str())
    blob = base64.b64encode(charsmap_of(train_spm("unigram"))).decode()
    data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": blob}
    return Tokenizer.from_str(json.dumps(data))


MAKERS = {
    "byte-level": lambda: _byte_level(), "byte-level-nfc": lambda: _byte_level(nfc=True),
    "byte-level-prefix": lambda: _byte_level(prefix=True), "spm-prepend": lambda: _spm_like("prepend"),
    "spm-first": lambda: _spm_like("first"), "spm-always": lambda: _spm_like("always"),
    "spm-never": lambda: _spm_like("never"), "unigram": lambda: _unigram(False),
    "unigram-bytes": lambda: _unigram(True), "flags": _with_flags, "whole-words": _whole_words,
    "unigram-precompiled": _precompiled,
}  # fmt: skip


def write_folder(folder: Path, engine: Tokenizer, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    engine.save(str(folder / "tokenizer.json"))
    said = {"bos_token": "<s>", "eos_token": "</s>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


def train_spm(kind: str, **options: Any) -> bytes:
    """A sentencepiece model: "bpe" or "unigram"."""
    model = io.BytesIO()
    lines = [part for line in corpus(1500, control=False, seed=2) for part in line.splitlines() if part]
    given = dict(vocab_size=900, character_coverage=0.98, user_defined_symbols=["<tool>"], control_symbols=["<|turn|>"])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type=kind, minloglevel=2, num_threads=1,
        hard_vocab_limit=False, **(given | options),
    )  # fmt: skip
    return model.getvalue()


def gguf_of(data: bytes, *, space_prefix: bool = True, **flags: Any) -> dict[str, Any]:
    """The same vocabulary as a converter writes it."""
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    ids = range(library.get_piece_size())
    pieces = [library.id_to_piece(i) for i in ids]

    def type_of(i: int) -> int:
        if library.is_unknown(i):
            return 2
        if library.is_control(i):
            return 3
        return 6 if library.is_byte(i) else 4 if pieces[i] == "<tool>" else 1

    said = {
        "model": "llama", "pre": "default", "tokens": pieces, "token_type": [type_of(i) for i in ids],
        "scores": [library.get_score(i) for i in ids], "unknown_token_id": library.unk_id(),
        "bos_token_id": library.bos_id(), "eos_token_id": library.eos_id(), "add_bos_token": False,
        "add_space_prefix": space_prefix,
    }  # fmt: skip
    return {f"tokenizer.ggml.{k}": v for k, v in (said | flags).items()}
