"""Reads what a GGUF file says about its tokenizer. Comes in: metadata. Goes out: `Facts`, checked, with what
was assumed.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; defaults as in llama.cpp,
src/llama-vocab.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from glassbox.errors import ModelFormatError, Unsupported
from glassbox.text.added import MARKER
from glassbox.text.bytelevel import ByteLevelBpe, read_merges
from glassbox.text.encoded import Encoder
from glassbox.text.facts import Facts
from glassbox.text.normalise import Charsmap, SentencePieceNormaliser
from glassbox.text.pretokenizers import PRE_TOKENIZERS
from glassbox.text.spm import SentencePieceEncoder
from glassbox.text.template_files import templates_from_gguf
from glassbox.text.vocab import TYPES, Vocab

KEY = "tokenizer.ggml."
SCORES = KEY + "scores"
CHARSMAP = KEY + "precompiled_charsmap"
PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")  # Phi-3's special tokens that take no white space
MODELS = ("gpt2", "llama", "t5")

_BRACKETED = re.compile(r"<.+>|\[.+\]", re.DOTALL)


def read_facts(metadata: Mapping[str, Any]) -> Facts:
    """Raises ModelFormatError (with the field), and Unsupported for an unknown model, pre-tokenizer or rule."""
    assumed: list[str] = []
    model = metadata.get(KEY + "model")
    if model not in MODELS:
        raise Unsupported("tokenizer model", str(model or "(none named)"), MODELS)
    spm = model != "gpt2"
    pre = _pre_tokenizer(metadata, spm, assumed)
    vocab = Vocab.from_gguf(metadata, "sentencepiece" if spm else "byte-level")
    special = _special_ids(metadata, len(vocab))
    vocab = _with_markers(vocab, special, TYPES in metadata, assumed)
    add_bos = _flag(metadata, "add_bos_token", model == "llama" or (not spm and PRE_TOKENIZERS[pre].add_bos), assumed)
    if add_bos and "bos" not in special:
        assumed.append("the file wants a BOS but names none: none is added")
    if metadata.get(KEY + "add_eos_token") is True:
        assumed.append("add_eos_token is not followed: a prompt is there to be continued")
    rstrip = _rstrip(metadata, vocab, assumed)
    templates = templates_from_gguf(metadata)
    merges = () if spm else tuple(read_merges(metadata, vocab.of_kind("normal")))
    scores = _scores(metadata, len(vocab)) if spm else ()
    space_prefix = spm and _flag(metadata, "add_space_prefix", True, assumed)
    normaliser = _normaliser(metadata, space_prefix) if spm else None

    def encoder(unknown: int | None) -> Encoder:
        if not spm:
            return ByteLevelBpe(vocab, merges, PRE_TOKENIZERS[pre])
        return SentencePieceEncoder(
            vocab, scores, unknown=unknown, space_prefix=space_prefix, unigram=model == "t5", normaliser=normaliser
        )

    return Facts(
        model=model, pre=pre, vocab=vocab, special=special, add_bos=add_bos and "bos" in special,
        space_prefix=space_prefix, merges=merges, scores=scores, template=templates.get("default"),
        assumptions=tuple(assumed), encoder=encoder, rstrip=rstrip, templates=templates,
    )  # fmt: skip


def _rstrip(metadata: Mapping[str, Any], vocab: Vocab, assumed: list[str]) -> frozenset[int]:
    """Phi-3's special tokens take the white space after them; a GGUF file cannot say so, but its name tells."""
    name = metadata.get("general.name")
    if not isinstance(name, str) or not ("phi-3" in name.lower() or "phi3" in name.lower()):
        return frozenset()
    assumed.append("white space after a special token belongs to it, as in Phi-3's own tokenizer")
    return frozenset(t for piece, t in vocab.of_kind("control").items() if piece not in PHI3_PLAIN)


