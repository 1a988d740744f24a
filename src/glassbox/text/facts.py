"""What is known of a tokenizer, from whichever files: the one form in which the readers hand it to `Tokenizer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from glassbox.text.added import Added
from glassbox.text.encoded import Encoder
from glassbox.text.vocab import Vocab

NOT_CONTINUED = "tokens that the file puts after a text are left out: a prompt is there to be continued"


@dataclass(frozen=True, slots=True)
class Facts:
    """A tokenizer as its files describe it. `merges` or `scores` is filled, after the model."""

    model: str  # GGUF's "gpt2" (byte-level BPE), "llama" (SentencePiece BPE), "t5" (unigram); or the file's name
    pre: str
    vocab: Vocab
    special: Mapping[str, int]  # "bos" -> id, as far as the file names them
    add_bos: bool
    space_prefix: bool  # decoding drops one space at the start
    merges: tuple[tuple[str, str], ...]
    scores: tuple[float, ...]
    template: str | None
    assumptions: tuple[str, ...]
    encoder: Callable[[int | None], Encoder]  # from the id for what cannot be said, if one may be used
    ends: frozenset[int] = frozenset()  # ids that end a generation, beside those named in `special`
    rstrip: frozenset[int] = frozenset()  # control tokens that take the white space after them; for `added` None
    added: tuple[Added, ...] | None = None  # tokens with flags; None: those of kind control and user, without flags
    templates: Mapping[str, str] = field(default_factory=dict)  # all of them by name, "default" among them
