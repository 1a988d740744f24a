"""The logit lens: what the model would say if its residual stream ended here.

In: residual vectors, float32 [n, D], from any layer. Out: logits, float32 [n, V], by the same final norm, head, scale
and cap, with the same kernels: of the last layer's `resid_post` they are the model's own logits, bit for bit.
But: it knows no layers and no positions. (nostalgebraist, "interpreting GPT: the logit lens", 2020.)
"""

from __future__ import annotations

import numpy as np

from glassbox.model.execute import CHUNK
from glassbox.model.peek import run_rows
from glassbox.model.spec import ModelSpec
from glassbox.model.threads import Team
from glassbox.model.transformer import write_lens
from glassbox.model.weights import Weights
from glassbox.types import F32


class Lens:
    """The end of one model's forward pass. normed=False: the head's product alone."""

    def __init__(self, spec: ModelSpec, weights: Weights, team: Team, *, normed: bool = True) -> None:
        self.spec, self.team = spec, team
        self._program, self._logits = write_lens(spec, weights, normed=normed)

    def read(self, resid: F32) -> F32:
        """[n, D] -> [n, V]."""
        pieces = [self._run(resid[i : i + CHUNK]) for i in range(0, len(resid), CHUNK)]
        return np.concatenate(pieces) if pieces else np.empty((0, self.spec.vocab), np.float32)

    def _run(self, resid: F32) -> F32:
        return run_rows(self.team, self._program, resid, self.spec.width)[self._logits][:, : self.spec.vocab]
