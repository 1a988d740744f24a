"""Refuses a tokenizer.json that would be read otherwise than the `tokenizers` library reads it, or without a bound.

Comes in: parts of the parsed file. Goes out: nothing, or ModelFormatError with the field. It builds nothing.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

from glassbox.errors import ModelFormatError, Unsupported
from glassbox.text.added import Added
from glassbox.text.normalise import Charsmap
from glassbox.text.vocab import SPACE

MAX_GROWTH = 64  # times as many characters, at most, after the rules of a normaliser; NFKC's own map has 18
MAX_PREPEND = 64  # characters
DECODERS = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "Sequence")
Object = Mapping[str, Any]


def steps_of(stage: Any, inner: str) -> list[Object]:
    """A stage as a flat list of its steps."""
    if not isinstance(stage, dict):
        return []
    if stage.get("type") != "Sequence":
        return [stage]
    children = stage.get(inner)
    if not isinstance(children, list):
        raise ModelFormatError("a Sequence must have a list", field=inner)
    return [step for child in children for step in steps_of(child, inner)]


def score_of(value: Any, entry: int) -> float:
    """A unigram's score."""
    if type(value) not in (int, float):
        raise ModelFormatError(f"entry {entry} is no [piece, score]", field="model.vocab")
    try:
        score = float(value)
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise ModelFormatError(f"the score of entry {entry} is not finite", field="model.vocab")
    return score


def check_ids(pieces: Mapping[str, int], added: Sequence[Added], size: int) -> None:
    """`size`: how many pieces the model has. One id has one text, and ids have no gaps."""
    owner = {token: piece for piece, token in pieces.items()}
    for token in added:
        if (there := owner.setdefault(token.id, token.content)) != token.content:
            why = f"gives {token.content[:80]!r} the id {token.id}, which is that of {there[:80]!r}"
            raise ModelFormatError(why, field="added_tokens")
    count = max(size, len(owner))
    if (most := max(owner)) >= count:
        field = "added_tokens" if most not in pieces.values() else "model.vocab"
        raise ModelFormatError(f"has the id {most}, but only {count} ids are used: ids have no gaps", field=field)


def check_stages(data: Object, *, unigram: bool) -> None:
    """The normaliser, the pre-tokenizer and the decoder."""
    normalisers = steps_of(data.get("normalizer"), "normalizers")
    cutters = steps_of(data.get("pre_tokenizer"), "pretokenizers")
    _check_growth(normalisers)
    for step in cutters:
        if step.get("type") == "FixedLength" and step.get("length") in (0, None):
            raise ModelFormatError("FixedLength has the length 0", field="pre_tokenizer")
        if step.get("type") == "Split":
            _pattern(step, "pre_tokenizer")
    marked = any(s.get("type") == "Replace" and s.get("content") == SPACE for s in normalisers)
    if unigram and not marked and not any(s.get("type") == "Metaspace" for s in cutters):
        why = "nothing writes a space as U+2581, which a unigram's pieces begin with"
        raise ModelFormatError(why, field="pre_tokenizer")
    for step in cutters + steps_of(data.get("decoder"), "decoders"):
        if step.get("type") == "Metaspace" and step.get("replacement", SPACE) != SPACE:
            raise ModelFormatError(f"writes a space as {str(step['replacement'])[:20]!r}", field="Metaspace")
    for step in steps_of(data.get("decoder"), "decoders"):
        _check_decoder(step)


def _check_decoder(step: Object) -> None:
    kind, content = step.get("type"), step.get("content")
    if kind not in DECODERS:
        raise Unsupported("tokenizer.json decoder", str(kind), DECODERS)
    if kind == "Replace" and (step.get("pattern"), content) != ({"String": SPACE}, " "):
        raise Unsupported("tokenizer.json decoder", f"Replace by {str(content)[:40]}", ("Replace U+2581 by a space",))
    if kind == "Strip" and not (content == " " and step.get("start") in (0, 1) and step.get("stop") == 0):
        raise Unsupported("tokenizer.json decoder", f"Strip of {str(content)[:40]}", ("Strip of one space in front",))


def _check_growth(steps: Sequence[Object]) -> None:
    """How many characters one may become, all rules one after another."""
    growth = 1.0
    for step in steps:
        content = step.get("content")
        if step.get("type") == "Replace" and isinstance(content, str):
            kind, pattern = _pattern(step, "normalizer")
            growth *= max(1.0, len(content) / len(pattern)) if kind == "String" else 1.0 + len(content)
        elif step.get("type") == "Precompiled":
            growth *= _check_charsmap(step.get("precompiled_charsmap"))
        elif step.get("type") == "Prepend" and len(str(step.get("prepend"))) > MAX_PREPEND:
            raise ModelFormatError(f"prepends more than {MAX_PREPEND} characters", field="normalizer")
    if growth > MAX_GROWTH:
        why = f"its rules may make a text {growth:.3g} times as long, more than {MAX_GROWTH} times"
        raise ModelFormatError(why, field="normalizer")


def _pattern(step: Object, field: str) -> tuple[str, str]:
    """The kind and the text of a pattern; the library dies of an empty one."""
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or len(pattern) != 1:
        raise ModelFormatError("a pattern must be a String or a Regex", field=field)
    ((kind, text),) = pattern.items()
    if not isinstance(text, str) or not text:
        raise ModelFormatError("a pattern is empty", field=field)
    return str(kind), text


def _check_charsmap(value: Any) -> int:
    """The most characters that it makes of one. The library dies of a map that it cannot read."""
    field = "normalizer.precompiled_charsmap"
    try:
        blob = base64.b64decode(value, validate=True)
        texts = blob[4 + int.from_bytes(blob[:4], "little") :].decode()
    except (ValueError, TypeError):
        raise ModelFormatError("is no compiled character map", field=field) from None
    Charsmap(blob, field)
    return max(1, *map(len, texts.split("\0")))
