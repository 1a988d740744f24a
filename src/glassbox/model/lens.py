"""The logit lens: what the model would say if the residual stream ended here.

In: residual vectors, from any layer. Out: the logits that the final norm, the head, the scale and the cap make of
them, by the model's own kernels: of the last layer's they are the model's logits, bit for bit.
But: it judges nothing. trace/inside.py ranks.

Source: nostalgebraist, "interpreting GPT: the logit lens" (2020)
"""

from __future__ import annotations

import numpy as np

from glassbox.model.execute import CHUNK
from glassbox.model.kernels.program import Program
from glassbox.model.model import TransformerModel
from glassbox.model.peek import run_rows
from glassbox.types import F32


def lens(model: TransformerModel, resid: F32) -> F32:
    """Residual vectors float32 [n, D] -> logits [n, V], all rows in one pass."""
    s, w, p = model.spec, model.weights, Program()
    x, logits = p.buffer(s.width), p.buffer(s.vocab)
    if s.norm == "rms":
        p.norm(x, x, w.final_norm.weight, s.width, s.norm_eps)
    else:
        p.layer_norm(x, x, w.final_norm.weight, w.final_norm.bias, s.width, s.norm_eps)
    p.matmul(logits, x, w.head)
    if s.logit_scale != 1.0:
        p.scale(logits, logits, s.vocab, s.logit_scale)
    if s.logit_cap:
        p.cap(logits, logits, s.vocab, s.logit_cap)
    pieces = [run_rows(model.team, p, resid[i : i + CHUNK], s.width)[logits] for i in range(0, len(resid), CHUNK)]
    return np.concatenate(pieces)[:, : s.vocab] if pieces else np.empty((0, s.vocab), np.float32)
