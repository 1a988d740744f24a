"""Text to ids and back. Comes in: GGUF metadata, then text or segments. Goes out: `Encoding`, decoded text.

Never flattens a prompt: each id keeps its bytes' place in the text and the segment it came from. Special
tokens are cut out first, and only where trusted text wrote them; what lies between two of them is one run,
whoever wrote its parts, so that the ids are those of the joined text. It does not render templates
(template.py) and knows nothing of models.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Protocol

from glassbox.errors import TemplateError
from glassbox.text.bytelevel import PRE_TOKENIZERS, ByteLevelBpe
from glassbox.text.detokenize import Detokenizer
from glassbox.text.matcher import Matcher
from glassbox.text.metadata import Facts, read_facts
from glassbox.text.segments import Segment, utf8
from glassbox.text.spm import SentencePieceBpe
from glassbox.text.template import ChatTemplate
from glassbox.text.templates import Templates
from glassbox.text.vocab import SPACE, Kind, Vocab

Span = tuple[int, int, int]  # id, first byte, byte after the last

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


class Encoder(Protocol):
    """Encodes a run of plain text. `first`: nothing but special tokens stands before it in the prompt."""

    def encode(self, text: str, *, first: bool = False) -> list[Span]: ...


class Tokenizer:
    """A model's tokenizer. `assumptions` lists what the file leaves open and what is assumed for it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.vocab: Vocab = facts.vocab
        self.assumptions = list(facts.assumptions)
        self.bos_id = facts.special.get("bos")
        self._control = Matcher(self.vocab.of_kind("control"))
        self._user = Matcher({self.vocab.bytes_of(t).decode(): t for t in self.vocab.of_kind("user").values()})

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from a GGUF file's metadata. Raises ModelFormatError (with the field) and Unsupported."""
        return cls(read_facts(metadata))

    def __repr__(self) -> str:
        return f"<Tokenizer {self.facts.model}/{self.facts.pre}, {len(self.vocab):,} tokens>"

    def encode(self, text: str, *, specials: bool = False, add_special: bool = True) -> Encoding:
        """Encode one text. `specials`: special tokens in it count; `add_special`: BOS if the file says so.

        Raises PromptError for what is not text (lone surrogates).
        """
        return self.encode_segments([Segment("prompt", None, text, trusted=specials)], add_special=add_special)

    def encode_segments(self, segments: Sequence[Segment], *, add_special: bool = True) -> Encoding:
        """Encode a rendered prompt: the ids of the joined text, but untrusted text makes no special token.

        Raises PromptError for what is not text (lone surrogates).
        """
        text = "".join(s.text for s in segments)
        data = utf8(text)
        found = self._encode(segments)
        lossy = tuple(f"byte 0x{data[i]:02X} at offset {i}" for i in self._lost(found, data))
        begins = list(accumulate((len(s.text.encode()) for s in segments), initial=0))[:-1]
        owners = [bisect_right(begins, begin) - 1 for _, begin, _ in found]
        added, notes = self._bos_to_add(text, found) if add_special else ([], ())
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
        return Templates(sources, bos=self.bos, eos=self.eos)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """What ends a generation: the file's EOS, EOT, EOM, known names, the end of the template's turns."""
        special, control = self.facts.special, self.vocab.of_kind("control")
        ends = {special[name] for name in ("eos", "eot", "eom") if name in special}
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
        facts = self.facts
        if facts.model == "gpt2":
            return ByteLevelBpe(self.vocab, facts.merges, PRE_TOKENIZERS[facts.pre])
        unknown = facts.special.get("unknown")
        if unknown in self.eos_ids or unknown == self.bos_id:
            unknown = None  # better a gap than an end in the middle of the prompt
        return SentencePieceBpe(self.vocab, facts.scores, unknown=unknown, space_prefix=facts.space_prefix)

    def _encode(self, segments: Sequence[Segment]) -> list[Span]:
        found: list[Span] = []
        at, first = 0, True
        for run, special in self._runs(segments):
            for part, token in [(run, special)] if special is not None else self._cut_user(run):
                if special is None and (token is None or first):
                    merged = self._encoder.encode(part if token is None else "", first=first)
                    found += [(t, at + begin, at + end) for t, begin, end in merged]
                    first = False
                size = len(part.encode())
                if token is not None:
                    found.append((token, at, at + size))
                at += size
        return found

    def _cut_user(self, run: str) -> Iterator[tuple[str, int | None]]:
        """User-defined pieces, and what lies between. SentencePiece takes U+2581 for a space here too."""
        at = 0
        for part, token in self._user.cut(run.replace(SPACE, " ") if self.facts.model == "llama" else run):
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

    def _bos_to_add(self, text: str, found: list[Span]) -> tuple[list[Span], tuple[str, ...]]:
        if not self.facts.add_bos or self.bos_id is None:
            return [], ()
        if found and found[0][0] == self.bos_id:
            return [], (f"the text begins with {self.bos} already: no second one is added",)
        twice = text.startswith(self.bos)
        return [(self.bos_id, 0, 0)], (f"the text begins with the letters {self.bos}, beside the BOS",) * twice

    def _lost(self, found: Sequence[Span], data: bytes) -> Iterator[int]:
        """Offsets of the bytes that the ids do not say back."""
        at, space_due = 0, self.facts.space_prefix
        for token, begin, end in found:
            yield from range(at, begin)
            at, meant, said = end, data[begin:end], self.vocab.bytes_of(token)
            control = self.vocab.kind_of(token) == "control"
            if space_due and not control:
                space_due, said = False, said.removeprefix(b" ") if said != meant else said
            if said == meant:
                continue
            if control:  # the unknown token
                yield from range(begin, end)
            elif self.vocab.style == "byte-level":
                yield from (begin + i for i, b in enumerate(meant) if b in self.vocab.missing_bytes)
            else:  # U+2581 typed as such reads as a space
                marks = [i for i in range(len(meant)) if meant.startswith(SPACE.encode(), i)]
                yield from (begin + i + k for i in marks for k in range(3))
        yield from range(at, len(data))
