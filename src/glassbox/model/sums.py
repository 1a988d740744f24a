"""The sums of many rows of logits at once, by the whole team: what the policies of a batch would do one by one.

In: rows of logits and for each the inverse temperatures that its policy will ask for. Out: for each row what
policy/distribution.py would compute itself, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from glassbox.model.kernels.build import load
from glassbox.model.kernels.program import WEIGHED, Program
from glassbox.model.threads import Team, run_program
from glassbox.types import F32, Sums

ALONE = 1 << 16  # so few weights are summed here sooner than a team is told to: that takes 0.1 ms of Python


def sum_rows(team: Team, logits: F32, betas: Sequence[Sequence[float]]) -> list[Sums]:
    """logits [R, V], betas [R][…] -> for each row {beta: (Σ w without the best, Σ w·z)}; none for a row that has no
    finite best."""
    rows = [np.ascontiguousarray(row) for row in logits]
    if sum(map(len, betas)) * logits.shape[1] <= ALONE:
        return [_alone(row, b) for row, b in zip(rows, betas, strict=True)]
    tops = [int(row.argmax()) for row in rows]
    wanted = [
        (r, beta, begin)
        for r, row in enumerate(rows) if math.isfinite(row[tops[r]])
        for beta in betas[r]
        for begin in range(0, len(row), WEIGHED)
    ]  # fmt: skip
    out = np.zeros((len(wanted), 8))  # one cache line each; the kernel uses six
    blocks = np.zeros((len(wanted), 4), np.int64)
    for i, (r, beta, begin) in enumerate(wanted):
        row = rows[r]
        out[i, :2] = row[tops[r]], beta
        blocks[i] = [
            row.ctypes.data + 4 * begin, min(WEIGHED, len(row) - begin), tops[r] - begin, out.ctypes.data + 64 * i
        ]  # fmt: skip
    if not wanted:
        return [{} for _ in rows]
    program = Program()
    program.weigh(blocks.ctypes.data, len(blocks))
    run_program(team, program, (rows, blocks, out))
    found: list[Sums] = [{} for _ in rows]
    for (r, beta, _), (rest, weighted) in zip(wanted, out[:, :2].tolist(), strict=True):
        before = found[r].get(beta, (0.0, 0.0))
        found[r][beta] = before[0] + rest, before[1] + weighted
    return found


def _alone(row: F32, betas: Sequence[float]) -> Sums:
    top = int(row.argmax())
    found: Sums = {}
    for beta in betas if math.isfinite(row[top]) else ():
        out = np.array([row[top], beta, 0.0, 0.0, 0.0, 0.0])
        load().weigh(row.ctypes.data, len(row), top, out.ctypes.data)
        found[beta] = float(out[0]), float(out[1])
    return found
