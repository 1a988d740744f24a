"""What each id is: its bytes, its kind, its piece. Comes in: GGUF metadata. Goes out: `Vocab`.

Ids and bytes are the unit everywhere; text is only shown. Control tokens have bytes to be shown, but
contribute none to a decoded text (`text_bytes`). Ids past the vocabulary (a model's head may be wider) have
no bytes at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from glassbox.errors import ModelFormatError

Kind = Literal["normal", "control", "byte", "unused", "user"]
Style = Literal["byte-level", "sentencepiece"]

TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"
# llama.cpp's token types (undefined, normal, unknown, control, user defined, unused, byte)
KINDS: tuple[Kind, ...] = ("normal", "normal", "control", "control", "user", "unused", "byte")

SPACE = "▁"  # SentencePiece writes a space as U+2581
MAX_PIECE = 1 << 20

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")  # int() alone would read signs, spaces and digits of other scripts


def byte_alphabet() -> dict[str, int]:
    """GPT-2's map, character -> byte: printable bytes stand for themselves, the others for U+0100 and up.

    https://github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


ALPHABET = byte_alphabet()
LETTERS = {b: c for c, b in ALPHABET.items()}


class Vocab:
    """id ↔ bytes ↔ kind. Bytes are worked out when first asked for: there may be 262,144 pieces."""

    def __init__(self, pieces: Sequence[str], kinds: Sequence[Kind], style: Style) -> None:
        self.pieces, self.style = pieces, style
        self._kinds = list(kinds)
        self._bytes: list[bytes | None] = [None] * len(pieces)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], style: Style) -> Vocab:
        """Raises ModelFormatError (with the field) where a list is missing or of wrong type or length."""
        pieces = metadata.get(TOKENS)
        if not isinstance(pieces, list) or not pieces or not all(isinstance(p, str) for p in pieces):
            raise ModelFormatError("must be a list of strings with at least one entry", field=TOKENS)
        if (longest := max(map(len, pieces))) > MAX_PIECE:
            raise ModelFormatError(f"a piece has {longest} characters, more than {MAX_PIECE}", field=TOKENS)
        types = metadata.get(TYPES, [1] * len(pieces))
        if not isinstance(types, list) or not all(type(t) is int and 0 <= t < len(KINDS) for t in types):
            raise ModelFormatError(f"must be a list of token types 0 to {len(KINDS) - 1}", field=TYPES)
        if len(types) != len(pieces):
            raise ModelFormatError(f"has {len(types)} entries for {len(pieces)} tokens", field=TYPES)
        vocab = cls(pieces, [KINDS[t] for t in types], style)
        for token, kind in enumerate(vocab._kinds):
            if kind == "byte" and byte_named(pieces[token]) is None:
                raise ModelFormatError(f"id {token} is a byte, but reads {pieces[token]!r}, not <0xNN>", field=TYPES)
        return vocab

    def with_control(self, tokens: Collection[int]) -> Vocab:
        """The same vocabulary with `tokens` being control tokens, whatever the file calls them."""
        kinds: list[Kind] = list(self._kinds)
        for token in tokens:
            kinds[token] = "control"
        return Vocab(self.pieces, kinds, self.style)

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        return f"<Vocab {len(self):,} pieces, {self.style}>"

    def kind_of(self, token: int) -> Kind:
        """What an id is; "unused" past the end. Raises IndexError for a negative id."""
        _not_negative(token)
        return self._kinds[token] if token < len(self._kinds) else "unused"

    def bytes_of(self, token: int) -> bytes:
        """The bytes of an id; of a control token, the letters of its name; past the end, none."""
        _not_negative(token)
        if token >= len(self.pieces):
            return b""
        data = self._bytes[token]
        if data is None:
            data = self._bytes[token] = self._work_out(self.pieces[token], self._kinds[token])
        return data

    def text_bytes(self, token: int) -> bytes:
        """What an id contributes to a decoded text: nothing, unless it is a normal, byte or user token."""
        return b"" if self.kind_of(token) in ("control", "unused") else self.bytes_of(token)

    def text_of(self, token: int) -> str:
        """An id for the eye: bytes that are no UTF-8 of their own appear as \\xNN."""
        return self.bytes_of(token).decode("utf-8", "backslashreplace")

    def of_kind(self, kind: Kind) -> dict[str, int]:
        """piece -> id. Where a piece stands twice, the lower id."""
        found: dict[str, int] = {}
        for token, (piece, k) in enumerate(zip(self.pieces, self._kinds, strict=True)):
            if k == kind:
                found.setdefault(piece, token)
        return found

    @cached_property
    def missing_bytes(self) -> frozenset[int]:
        """The bytes that no token can say alone: text that holds them cannot be expressed exactly."""
        single = {p for p, k in zip(self.pieces, self._kinds, strict=True) if k in ("normal", "user") and len(p) == 1}
        if self.style == "byte-level":
            return frozenset(b for b in range(256) if LETTERS[b] not in single)
        said = {byte_named(p) for p in self.of_kind("byte")}
        return frozenset(
            b for b in range(256) if b not in said and not (b < 128 and (SPACE if b == 32 else chr(b)) in single)
        )

    def _work_out(self, piece: str, kind: Kind) -> bytes:
        if kind == "byte":
            value = byte_named(piece)
            assert value is not None
            return bytes([value])
        if kind in ("normal", "user") and self.style == "sentencepiece":
            return piece.replace(SPACE, " ").encode()
        if kind == "normal" and all(c in ALPHABET for c in piece):
            return bytes(ALPHABET[c] for c in piece)
        return piece.encode()  # control, unused and user-defined pieces stand in the file as plain text


def byte_named(piece: str) -> int | None:
    """0x0A for "<0x0A>"."""
    found = _BYTE.fullmatch(piece)
    return None if found is None else int(found[1], 16)


def _not_negative(token: int) -> None:
    if token < 0:
        raise IndexError(f"id {token} is negative")
