"""A tokenizer.json on the `tokenizers` library. Comes in: the parsed file. Goes out: vocabulary, added tokens, encoder.

The library normalises, cuts and merges; added tokens are cut out by us, because who wrote a text decides which of
them count. Kinds: byte-level BPE, SentencePiece-like BPE, unigram. Others are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Engine
from tokenizers import models

from glassbox.errors import ModelFormatError, Unsupported
from glassbox.text.added import MARKER, Added
from glassbox.text.hf_check import check_ids, check_stages, score_of, steps_of
from glassbox.text.library import library
from glassbox.text.vocab import MAX_PIECE, SPACE, Kind, Style, Vocab, byte_named

MODELS = ("BPE", "Unigram")
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HfParts:
    """What a tokenizer.json says, in the library's objects."""

    vocab: Vocab
    added: tuple[Added, ...]
    merges: tuple[tuple[str, str], ...]
    scores: tuple[float, ...]  # of a unigram
    unknown: int | None
    fuse_unknown: bool  # a run of unknown characters is one token
    byte_fallback: bool
    ignore_merges: bool
    normaliser: Any  # None: nothing is changed
    cutters: tuple[Any, Any]  # pre-tokenizer for the first text of a prompt, and for later ones
    strips_space: bool  # decoding drops one leading space
    begin: tuple[int, ...]  # what the post-processor puts before a text
    end: tuple[int, ...]


def read_tokenizer_json(data: Object, more: Sequence[Added] = (), special: Sequence[str] = ()) -> HfParts:
    """`more`: added tokens the file may lack; `special`: texts that are special tokens, whatever the file says."""
    model = _object(data, "model")
    kind = model.get("type") or ("Unigram" if "unk_id" in model else "BPE" if "merges" in model else "(none named)")
    if kind not in MODELS:
        raise Unsupported("tokenizer.json model", str(kind), MODELS)
    pieces, scores = _unigram_vocab(model) if kind == "Unigram" else (_bpe_vocab(model), ())
    added = _added(data, more, special, pieces)
    check_ids(pieces, added, len(scores) or len(pieces))
    for token in added:
        if pieces.setdefault(token.content, token.id) != token.id:
            raise ModelFormatError(f"gives {token.content!r} two ids", field="added_tokens")
    unknown = _unknown(model, pieces)
    byte_fallback = model.get("byte_fallback") is True
    check_stages(data, unigram=kind == "Unigram")
    style = _style(data)
    vocab = _vocab(pieces, added, unknown, byte_fallback, style)
    begin, end = _around(data.get("post_processor"), pieces)
    normaliser, cutters = _stages(data)
    return HfParts(
        vocab=vocab, added=added, merges=() if kind == "Unigram" else _merges(model, vocab), scores=scores,
        unknown=unknown, fuse_unknown=model.get("fuse_unk") is True, byte_fallback=byte_fallback,
        ignore_merges=model.get("ignore_merges") is True, normaliser=normaliser, cutters=cutters,
        strips_space=_strips(data.get("decoder")), begin=begin, end=end,
    )  # fmt: skip


def engine_of(parts: HfParts, unknown: int | None) -> models.BPE:
    """The library's BPE with normal and byte tokens only: no text can spell a special token, but `unknown` stands
    for what has no token, if there is one.
    """
    tokens = parts.vocab.of_kind("normal") | parts.vocab.of_kind("byte")
    more: dict[str, Any] = {}
    if unknown is not None:
        more = dict(unk_token=parts.vocab.pieces[unknown], fuse_unk=parts.fuse_unknown)
        tokens[parts.vocab.pieces[unknown]] = unknown
    with library("model"):
        return models.BPE(
            tokens, list(parts.merges), byte_fallback=parts.byte_fallback, ignore_merges=parts.ignore_merges,
            **more,
        )  # fmt: skip


def _bpe_vocab(model: Object) -> dict[str, int]:
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise Unsupported(f"tokenizer.json {name}", str(model[name]))
    if model.get("dropout"):
        raise Unsupported("tokenizer.json dropout", str(model["dropout"]))
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab or not all(type(i) is int and 0 <= i < 1 << 24 for i in vocab.values()):
        raise ModelFormatError("must map pieces to ids", field="model.vocab")
    if len(set(vocab.values())) != len(vocab):
        raise ModelFormatError("gives one id to two pieces", field="model.vocab")
    return dict(vocab)


