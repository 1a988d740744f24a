"""What the model preferred layer by layer, and which earlier tokens it read, at one position.

In: inner values at the position, logits. Out: rows of plain numbers.
But: no words. told.py has those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from glassbox.model.model import TransformerModel
from glassbox.types import F32, F64

READ = 8  # earlier tokens that are listed


@dataclass(frozen=True)
class LayerView:
    """What the model would have said behind one layer. Ranks count from 0; ties go to the lower id."""

    layer: int  # -1: behind the embedding
    rank: int  # of the chosen token
    p: float
    rival_rank: int
    rival_p: float
    top: int  # the id that leads
    top_p: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Read:
    """How much attention one position got from the one that was asked about."""

    position: int
    id: int
    share: float  # the mean over all layers and heads
    most: float  # the largest, and of which layer and head
    layer: int
    head: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Reading:
    """Where attention went. Position 0 is told apart: heads that have nothing to say look there, whatever it holds."""

    first: float  # the share of position 0
    own: float  # of the position itself
    tokens: tuple[Read, ...]  # the READ most read of those between, most first
    others: float  # the share of all that are not listed

    def to_dict(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "own": self.own,
            "tokens": [t.to_dict() for t in self.tokens],
            "others": self.others,
        }


def points(layers: int) -> list[str]:
    """What the two functions below need to see."""
    return ["embed", *(f"{name}.{i}" for i in range(layers) for name in ("resid_post", "attn_probs"))]


def by_layer(model: TransformerModel, seen: Mapping[str, F32], chosen: int, rival: int) -> tuple[LayerView, ...]:
    """The embedding and every layer, all through the head at once. seen: the points above, each [1, …]."""
    names = ["embed", *(f"resid_post.{i}" for i in range(model.layers))]
    rows = model.lens(np.concatenate([seen[name] for name in names]))  # [L + 1, V]
    return tuple(_view(i - 1, row, chosen, rival) for i, row in enumerate(rows))


def _view(layer: int, logits: F32, chosen: int, rival: int) -> LayerView:
    top = int(logits.argmax())
    total = float(np.exp((logits - logits[top]).astype(np.float64)).sum())

    def p(token: int) -> float:
        return float(np.exp(float(logits[token]) - float(logits[top])) / total)

    return LayerView(layer, rank(logits, chosen), p(chosen), rank(logits, rival), p(rival), top, p(top))


def rank(logits: F32, token: int) -> int:
    """0 is the best; of equal logits the lower id comes first."""
    better = np.count_nonzero(logits > logits[token])
    return int(better + np.count_nonzero(logits[:token] == logits[token]))


def reading(seen: Mapping[str, F32], layers: int, ids: Sequence[int]) -> Reading:
    """ids: up to and with the position. seen: attn_probs of each layer, [1, H, S]."""
    probs: F64 = np.stack([seen[f"attn_probs.{i}"][0, :, : len(ids)] for i in range(layers)]).astype(np.float64)
    share = probs.mean(axis=(0, 1))  # [S]
    last = len(ids) - 1
    between = share[1:last]
    order = (np.argsort(-between, kind="stable")[:READ] + 1).tolist()
    heads = probs.shape[1]
    peaks = probs.reshape(-1, len(ids)).argmax(axis=0)  # [S]: layer · H + head
    tokens = tuple(
        Read(s, ids[s], float(share[s]), float(probs[divmod(int(peaks[s]), heads)][s]), *divmod(int(peaks[s]), heads))
        for s in order
    )
    others = float(between.sum()) - sum(t.share for t in tokens)
    return Reading(float(share[0]), float(share[last]) if last else 0.0, tokens, max(0.0, others))
