"""A tokenizer.model through the `sentencepiece` library. Comes in: the file's bytes. Goes out: vocabulary and encoder.

The library encodes; it makes control tokens of no text. What it does not tell (whether a space is put in front) is read
from the file, which is a protocol buffer:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from glassbox.errors import ModelFormatError, Unsupported
from glassbox.text.encoded import Encoded, Word, typed_marks, walk
from glassbox.text.normalise import to_raw
from glassbox.text.segments import utf8
from glassbox.text.spm import SentencePieceEncoder
from glassbox.text.vocab import SPACE, Kind, Vocab

FIELD = "tokenizer.model"
PIECE, TRAINER, NORMALISER = 1, 2, 3  # fields of ModelProto
USER_DEFINED = b"\x18\x04"  # how a piece ends that has type 4
MODEL_TYPE, SUFFIX = 3, 24  # of TrainerSpec
ADD_DUMMY_PREFIX, SQUEEZE, ESCAPE = 3, 4, 5  # of NormalizerSpec
TYPES = {1: "unigram", 2: "bpe"}  # others: "word", "char"
NO_PREFIX = bytes([NORMALISER << 3 | 2, 2, ADD_DUMMY_PREFIX << 3, 0])  # appended to a model, it switches the space off


@dataclass(frozen=True, slots=True)
class SpmFile:
    """A model as its file describes it."""

    data: bytes
    vocab: Vocab
    scores: tuple[float, ...]
    unigram: bool
    space_prefix: bool
    unknown: int | None
    special: dict[str, int]  # "bos" -> id


def read_spm(data: bytes) -> SpmFile:
    """Raises ModelFormatError, and Unsupported for models that are neither BPE nor unigram."""
    fields: dict[int, Any] = {}
    user: set[int] = set()
    count = 0
    for number, value in _fields(data):
        if number == PIECE:
            if isinstance(value, bytes) and value.endswith(USER_DEFINED) and dict(_fields(value)).get(3) == 4:
                user.add(count)
            count += 1
        elif number in (TRAINER, NORMALISER) and isinstance(value, bytes):
            fields[number] = fields.get(number, b"") + value
    trainer, normaliser = (dict(_fields(fields.get(n, b""))) for n in (TRAINER, NORMALISER))
    kind = trainer.get(MODEL_TYPE, 1)
    if kind not in TYPES:
        raise Unsupported("sentencepiece model type", str(kind), tuple(TYPES.values()))
    if trainer.get(SUFFIX):
        raise Unsupported("sentencepiece option", "treat_whitespace_as_suffix")
    if normaliser.get(ESCAPE, 1) == 0:
        raise Unsupported("sentencepiece option", "escape_whitespaces = false")
    library = _load(data)
    ids = range(library.get_piece_size())
    kinds: list[Kind] = ["user" if i in user else _kind(library, i) for i in ids]
    roles = dict(bos=library.bos_id(), eos=library.eos_id(), unknown=library.unk_id(), padding=library.pad_id())
    unknown = library.unk_id() if library.unk_id() >= 0 else None
    try:
        vocab = Vocab([library.id_to_piece(i) for i in ids], kinds, "sentencepiece")
    except UnicodeDecodeError as e:
        raise ModelFormatError(f"a piece is not UTF-8: {e.object[:40]!r}", field=FIELD) from None
    scores = tuple(library.get_score(i) for i in ids)
    prefix = normaliser.get(ADD_DUMMY_PREFIX, 1) != 0
    return SpmFile(data, vocab, scores, kind == 1, prefix, unknown, {n: i for n, i in roles.items() if i >= 0})


class SpmFileEncoder:
    """Encodes runs of plain text with the library; `unknown` as in SentencePieceEncoder."""

    def __init__(self, file: SpmFile, unknown: int | None) -> None:
        self._file, self._vocab, self._unknown = file, file.vocab, unknown
        self._later = _load(file.data + NO_PREFIX)
        self._first = _load(file.data) if file.space_prefix else self._later

    def encode(self, text: str, *, first: bool = False) -> Encoded:
        """The tokens of `text`; the space put before the `first` text has no bytes of its own."""
        data = utf8(text)
        library = self._first if first else self._later
        if not text:
            return Encoded()
        ids = library.encode(text)
        said = [self._vocab.bytes_of(i) for i in ids]
        joined = b"".join(said)
        if joined == data:
            return walk(data, ids, said)
        if joined == b" " + data:
            return walk(joined, ids, said).moved(-1)
        return self._uneven(text, library, ids)

    def _uneven(self, text: str, library: Any, ids: list[int]) -> Encoded:
        """Text that the library normalises, or has no piece for."""
        changed, starts = library.normalize(text, with_offsets=True)
        before = list(accumulate((len(c.encode()) for c in text), initial=0))
        places = [(before[a], before[max(a, b)]) for a, b in pairwise(starts)]
        found, at = Encoded(), 0
        for token, piece in zip(ids, library.encode(text, out_type=str), strict=True):
            size = 1 if self._vocab.kind_of(token) == "byte" else len(piece.replace(SPACE, " ").encode())
            found.spans.append((token, at, at + size))
            if token == self._file.unknown:
                (found.missing if self._unknown is None else found.lost).extend(range(at, at + size))
            at += size
        found = to_raw(found, changed, places, text)
        found.lost = sorted({*found.lost, *typed_marks(text)})
        return found

    def explain(self, text: str, *, first: bool = False) -> tuple[str, list[Word]]:
        """The library's normalised text, and its words with their merges or their best path."""
        library = self._first if first else self._later
        changed, ids = (library.normalize(text), tuple(library.encode(text))) if text else ("", ())
        words = self._slow.explain(changed)[1]
        if tuple(i for w in words for i in w.ids) != ids:  # the library sums in float32, which breaks ties differently
            return changed, [Word(changed, ids, "library", scores=tuple(self._file.scores[i] for i in ids))]
        return changed, words

    @cached_property
    def _slow(self) -> SentencePieceEncoder:
        file = self._file
        return SentencePieceEncoder(
            file.vocab, file.scores, unknown=self._unknown, space_prefix=False, unigram=file.unigram
        )


def _kind(library: Any, token: int) -> Kind:
    if library.is_byte(token):
        return "byte"
    if library.is_control(token) or library.is_unknown(token):
        return "control"
    if library.is_unused(token):
        return "unused"
    return "normal"


def _load(data: bytes) -> Any:
    import sentencepiece  # only needed for such files

    library = sentencepiece.SentencePieceProcessor()
    try:
        library.LoadFromSerializedProto(data)
    except Exception as e:  # the library raises RuntimeError and OSError, by the fault
        raise ModelFormatError(f"the sentencepiece library refuses it: {str(e)[:160]}", field=FIELD) from None
    return library


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protocol buffer: numbers and byte strings; other kinds are skipped."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        match key & 7:
            case 0:
                value, at = _number(data, at)
                yield key >> 3, value
            case 1:
                at += 8
            case 2:
                size, at = _number(data, at)
                if size > len(data) - at:
                    raise ModelFormatError("is cut off", field=FIELD, offset=at)
                yield key >> 3, data[at : at + size]
                at += size
            case 5:
                at += 4
            case other:
                raise ModelFormatError(f"has a field of type {other}: no sentencepiece model", field=FIELD, offset=at)


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ModelFormatError("is cut off", field=FIELD, offset=at)
