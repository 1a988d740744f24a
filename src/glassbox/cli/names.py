"""What to call things: a model, and the ids of a recorded run."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from glassbox.errors import GlassboxError

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.text.vocab import Vocab
    from glassbox.trace.run import Run


class Named(Protocol):
    """A vocabulary, or what a recorded run knows of one."""

    def bytes_of(self, token: int, /) -> bytes: ...


def model_name(given: str) -> str:
    """A model's name as it was given; of a path, the file."""
    return given if given.startswith("hf:") else Path(given).name or Path(given).resolve().name


def described(model: Model) -> str:
    """A model in a few words."""
    spec = getattr(model.model, "spec", None)
    if spec is None:
        return f"the lab's table, vocabulary {model.model.vocab_size:,}"
    return f"{spec.architecture}, {spec.layers} layers of {spec.width}, vocabulary {spec.vocab:,}"


class Names:
    """Bytes of ids, like a vocabulary: a run's own, else those of its model if that is here. Never fetches one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._own = {r.id: r.bytes for r in run.tried} | {p.id: p.bytes for p in run.prompt}
        self._own |= {s.id: s.bytes for s in run.steps}

    def bytes_of(self, token: int) -> bytes:
        if self._own.get(token):
            return self._own[token]
        vocab = self._vocab
        return vocab.bytes_of(token) if vocab is not None and token < len(vocab) else f"#{token}".encode()

    @cached_property
    def _vocab(self) -> Vocab | None:
        """The vocabulary, if the model is here and its tokenizer is the one the run was made with."""
        from glassbox.opening import load_tokenizer, metadata_of
        from glassbox.provenance import tokenizer_digest
        from glassbox.weights.source import known_models

        name = self._run.model
        try:
            here = any(m.pulled for m in known_models() if m.name == name) or name == "bigram" or os.path.exists(name)
            if here and tokenizer_digest(metadata_of(name)) == self._run.provenance.tokenizer_sha256:
                return load_tokenizer(name).vocab
        except (GlassboxError, OSError):
            pass  # the file is damaged or gone: ids are shown as numbers
        return None