def _normaliser(metadata: Mapping[str, Any], space_prefix: bool) -> SentencePieceNormaliser | None:
    """SentencePiece's rules beyond the space in front, where the file has some."""
    for name in ("escape_whitespaces", "treat_whitespace_as_suffix"):
        if metadata.get(KEY + name) not in (None, name == "escape_whitespaces"):
            raise Unsupported(f"{KEY}{name}", str(metadata[KEY + name]))
    squeeze = metadata.get(KEY + "remove_extra_whitespaces", False)
    if not isinstance(squeeze, bool):
        raise ModelFormatError(f"is {squeeze!r}, but must be true or false", field=KEY + "remove_extra_whitespaces")
    blob = metadata.get(CHARSMAP)
    if blob is None or blob == []:
        return SentencePieceNormaliser(None, space_prefix=space_prefix, squeeze=True) if squeeze else None
    if not isinstance(blob, list) or not all(type(b) is int and -128 <= b < 256 for b in blob):
        raise ModelFormatError("must be a list of bytes", field=CHARSMAP)
    charsmap = Charsmap(bytes(b & 255 for b in blob), CHARSMAP)
    return SentencePieceNormaliser(charsmap, space_prefix=space_prefix, squeeze=squeeze)


def _pre_tokenizer(metadata: Mapping[str, Any], spm: bool, assumed: list[str]) -> str:
    known = ("default",) if spm else tuple(PRE_TOKENIZERS)
    name = metadata.get(KEY + "pre", "default")
    if name == "default" and not spm and metadata.get("general.architecture") == "gpt2":
        assumed.append("the file names no pre-tokenizer: gpt-2 is assumed, as it is a gpt2 model")
        return "gpt-2"
    if name not in known:
        raise Unsupported("pre-tokenizer", str(metadata.get(KEY + "pre", "(none named)")), known)
    return str(name)


def _special_ids(metadata: Mapping[str, Any], size: int) -> dict[str, int]:
    found = {}
    for field, token in metadata.items():
        if field.startswith(KEY) and field.endswith("_token_id"):
            if type(token) is not int or not 0 <= token < size:
                raise ModelFormatError(f"is {token!r}, but there are {size} tokens", field=field)
            found[field[len(KEY) : -len("_token_id")]] = token
    return found


def _with_markers(vocab: Vocab, special: Mapping[str, int], typed: bool, assumed: list[str]) -> Vocab:
    """Some converters write turn markers as ordinary or user-defined pieces: any message could forge them."""
    named = {special[name] for name in ("bos", "eos", "eot", "eom") if name in special}
    wrong = {t for t in named if vocab.kind_of(t) != "control" and _BRACKETED.fullmatch(vocab.pieces[t])}
    suspects = vocab.of_kind("user") if typed else vocab.of_kind("normal") | vocab.of_kind("user")
    wrong |= {token for piece, token in suspects.items() if MARKER.fullmatch(piece)}
    if wrong:
        names = ", ".join(vocab.pieces[t][:40] for t in sorted(wrong)[:5]) + (", …" if len(wrong) > 5 else "")
        assumed.append(f"taken for control tokens, though the file does not say so: {names}")
    return vocab.with_control(wrong) if wrong else vocab


def _flag(metadata: Mapping[str, Any], name: str, default: bool, assumed: list[str]) -> bool:
    value = metadata.get(KEY + name)
    if value is None:
        assumed.append(f"the file does not say {name}: {str(default).lower()} is assumed")
        return default
    if not isinstance(value, bool):
        raise ModelFormatError(f"is {value!r}, but must be true or false", field=KEY + name)
    return value


def _scores(metadata: Mapping[str, Any], size: int) -> tuple[float, ...]:
    scores = metadata.get(SCORES)
    if not isinstance(scores, list) or not all(isinstance(s, (int, float)) for s in scores):
        raise ModelFormatError("must be a list of numbers", field=SCORES)
    if len(scores) != size:
        raise ModelFormatError(f"has {len(scores)} entries for {size} tokens", field=SCORES)
    if not np.isfinite(np.asarray(scores, np.float64)).all():
        raise ModelFormatError("has entries that are not finite", field=SCORES)
    return tuple(scores)
