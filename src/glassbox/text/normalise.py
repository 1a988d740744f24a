"""How text is changed before it is cut. Comes in: text. Goes out: the changed text and where each of its
characters came from.

SentencePiece's own rules (https://github.com/google/sentencepiece/blob/master/src/normalizer.cc) are here; those
of a tokenizer.json are run by the `tokenizers` library. Nobody is normalised in silence: `to_raw` says so.
"""

from __future__ import annotations

import struct
import unicodedata
from itertools import accumulate

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Engine

from glassbox.errors import ModelFormatError
from glassbox.text.encoded import Encoded
from glassbox.text.library import library
from glassbox.text.vocab import SPACE

Places = list[tuple[int, int]]  # for each character of the changed text: first and last byte of what it came from


def is_nfc(text: str) -> bool:
    """Whether the text is in Unicode's composed form."""
    return text.isascii() or unicodedata.is_normalized("NFC", text)


class Charsmap:
    """SentencePiece's compiled replacements: a trie of byte strings, and what the longest match becomes."""

    def __init__(self, blob: bytes, field: str) -> None:
        self._field = field
        size = struct.unpack_from("<I", blob)[0] if len(blob) >= 4 else 0
        if size < 4 or size % 4 or 4 + size >= len(blob):
            raise ModelFormatError("is no compiled character map", field=field)
        self._units = struct.unpack_from(f"<{size // 4}I", blob, 4)
        self._texts = blob[4 + size :]

    def longest(self, data: bytes, at: int) -> tuple[int, str] | None:
        """The bytes matched at `at` and their replacement; None if nothing begins there."""
        node, found = self._child(0, 0), None
        for i in range(at, len(data)):
            if data[i] == 0:
                break
            node ^= data[i]
            unit = self._unit(node)
            if unit & (1 << 31 | 0xFF) != data[i]:
                break
            node = self._child(node, node)
            if unit >> 8 & 1:
                found = (i + 1 - at, self._unit(node) & ((1 << 31) - 1))
        return None if found is None else (found[0], self._text(found[1]))

    def _unit(self, node: int) -> int:
        units: tuple[int, ...] = self._units
        if node >= len(self._units):
            raise ModelFormatError(f"leads to entry {node} of {len(self._units)}", field=self._field)
        return units[node]

    def _child(self, node: int, base: int) -> int:
        unit = self._unit(node)
        return base ^ (unit >> 10) << ((unit & 1 << 9) >> 6)

    def _text(self, at: int) -> str:
        end = self._texts.find(b"\0", at)
        if end < 0:
            raise ModelFormatError(f"has no text at {at}", field=self._field)
        return self._texts[at:end].decode("utf-8", "replace")


class SentencePieceNormaliser:
    """Character map, then spaces: doubled ones dropped if `squeeze`, one put in front if `space_prefix`."""

    def __init__(self, charsmap: Charsmap | None, *, space_prefix: bool, squeeze: bool) -> None:
        self._charsmap, self._space_prefix, self._squeeze = charsmap, space_prefix, squeeze

    def __call__(self, text: str, first: bool) -> tuple[str, Places]:
        """The changed text, spaces as U+2581."""
        out: list[str] = []
        places: Places = []
        after_space = self._squeeze
        for piece, begin, end in self._mapped(text):
            for c in piece:
                if c == " " and after_space:
                    continue
                after_space = self._squeeze and c == " "
                out.append(SPACE if c == " " else c)
                places.append((begin, end))
        while self._squeeze and out and out[-1] == SPACE:
            out.pop()
            places.pop()
        if out and first and self._space_prefix:
            out.insert(0, SPACE)
            places.insert(0, (0, 0))
        return "".join(out), places

    def _mapped(self, text: str) -> list[tuple[str, int, int]]:
        data, found, at, i = text.encode(), [], 0, 0
        while i < len(text):
            match = self._charsmap.longest(data, at) if self._charsmap else None
            size, what = match or (len(text[i].encode()), text[i])
            found.append((what, at, at + size))
            i += len(data[at : at + size].decode("utf-8", "replace"))
            at += size
        return found


class LibraryNormaliser:
    """The normaliser of a tokenizer.json."""

    def __init__(self, rules: normalizers.Normalizer) -> None:
        self._rules = rules
        self._engine = Engine(models.WordLevel({"x": 0}, unk_token="x"))  # gives the place of each character
        self._engine.normalizer = rules
        self._engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")

    def change(self, text: str) -> str:
        """The changed text."""
        with library("normalizer"):
            return str(self._rules.normalize_str(text))

    def places(self, text: str) -> Places:
        """For each character of the changed text, the bytes of `text` it came from."""
        bytes_before = list(accumulate((len(c.encode()) for c in text), initial=0))
        with library("normalizer"):
            offsets = self._engine.encode(text, add_special_tokens=False).offsets
        return [(bytes_before[a], bytes_before[b]) for a, b in offsets]


def to_raw(found: Encoded, changed: str, places: Places, text: str) -> Encoded:
    """Move what was found in `changed` to the bytes of `text`; say what the change cost."""
    data = text.encode()
    of_byte: Places = []  # of the changed text, in which a space is one byte
    for c, (begin, end) in zip(changed, places, strict=True):
        said = b" " if c == SPACE else c.encode()
        same = said == data[begin:end]
        of_byte += [(begin + i, begin + i + 1) if same else (begin, end) for i in range(len(said))]
    last, spans = 0, []
    for token, begin, end in found.spans:
        whole = of_byte[begin:end]
        first, stop = (whole[0][0], whole[-1][1]) if whole else (last, last)
        spans.append((token, max(first, last), max(stop, last)))
        last = spans[-1][2]

    def raw(offsets: list[int]) -> list[int]:
        return sorted({b for o in offsets for b in range(*of_byte[o])})

    notes = found.notes
    plain = changed.replace(SPACE, " ")
    if plain not in (text, " " + text):  # a space in front is no change: decoding takes it away again
        plain = plain.removeprefix(" ") if not text.startswith(" ") else plain
        pairs = enumerate(zip(plain, text, strict=False))
        i = next((i for i, (a, b) in pairs if a != b), min(len(plain), len(text)))
        notes = (*notes, f"the tokenizer's own rules change the text, first at character {i}: {text[i : i + 12]!r}")
    return Encoded(spans, raw(found.lost), raw(found.missing), notes)
