"""The logit lens: what the model would say if the residual stream ended here, and the numbers its last step goes by.

In: residual vectors, from any layer. Out: the logits that the final norm, the head, the scale and the cap make of
them, by the model's own kernels: of the last layer's they are the model's logits, bit for bit.
But: it judges nothing. trace/explain.py ranks and adds up.

Source: nostalgebraist, "interpreting GPT: the logit lens" (2020)
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from glassbox.model.execute import CHUNK
from glassbox.model.kernels import program as pr
from glassbox.model.kernels.program import Matrix, Program
from glassbox.model.model import TransformerModel
from glassbox.model.threads import Job, Team, claim_counters
from glassbox.types import F32, I64


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
    pieces = [_run(model.team, p, resid[i : i + CHUNK], s.width)[logits] for i in range(0, len(resid), CHUNK)]
    return np.concatenate(pieces)[:, : s.vocab] if pieces else np.empty((0, s.vocab), np.float32)


def rows_of(team: Team, matrix: Matrix, rows: Sequence[int] | I64) -> F32:
    """Some rows of a packed matrix as the kernels read them, float32 [n, columns]."""
    p = Program()
    out = p.buffer(matrix.columns)
    p.embed(out, matrix)
    given = np.asarray(rows, dtype=np.int64)
    buffers = _run(team, p, np.empty((len(given), 0), np.float32), matrix.columns, given)
    return buffers[out][:, : matrix.columns]


def vector_at(address: int, n: int) -> F32:
    """The float32 [n] at an address of the arena; zeros for address 0. A copy."""
    if not address:
        return np.zeros(n, np.float32)
    found: F32 = np.ctypeslib.as_array((ctypes.c_float * n).from_address(address)).copy()
    return found


def _run(team: Team, program: Program, x: F32, width: int, ids: I64 | None = None) -> list[F32]:
    """Run instructions over rows that are in buffer 0 at first [n, …], or that begin from ids [n]: the buffers."""
    count, code = len(x), program.array()
    buffers = [np.zeros((count, w), np.float32) for w in program.widths]
    buffers[0][:, : x.shape[1]] = x
    ids = np.zeros(count, np.int64) if ids is None else ids
    addresses = np.array([b.ctypes.data for b in buffers], np.int64)
    strides = np.array([b.strides[0] for b in buffers], np.int64)
    counters = claim_counters(len(code), team.count)
    stride = 4 * (8 * (-(-width // 16) * 16 + 16) + 64 * CHUNK)  # a decoded tile, and every row's accumulators
    scratch = np.empty(stride * team.count // 4, np.float32)
    header = np.zeros(pr.HEADER, np.int64)
    header[[
        pr.PROGRAM, pr.LENGTH, pr.BUFFERS, pr.STRIDES, pr.TOKENS, pr.ROWS, pr.IDS, pr.CLAIMS, pr.DONE, pr.SCRATCH,
        pr.SCRATCH_STRIDE,
    ]] = [
        code.ctypes.data, len(code), addresses.ctypes.data, strides.ctypes.data, count, count, ids.ctypes.data,
        counters.ctypes.data, counters[-1:].ctypes.data, scratch.ctypes.data, stride,
    ]  # fmt: skip
    team.run(Job(header, (code, addresses, strides, counters, buffers, ids, scratch)))
    return buffers