def _unigram_vocab(model: Object) -> tuple[dict[str, int], tuple[float, ...]]:
    vocab = model.get("vocab")
    if not isinstance(vocab, list) or not vocab:
        raise ModelFormatError("must be a list of [piece, score]", field="model.vocab")
    pieces: dict[str, int] = {}
    scores = []
    for i, entry in enumerate(vocab):
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)):
            raise ModelFormatError(f"entry {i} is no [piece, score]", field="model.vocab")
        if pieces.setdefault(entry[0], i) != i:
            why = f"entries {pieces[entry[0]]} and {i} are both {entry[0][:80]!r}"
            raise ModelFormatError(why, field="model.vocab")
        scores.append(score_of(entry[1], i))
    return pieces, tuple(scores)


def _merges(model: Object, vocab: Vocab) -> tuple[tuple[str, str], ...]:
    """Pairs in order; those that make or use a special token are left out, so that no text can spell one."""
    entries, normal = model.get("merges"), vocab.of_kind("normal")
    everything = set(vocab.pieces)
    if not isinstance(entries, list):
        raise ModelFormatError("must be a list of pairs", field="model.merges")
    merges = []
    for i, entry in enumerate(entries):
        pair = entry.split(" ") if isinstance(entry, str) else entry
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) and p for p in pair)):
            raise ModelFormatError(f"entry {i} is {str(entry)[:80]!r}, not two pieces", field="model.merges")
        left, right = pair
        if left in normal and right in normal and left + right in normal:
            merges.append((left, right))
        elif not {left, right, left + right} <= everything:
            raise ModelFormatError(f"entry {i} names a piece that is no token", field="model.merges")
    return tuple(merges)


def _added(data: Object, more: Sequence[Added], special: Sequence[str], pieces: Mapping[str, int]) -> tuple[Added, ...]:
    """Those of the file, those of other files, and special tokens that are only pieces of the model."""
    entries = _list(data.get("added_tokens") or [], "added_tokens")
    tokens = [added_token(entry) for entry in entries]
    found = {t.content: t for t in tokens}
    if len(found) < len(tokens) or len({t.id for t in tokens}) < len(tokens):
        raise ModelFormatError("one content or one id stands twice", field="added_tokens")
    taken = {t.id for t in found.values()}
    found |= {t.content: t for t in more if t.content not in found and t.id not in taken}
    wanted = set(special) | {t.content for t in found.values() if MARKER.fullmatch(t.content)}
    found |= {text: Added(pieces[text], text, True) for text in special if text in pieces and text not in found}
    return tuple(
        Added(t.id, t.content, t.special or t.content in wanted, t.single_word, t.lstrip, t.rstrip, t.normalized)
        for t in found.values()
    )


def added_token(entry: Any) -> Added:
    """One entry of `added_tokens`. Raises ModelFormatError."""
    if not isinstance(entry, dict) or type(entry.get("id")) is not int or not isinstance(entry.get("content"), str):
        raise ModelFormatError(f"{str(entry)[:80]} is no token with id and content", field="added_tokens")
    if not 0 <= entry["id"] < 1 << 24 or not entry["content"]:
        raise ModelFormatError(f"{str(entry)[:80]} has no usable id and content", field="added_tokens")
    special = entry.get("special") is True
    return Added(
        entry["id"], entry["content"], special, entry.get("single_word") is True, entry.get("lstrip") is True,
        entry.get("rstrip") is True, entry.get("normalized", not special) is True,
    )  # fmt: skip


def _unknown(model: Object, pieces: Mapping[str, int]) -> int | None:
    if model.get("unk_id") is not None:
        return model["unk_id"] if type(model["unk_id"]) is int and 0 <= model["unk_id"] < len(pieces) else None
    name = model.get("unk_token")
    return pieces.get(name) if isinstance(name, str) else None


