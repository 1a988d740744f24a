"""The lab's four-token model: the next token depends on the last one alone. Same protocol as the transformer.

labs/glassbox/v4_token_trace.py holds the same table and explains it; a test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glassbox.cache.pages import Cache, PagePool, PageShape
from glassbox.model.execute import Computed, Part
from glassbox.model.kernels.build import load
from glassbox.model.spec import ModelSpec
from glassbox.types import F32, Sums

TOKENS = (" ", "a", "b", "c")
LOGITS: F32 = np.array(
    [
        (-2.00, 2.00, 1.00, 0.50),
        (0.00, -1.00, 2.00, 1.00),
        (0.75, 0.50, -1.00, 2.00),
        (2.00, 1.00, 0.00, -1.00),
    ],
    np.float32,
)  # [last, next]

METADATA: Mapping[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["Ġ", "a", "b", "c"],  # Ġ is how byte-level vocabularies write a space
    "tokenizer.ggml.token_type": [1, 1, 1, 1],
    "tokenizer.ggml.merges": [],
}
"""Its vocabulary, as a GGUF file would have it."""


class BigramModel:
    """A table of logits."""

    vocab_size = len(TOKENS)
    context = 4096
    layers = 0
    spec: ModelSpec | None = None
    fingerprint = "bigram"
    threads = 1

    def __init__(self, announce: Callable[[str], None] | None = None) -> None:
        load(announce)  # the policy's sums are compiled code
        self._pool = PagePool(PageShape((), 0, 0))

    def new_cache(self) -> Cache:
        return Cache(self._pool)

    def forward_parts(self, parts: Sequence[Part], look: frozenset[str] = frozenset()) -> Computed:
        rows = [p.ids[p.rows.start : p.rows.stop] for p in parts]
        for p in parts:
            p.cache.length += len(p.ids)
        points = {"embed": np.eye(len(TOKENS), dtype=np.float32)[np.concatenate([p.ids for p in parts])]}
        points["final_norm"] = points["embed"]
        return Computed(LOGITS[np.concatenate(rows)], {name: points[name] for name in look})

    def sum_rows(self, logits: F32, betas: Sequence[Sequence[float]]) -> list[Sums]:
        return [{} for _ in logits]  # four numbers a row: the policy sums them itself

    def __repr__(self) -> str:
        return "<bigram model of the lab: four tokens>"
