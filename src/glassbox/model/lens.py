"""The logit lens: what the model would say if its residual stream ended here.

In: residual vectors, float32 [n, D], from any layer. Out: logits, float32 [n, V], by the same final norm, head, scale
and cap, with the same kernels: of the last layer's `resid_post` they are the model's own logits, bit for bit.
But: it knows no layers and no positions. (nostalgebraist, "interpreting GPT: the logit lens", 2020.)
"""

from __future__ import annotations

import numpy as np

from glassbox.model.execute import CHUNK
from glassbox.model.kernels import program as pr
from glassbox.model.spec import ModelSpec
from glassbox.model.threads import Job, Team, claim_counters
from glassbox.model.transformer import write_lens
from glassbox.model.weights import Weights
from glassbox.types import F32


class Lens:
    """The end of one model's forward pass. normed=False: the head's product alone."""

    def __init__(self, spec: ModelSpec, weights: Weights, team: Team, *, normed: bool = True) -> None:
        self.spec, self.team = spec, team
        program, self._resid, self._logits = write_lens(spec, weights, normed=normed)
        self._code, self._widths = program.array(), program.widths
        self._stride = -(-4 * (8 * (spec.width + 16) + 64 * CHUNK) // 64) * 64  # bytes of scratch a thread has

    def read(self, resid: F32) -> F32:
        """[n, D] -> [n, V]."""
        pieces = [self._run(resid[i : i + CHUNK]) for i in range(0, len(resid), CHUNK)]
        return np.concatenate(pieces) if pieces else np.empty((0, self.spec.vocab), np.float32)

    def _run(self, resid: F32) -> F32:
        buffers = [np.zeros((len(resid), width), np.float32) for width in self._widths]
        buffers[self._resid][:, : self.spec.width] = resid
        addresses = np.array([b.ctypes.data for b in buffers], np.int64)
        strides = np.array([b.strides[0] for b in buffers], np.int64)
        counters = claim_counters(len(self._code), self.team.count)
        scratch = np.empty(self._stride * self.team.count // 4, np.float32)
        header = np.zeros(pr.HEADER, np.int64)
        header[[
            pr.PROGRAM, pr.LENGTH, pr.BUFFERS, pr.STRIDES, pr.TOKENS, pr.ROWS, pr.CLAIMS, pr.DONE, pr.SCRATCH,
            pr.SCRATCH_STRIDE,
        ]] = [
            self._code.ctypes.data, len(self._code), addresses.ctypes.data, strides.ctypes.data, len(resid), len(resid),
            counters.ctypes.data, counters[-1:].ctypes.data, scratch.ctypes.data, self._stride,
        ]  # fmt: skip
        self.team.run(Job(header, (self._code, addresses, strides, counters, buffers, scratch)))
        return buffers[self._logits][:, : self.spec.vocab]
