"""Text to ids and back. Comes in: GGUF metadata or a folder, then text or segments. Goes out: `Encoding`, decoded text.

Never flattens a prompt: each id keeps its bytes' place in the text and the segment it came from. Special
tokens are cut out first, and only where trusted text wrote them; what lies between two of them is one run,
whoever wrote its parts, so that the ids are those of the joined text. It does not render templates
(template.py) and knows nothing of models.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from glassbox.errors import PromptError, TemplateError
from glassbox.text.added import Added, AddedMatcher
from glassbox.text.detokenize import Detokenizer
from glassbox.text.encoded import Encoded, Encoder, Span, Word, typed_marks
from glassbox.text.facts import Facts
from glassbox.text.folder import read_folder
from glassbox.text.matcher import Matcher
from glassbox.text.metadata import read_facts
from glassbox.text.segments import Segment, utf8
from glassbox.text.template import ChatTemplate
from glassbox.text.template_files import templates_from_folder
from glassbox.text.templates import Templates
from glassbox.text.vocab import SPACE, Kind, Vocab

# Names under which models end a turn; a file's metadata often lists only one of them.
TURN_ENDS = (
    "<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
    "<|eot|>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "<end_of_utterance>", "<|return|>", "<EOT>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Encoding:
    """A prompt as ids that know where they came from; `ids`, `spans`, `kinds`, `segments` run in parallel."""

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]  # bytes of `text`; empty for what the tokenizer added
    kinds: tuple[Kind, ...]
    segments: tuple[int, ...]  # index into segment_list: where the id's first byte lies
    segment_list: tuple[Segment, ...]
    text: str
    lossy: tuple[str, ...] = ()  # what the vocabulary could not say: "byte 0x04 at offset 1"
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        ids = ", ".join(map(str, self.ids[:8])) + (", …" if len(self) > 8 else "")
        text = self.text if len(self.text) <= 40 else self.text[:39] + "…"
        lost = f", {len(self.lossy)} bytes lost" if self.lossy else ""
        return f"<Encoding {len(self)} ids [{ids}] of {text!r}{lost}>"


class Tokenizer:
    """A model's tokenizer. `assumptions` lists what the file leaves open and what is assumed for it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.vocab: Vocab = facts.vocab
        self.assumptions = list(facts.assumptions)
        self.bos_id = facts.special.get("bos")
        self._control = Matcher(self.vocab.of_kind("control"))
        self._user = Matcher({self.vocab.bytes_of(t).decode(): t for t in self.vocab.of_kind("user").values()})
        self._added = _added_of(facts)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from a GGUF file's metadata. Raises ModelFormatError (with the field) and Unsupported."""
        return cls(read_facts(metadata))

    @classmethod
    def from_folder(cls, path: Path) -> Tokenizer:
        """Build from a folder with tokenizer.json or tokenizer.model, or from such a file. Raises as from_gguf."""
        templates = templates_from_folder(path if path.is_dir() else path.parent)
        return cls(replace(read_folder(path), templates=templates))

    def __repr__(self) -> str:
        return f"<Tokenizer {self.facts.model}/{self.facts.pre}, {len(self.vocab):,} tokens>"

    def encode(self, text: str, *, specials: bool = False, add_special: bool = True) -> Encoding:
        """Encode one text. `specials`: special tokens in it count; `add_special`: BOS if the file says so.

        Raises PromptError for what is not text (lone surrogates) and for what the vocabulary cannot say.
        """
        return self.encode_segments([Segment("prompt", None, text, trusted=specials)], add_special=add_special)

    def encode_segments(self, segments: Sequence[Segment], *, add_special: bool = True) -> Encoding:
        """Encode a rendered prompt: the ids of the joined text, but untrusted text makes no special token.

        Raises PromptError for what is not text (lone surrogates) and for what the vocabulary cannot say.
        """
        text = "".join(s.text for s in segments)
        data = utf8(text)
        whole = self._encode(segments)
        if whole.missing:
            raise PromptError(_inexpressible(text, data, whole.missing[0]))
        found = whole.spans
        lossy = tuple(f"byte 0x{data[i]:02X} at offset {i}" for i in whole.lost)
        begins = list(accumulate((len(s.text.encode()) for s in segments), initial=0))[:-1]
        owners = [bisect_right(begins, begin) - 1 for _, begin, _ in found]
        added, notes = self._bos_to_add(text, found) if add_special else ([], ())
        notes = (*notes, *whole.notes)
        if not lossy and not whole.notes:
            notes += self._misread(text, found)
        if added:
            segments = [Segment("tokenizer", None, "", trusted=True), *segments]
            found, owners = added + found, [0, *(i + 1 for i in owners)]
        return Encoding(
            ids=tuple(token for token, _, _ in found),
            spans=tuple((begin, end) for _, begin, end in found),
            kinds=tuple(self.vocab.kind_of(token) for token, _, _ in found),
            segments=tuple(owners),
            segment_list=tuple(segments),
            text=text,
            lossy=lossy,
            notes=notes,
        )

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """The text of `ids`, U+FFFD for invalid bytes. Control tokens say nothing unless `specials`."""
        vocab, drop_space, said = self.vocab, self.facts.space_prefix, []
        for token in ids:
            data = vocab.text_bytes(token)
            if drop_space and data:
                drop_space, data = False, data.removeprefix(b" ")
            said.append(vocab.bytes_of(token) if specials and vocab.kind_of(token) == "control" else data)
        return b"".join(said).decode("utf-8", "replace")

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        """For a stream after `prompt`, whose text is not sent again but whose half character is completed."""
        head = Detokenizer(self.vocab)
        for token in prompt:
            head.feed(token)
        at_start = not any(map(self.vocab.text_bytes, prompt))
        return Detokenizer(self.vocab, pending=head.held, drop_space=self.facts.space_prefix and at_start)

    @property
    def bos(self) -> str:
        """The BOS token as templates write it; empty if there is none."""
        return "" if self.bos_id is None else self.vocab.pieces[self.bos_id]

    @property
    def eos(self) -> str:
        """The EOS token as templates write it; empty if there is none."""
        return self.vocab.pieces[self.facts.special["eos"]] if "eos" in self.facts.special else ""

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The file's chat template, if it has one. Raises TemplateError if it cannot be parsed."""
        return self.templates.choose("default") if "default" in self.templates.sources else None

    @cached_property
    def templates(self) -> Templates:
        """All chat templates of the model, by name."""
        facts = self.facts
        sources = facts.templates or ({} if facts.template is None else {"default": facts.template})
        named = {"unk_token": "unknown", "pad_token": "padding"}
        specials = {k: self.vocab.pieces[facts.special[role]] for k, role in named.items() if role in facts.special}
        return Templates(sources, bos=self.bos, eos=self.eos, specials=specials)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """What ends a generation: the file's EOS, EOT, EOM, known names, the end of the template's turns."""
        special, control = self.facts.special, self.vocab.of_kind("control")
        ends = {special[name] for name in ("eos", "eot", "eom") if name in special} | self.facts.ends
        ends |= {control[name] for name in TURN_ENDS if name in control}
        try:
            tail = self.template.after_assistant() if self.template else ""
        except TemplateError:
            tail = ""  # a template that cannot render a plain exchange tells nothing
        _, token = next(self._control.cut(tail.lstrip()), ("", None))
        return frozenset(ends if token is None or token == self.bos_id else ends | {token})

    @cached_property
    def _encoder(self) -> Encoder:
        """Built when first needed: decoding needs none."""
        unknown = self.facts.special.get("unknown")
        if unknown in self.eos_ids or unknown == self.bos_id:
            unknown = None  # better an error than an end in the middle of the prompt
        return self.facts.encoder(unknown)

    def _encode(self, segments: Sequence[Segment]) -> Encoded:
        whole, at, first = Encoded(), 0, True
        for part, token, is_special in self._parts(segments):
            size = len(part.encode())
            if not is_special and (token is None or (first and self._space_alone)):
                here = self._encoder.encode(part if token is None else "", first=first)
                whole.spans += [(t, at + begin, at + end) for t, begin, end in here.spans]
                whole.lost += [at + i for i in here.lost]
                whole.missing += [at + i for i in here.missing]
                whole.notes += tuple(n for n in here.notes if n not in whole.notes)
            if token is not None:
                whole.spans.append((token, at, at + size))
                name = self.vocab.pieces[token].encode()
                if size > len(name):  # white space that belongs to the token
                    begin = at + part.encode().index(name)
                    whole.lost += [i for i in range(at, at + size) if not begin <= i < begin + len(name)]
                elif not is_special and self.vocab.style == "sentencepiece":
                    whole.lost += [at + i for i in typed_marks(part)]
            first, at = first and is_special and self.facts.added is None, at + size
        return whole

    @property
    def _space_alone(self) -> bool:
        """Whether the space in front stands even before a user-defined piece, as in SentencePiece."""
        return self.facts.added is None and self.facts.space_prefix

    def explain(self, text: str, *, specials: bool = False) -> tuple[str, list[Word]]:
        """The text as it is after normalisation, and how each of its words became ids."""
        utf8(text)
        words: list[Word] = []
        seen, first = "", True
        for part, token, is_special in self._parts([Segment("prompt", None, text, trusted=specials)]):
            if not is_special and (token is None or (first and self._space_alone)):
                changed, more = self._encoder.explain(part if token is None else "", first=first)
                seen, words = seen + changed, words + more
            if token is not None:
                seen += part
                words.append(Word(part, (token,), "special" if is_special else "user"))
            first = first and is_special and self.facts.added is None
        return seen, words

    def _parts(self, segments: Sequence[Segment]) -> Iterator[tuple[str, int | None, bool]]:
        """(text, id, whether it is special) in order; None for plain text."""
        if self._added is not None:
            yield from self._cut_added(segments, self._added)
            return
        for run, special in self._runs(segments):
            if special is not None:
                yield run, special, True
            else:
                yield from ((part, token, False) for part, token in self._cut_user(run))

    def _cut_added(self, segments: Sequence[Segment], added: AddedMatcher) -> Iterator[tuple[str, int | None, bool]]:
        """Tokens with flags are looked for in the whole text, since white space of any author may be part of them."""
        ends = list(accumulate(len(s.text) for s in segments))
        text = "".join(s.text for s in segments)

        def accept(begin: int, end: int, token: int) -> bool:
            if not added.is_special(token):
                return True
            return all(s.trusted for s in segments[bisect_right(ends, begin) : bisect_left(ends, end) + 1])

        for part, token in added.cut(text, accept):
            yield part, token, token is not None and added.is_special(token)

    def _cut_user(self, run: str) -> Iterator[tuple[str, int | None]]:
        """User-defined pieces, and what lies between. SentencePiece takes U+2581 for a space here too."""
        at = 0
        as_space = self.vocab.style == "sentencepiece"
        for part, token in self._user.cut(run.replace(SPACE, " ") if as_space else run):
            yield run[at : at + len(part)], token
            at += len(part)

    def _runs(self, segments: Sequence[Segment]) -> Iterator[tuple[str, int | None]]:
        """Special tokens of trusted text, and what lies between them, joined whoever wrote it."""
        run = ""
        for trusted, group in groupby(segments, key=lambda s: s.trusted):
            text = "".join(s.text for s in group)
            for part, token in self._control.cut(text) if trusted else [(text, None)]:
                if token is None:
                    run += part
                    continue
                if run:
                    yield run, None
                yield part, token
                run = ""
        if run:
            yield run, None

    def _misread(self, text: str, found: Sequence[Span]) -> tuple[str, ...]:
        """Rules about spaces can make two texts one: said here, whatever rule it was."""
        back = self.decode([token for token, _, _ in found], specials=True)
        if back == text:
            return ()
        pairs = enumerate(zip(back, text, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(back), len(text)))
        return (f"these ids read as another text, from character {at} on: {back[at : at + 12]!r}",)

    def _bos_to_add(self, text: str, found: list[Span]) -> tuple[list[Span], tuple[str, ...]]:
        if not self.facts.add_bos or self.bos_id is None:
            return [], ()
        if found and found[0][0] == self.bos_id:
            return [], (f"the text begins with {self.bos} already: no second one is added",)
        twice = text.startswith(self.bos)
        return [(self.bos_id, 0, 0)], (f"the text begins with the letters {self.bos}, beside the BOS",) * twice


def _added_of(facts: Facts) -> AddedMatcher | None:
    """All that is cut out of a text, where tokens have flags; None: they have none, as in most GGUF files."""
    vocab, control = facts.vocab, facts.vocab.of_kind("control")
    if facts.added is None and not facts.rstrip:
        return None
    if facts.added is None:
        flagged = [Added(t, piece, special=True, rstrip=t in facts.rstrip) for piece, t in control.items()]
        user = [Added(t, vocab.bytes_of(t).decode(), special=False) for t in vocab.of_kind("user").values()]
        return AddedMatcher([*flagged, *user])
    known = {t.id for t in facts.added}
    more = [Added(t, piece, special=True) for piece, t in control.items() if t not in known]
    return AddedMatcher([*(t for t in facts.added if t.special or not t.normalized), *more])


def _inexpressible(text: str, data: bytes, offset: int) -> str:
    place = len(data[:offset].decode("utf-8", "ignore"))
    c = text[place]
    return (
        f"the vocabulary has no token for byte 0x{data[offset]:02X} at offset {offset}: "
        f"character {place}, {c!a} (U+{ord(c):04X}), cannot be expressed"
    )