def _vocab(
    pieces: Mapping[str, int], added: Sequence[Added], unknown: int | None, byte_fallback: bool, style: Style
) -> Vocab:
    names, kinds = [""] * (max(pieces.values()) + 1), ["unused"] * (max(pieces.values()) + 1)
    for piece, token in pieces.items():
        if len(piece) > MAX_PIECE:
            raise ModelFormatError(f"a piece has {len(piece)} characters, more than {MAX_PIECE}", field="model.vocab")
        names[token] = piece
        kinds[token] = "byte" if byte_fallback and byte_named(piece) is not None else "normal"
    for t in added:
        kinds[t.id] = "control" if t.special else "user"
    if unknown is not None:
        kinds[unknown] = "control"
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise ModelFormatError("a piece holds half a surrogate pair", field="model.vocab") from None
    checked: list[Kind] = kinds  # type: ignore[assignment]
    return Vocab(names, checked, style)


def _style(data: Object) -> Style:
    """How pieces spell bytes: the decoder says it, or else the pre-tokenizer."""
    steps = steps_of(data.get("decoder"), "decoders") or steps_of(data.get("pre_tokenizer"), "pretokenizers")
    types = [s.get("type") for s in steps]
    if "ByteLevel" in types:
        return "byte-level"
    marks = any(s.get("type") == "Replace" and s.get("pattern") == {"String": SPACE} for s in steps)
    if "Metaspace" in types or marks:
        return "sentencepiece"
    raise Unsupported("tokenizer.json decoder", ", ".join(map(str, types)) or "(none)", ("ByteLevel", "Metaspace"))


def _strips(decoder: Any) -> bool:
    for step in steps_of(decoder, "decoders"):
        if step.get("type") == "Strip" and step.get("content") == " ":
            return bool(step.get("start"))
        if step.get("type") == "Metaspace":
            default = "always" if step.get("add_prefix_space", True) else "never"
            return bool(step.get("prepend_scheme", default) != "never")
    return False


def _stages(data: Object) -> tuple[Any, tuple[Any, Any]]:
    """The normaliser, and the pre-tokenizers for the first text and for later ones."""
    empty = {"type": "BPE", "vocab": {}, "merges": []}

    def build(cutter: Any) -> Engine:
        stages = {"normalizer": data.get("normalizer"), "pre_tokenizer": cutter}
        rest = dict.fromkeys(("post_processor", "decoder", "truncation", "padding"))
        with library("normalizer, pre_tokenizer"):
            return Engine.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": empty, **stages, **rest}))

    cutter = data.get("pre_tokenizer")
    first, later = build(_spaced(cutter, "always")), build(_spaced(cutter, "never"))
    return first.normalizer, (first.pre_tokenizer, later.pre_tokenizer)


def _spaced(cutter: Any, first: str) -> Any:
    """The pre-tokenizer with `first` for a space that only the first text gets."""
    if not isinstance(cutter, dict):
        return cutter
    if cutter.get("type") == "Sequence":
        children = _list(cutter.get("pretokenizers"), "pretokenizers")
        return cutter | {"pretokenizers": [_spaced(c, first) for c in children]}
    return cutter | {"prepend_scheme": first} if cutter.get("prepend_scheme") == "first" else cutter


def _around(processor: Any, pieces: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a post-processor puts before and after a text."""
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    for step in steps_of(processor, "processors"):
        if step.get("type") == "ByteLevel":
            continue
        if step.get("type") != "TemplateProcessing":
            raise Unsupported("post-processor", str(step.get("type")), ("ByteLevel", "TemplateProcessing"))
        here: list[int] = []
        for part in _list(step.get("single"), "post_processor.single"):
            if not isinstance(part, dict):
                raise ModelFormatError(f"{str(part)[:80]} is no part of a template", field="post_processor.single")
            if "Sequence" in part:
                begin, here = begin + tuple(here), []
                continue
            token = part.get("SpecialToken")
            name = str(token.get("id") if isinstance(token, dict) else token)
            if name not in pieces:
                raise ModelFormatError(f"names {name[:80]!r}, which is no token", field="post_processor")
            here.append(pieces[name])
        end = tuple(here) + end
    return begin, end


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise ModelFormatError("must be a list", field=field)
    return value


def _object(data: Object, field: str) -> Object:
    value = data.get(field)
    if not isinstance(value, dict):
        raise ModelFormatError("must be an object", field=field)
    return value
