"""Looking at packed weights, and running a few instructions over rows outside a forward pass.

In: a team, a packed matrix or a program. Out: float32, as the kernels read or make them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from glassbox.model.execute import CHUNK
from glassbox.model.kernels import program as pr
from glassbox.model.kernels.program import Matrix, Program
from glassbox.model.threads import Job, Team, claim_counters
from glassbox.types import F32, I64


def rows_of(team: Team, matrix: Matrix, rows: Sequence[int] | I64) -> F32:
    """Some rows of a packed matrix as the kernels read them, float32 [n, columns]."""
    p = Program()
    out = p.buffer(matrix.columns)
    p.embed(out, matrix)
    given = np.asarray(rows, dtype=np.int64)
    buffers = run_rows(team, p, np.empty((len(given), 0), np.float32), matrix.columns, given)
    return buffers[out][:, : matrix.columns]


def vector_at(address: int, n: int) -> F32:
    """The float32 [n] at an address of the arena; zeros for address 0. A copy."""
    if not address:
        return np.zeros(n, np.float32)
    found: F32 = np.ctypeslib.as_array((ctypes.c_float * n).from_address(address)).copy()
    return found


def run_rows(team: Team, program: Program, x: F32, width: int, ids: I64 | None = None) -> list[F32]:
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
