"""Who wrote a logit: what the embedding, each attention, each MLP and each head added to it. Direct logit attribution.

In: the inner values at one position, the ids of two tokens. Out: parts that sum to the logits of both, to rounding.
The residual stream is a sum, and all that stands between it and the logits is the final norm and the head. With the
norm's scale held at the value it has there, both are linear, so each summand has its share, exactly. A mean that the
norm takes off is taken off each summand; its bias is a part of its own. A cap comes after: what is attributed is the
logit before it.
But: it tells who wrote the logit, not why: what made an MLP write so lies further down.

Source: Elhage et al., "A mathematical framework for transformer circuits" (2021)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassbox.model.model import TransformerModel
from glassbox.model.peek import rows_of, vector_at
from glassbox.model.spec import ModelSpec
from glassbox.model.weights import Norm
from glassbox.types import F32, F64

BIAS = "bias"


@dataclass(frozen=True)
class Part:
    """What one summand of the residual stream adds to the logits of the chosen token and of its rival."""

    name: str  # "embed" | "attn_out.3" | "mlp_out.3" | "bias" of the final norm | "head 5", "bias" of an attention
    chosen: float
    rival: float

    @property
    def difference(self) -> float:
        return self.chosen - self.rival

    def to_dict(self) -> dict[str, Any]:
        return {"part": self.name, "chosen": self.chosen, "rival": self.rival, "difference": self.difference}


@dataclass(frozen=True)
class Attribution:
    parts: tuple[Part, ...]
    chosen: float  # the logits themselves, before a cap
    rival: float
    capped: float  # the cap that comes after; 0: none
    layer: int  # whose attention said most about the two
    heads: tuple[Part, ...]  # of that attention; they sum to its part

    @property
    def difference(self) -> float:
        return self.chosen - self.rival

    @property
    def residue(self) -> float:
        """What the parts leave of the difference: float32 rounding of the forward pass."""
        return self.difference - sum(p.difference for p in self.parts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "chosen": self.chosen,
            "rival": self.rival,
            "difference": self.difference,
            "residue": self.residue,
            "before_cap": self.capped or None,
            "parts": [p.to_dict() for p in self.parts],
            "head_layer": self.layer,
            "heads": [p.to_dict() for p in self.heads],
        }


def points(layers: int) -> list[str]:
    """What `attribute` needs to see."""
    return ["embed", "final_norm", *(f"{name}.{i}" for i in range(layers) for name in ("attn_out", "mlp_out", "z"))]


def attribute(model: TransformerModel, seen: Mapping[str, F32], logits: F32, ids: Sequence[int]) -> Attribution:
    """Of two ids. seen: the points above and the last resid_post, each [1, …]; logits [V] of the same position."""
    s, w = model.spec, model.weights
    head = rows_of(model.team, w.head, ids)[:, : s.width].astype(np.float64) * s.logit_scale  # [2, D]
    stream = seen[f"resid_post.{s.layers - 1}"][0]
    down, bias = _linear(s, w.final_norm, stream, head)
    names = ["embed", *(f"{name}.{i}" for i in range(s.layers) for name in ("attn_out", "mlp_out"))]
    shares = np.stack([seen[name][0] for name in names]).astype(np.float64) @ down.T  # [2·L + 1, 2]
    parts = [Part(name, *share) for name, share in zip(names, shares.tolist(), strict=True)]
    if s.norm_bias:
        parts.append(Part(BIAS, *bias.tolist()))
    exact = head @ seen["final_norm"][0].astype(np.float64) if s.logit_cap else logits[list(ids)].astype(np.float64)
    layer = int(np.abs(shares[1::2] @ [1.0, -1.0]).argmax())
    heads = _heads(model, layer, seen[f"z.{layer}"][0], down)
    return Attribution(tuple(parts), float(exact[0]), float(exact[1]), s.logit_cap, layer, heads)


def _heads(model: TransformerModel, layer: int, z: F32, down: F64) -> tuple[Part, ...]:
    """What each head of a layer's attention adds. z [H, W]; down [2, D]: from what attention adds to the logits."""
    s, w = model.spec, model.weights.layers[layer]
    out = rows_of(model.team, w.o.matrix, range(s.width))[:, : z.size].astype(np.float64)  # [D, H·W]
    own = vector_at(w.o.bias, s.width).astype(np.float64)
    down, bias = down * s.residual_scale, np.zeros(len(down))
    if w.attn_post_norm is not None:
        down, bias = _linear(s, w.attn_post_norm, out @ z.reshape(-1).astype(np.float64) + own, down)
    shares = np.einsum("hw,nhw->hn", z.astype(np.float64), (down @ out).reshape(-1, *z.shape))  # [H, 2]
    found = [Part(f"head {h}", *share) for h, share in enumerate(shares.tolist())]
    bias = bias + down @ own
    return (*found, Part(BIAS, *bias.tolist())) if bias.any() else tuple(found)


def _linear(s: ModelSpec, norm: Norm, x: F32 | F64, after: F64) -> tuple[F64, F64]:
    """A norm of x with its scale as it is there, followed by `after` [n, D]: (what it is to a summand of x [n, D],
    what the norm's bias adds [n])."""
    x = x.astype(np.float64)
    centred = x - x.mean() if s.norm == "layer" else x
    scale = 1.0 / np.sqrt(np.mean(centred * centred) + s.norm_eps)
    down = after * vector_at(norm.weight, s.width) * scale
    if s.norm == "layer":
        down = down - down.mean(axis=1, keepdims=True)  # Σ (y − mean y) · d = Σ y · (d − mean d)
    return down, after @ vector_at(norm.bias, s.width).astype(np.float64)
