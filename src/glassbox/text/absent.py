"""A model whose folder holds no tokenizer, or one that is not supported: ids go in and come out,
and whatever needs text says why it cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glassbox.errors import GlassboxError, PromptError, Unsupported
from glassbox.text.detokenize import Detokenizer
from glassbox.text.encoded import Word
from glassbox.text.segments import Segment
from glassbox.text.templates import Templates
from glassbox.text.tokenizer import Encoding, Tokenizer
from glassbox.text.vocab import Vocab

WHY = "this model comes without a tokenizer: give ids"


class NoTokenizer(Tokenizer):
    """No text, no specials, no template; only where a generation ends is known, from the model's config."""

    def __init__(self, eos_ids: Iterable[int], problem: Unsupported | None = None) -> None:
        """problem: why the tokenizer that is there cannot be used."""
        self.problem = problem
        self.vocab = Vocab((), (), "byte-level")
        self.assumptions = [f"{problem or 'the model comes without a tokenizer'}: ids have no text"]
        self.bos_id = None
        self.eos_ids = frozenset(eos_ids)
        self.templates = Templates({}, bos="", eos="")

    def refusal(self, param: str = "prompt") -> GlassboxError:
        """What is raised where text is needed."""
        if self.problem is not None:  # anew: an error that is raised twice gathers what went before
            return Unsupported(self.problem.what, self.problem.name, self.problem.known)
        return PromptError(WHY, param=param)

    def __repr__(self) -> str:
        return "<NoTokenizer>"

    def encode_segments(self, segments: Sequence[Segment], *, add_special: bool = True) -> Encoding:
        """Raises PromptError, or Unsupported."""
        raise self.refusal()

    def explain(self, text: str, *, specials: bool = False) -> tuple[str, list[Word]]:
        """Raises PromptError, or Unsupported."""
        raise self.refusal()

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """Raises PromptError or Unsupported, unless there is nothing to say."""
        if tuple(ids):
            raise self.refusal("ids")
        return ""

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        return Detokenizer(self.vocab)

    @property
    def bos(self) -> str:
        return ""

    @property
    def eos(self) -> str:
        return ""
