"""A model whose folder holds no tokenizer: ids go in and come out, and whatever needs text says why it cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glassbox.errors import PromptError
from glassbox.text.detokenize import Detokenizer
from glassbox.text.encoded import Word
from glassbox.text.segments import Segment
from glassbox.text.templates import Templates
from glassbox.text.tokenizer import Encoding, Tokenizer
from glassbox.text.vocab import Vocab

WHY = "this model comes without a tokenizer: give ids"


class NoTokenizer(Tokenizer):
    """No text, no specials, no template; only where a generation ends is known, from the model's config."""

    def __init__(self, eos_ids: Iterable[int]) -> None:
        self.vocab = Vocab((), (), "byte-level")
        self.assumptions = ["the model comes without a tokenizer: ids have no text"]
        self.bos_id = None
        self.eos_ids = frozenset(eos_ids)
        self.templates = Templates({}, bos="", eos="")

    def __repr__(self) -> str:
        return "<NoTokenizer>"

    def encode_segments(self, segments: Sequence[Segment], *, add_special: bool = True) -> Encoding:
        """Raises PromptError."""
        raise PromptError(WHY)

    def explain(self, text: str, *, specials: bool = False) -> tuple[str, list[Word]]:
        """Raises PromptError."""
        raise PromptError(WHY)

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """Raises PromptError, unless there is nothing to say."""
        if tuple(ids):
            raise PromptError(WHY, param="ids")
        return ""

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        return Detokenizer(self.vocab)

    @property
    def bos(self) -> str:
        return ""

    @property
    def eos(self) -> str:
        return ""
