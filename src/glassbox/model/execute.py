"""Runs a written forward pass: memory for its buffers, a job's header, the team's call, results out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassbox.cache.pages import KINDS, Cache, PageShape
from glassbox.model.intervene import Intervention
from glassbox.model.kernels import program as pr
from glassbox.model.threads import Job, Team, claim_counters
from glassbox.model.transformer import Sheet
from glassbox.types import F32, I64

CHUNK = 128  # tokens in one pass; a longer prompt goes through in pieces


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive tokens of one sequence: their ids, and the cache whose next positions they take."""

    ids: I64  # [n]
    cache: Cache
    rows: range  # of these tokens, whose logits are wanted
    interventions: tuple[Intervention, ...] = ()  # the same for all parts of a pass


@dataclass(frozen=True, slots=True)
class Computed:
    """What a pass gave: logits [rows, V], and each point looked at, [T, …]."""

    logits: F32
    points: dict[str, F32]


class Executor:
    """One sheet with memory for its buffers."""

    def __init__(self, sheet: Sheet, team: Team, shape: PageShape, widest: int) -> None:
        """shape: of the cache's pages; widest: columns of the widest matrix."""
        self.sheet, self.team = sheet, team
        self.shape = shape
        self._scratch_width = 8 * (widest + 16) + 64 * CHUNK  # a decoded tile, and every token's accumulators
        self._code = sheet.program.array()
        self._capacity = 0
        self._memory: list[F32] = []
        self._scratch: F32 = np.empty(0, np.float32)

    def run(self, parts: Sequence[Part]) -> Computed:
        """All parts in one pass (at most CHUNK tokens). Advances the caches.

        Points are [T, width], scores and probabilities [T, H, S].
        """
        ids = np.concatenate([p.ids for p in parts])
        positions = np.concatenate([p.cache.length + np.arange(len(p.ids)) for p in parts])
        groups = range(len(parts[0].cache.tables))
        tables = np.array(  # [groups, T]: address of each token's page table
            [[p.cache.tables[g].addresses.ctypes.data for p in parts for _ in range(len(p.ids))] for g in groups],
            np.int64,
        )
        starts = np.cumsum([0, *(len(p.ids) for p in parts)])
        rows = np.concatenate([s + np.arange(p.rows.start, p.rows.stop) for s, p in zip(starts, parts, strict=False)])
        see_width = int(positions.max()) + 1
        out = self._buffers(len(ids), len(rows), see_width)
        self._job(out, ids, positions, tables, rows.astype(np.int64), see_width)
        for p in parts:
            p.cache.length += len(p.ids)
        points = {name: out[buffer] for name, buffer in self.sheet.points.items()}
        return Computed(out[self.sheet.logits], points)

    def _buffers(self, tokens: int, rows: int, see_width: int) -> list[F32]:
        """Memory for every buffer: kept from call to call, but new for what is handed out."""
        program = self.sheet.program
        if tokens > self._capacity:
            capacity = 1 if tokens == 1 else CHUNK
            self._memory = [np.zeros((capacity, w), np.float32) for w in program.widths]
            self._capacity = capacity  # last: an interrupt before it must not leave a capacity without its memory
        handed = {self.sheet.logits, *self.sheet.points.values()}
        out = [m[:rows] if o else m[:tokens] for m, o in zip(self._memory, program.outputs, strict=True)]
        for i in handed:
            out[i] = np.empty((rows if program.outputs[i] else tokens, program.widths[i]), np.float32)
        for name, i in self.sheet.points.items():
            if program.widths[i] == 0:  # scores or probabilities
                hidden = -np.inf if name.startswith("attn_scores") else 0.0
                heads = self._heads(i)
                out[i] = np.full((tokens, heads, see_width), hidden, np.float32)
        return out

    def _heads(self, buffer: int) -> int:
        rows = self._code[(self._code[:, pr.SCORES] == buffer) | (self._code[:, pr.PROBS] == buffer)]
        return int(rows[0, pr.M] * rows[0, pr.WEIGHT])

    def _job(self, out: list[F32], ids: I64, positions: I64, tables: I64, rows: I64, see_width: int) -> None:
        stride = 4 * max(self._scratch_width, 4 * (see_width + 16))
        stride = -(-stride // 64) * 64
        if self._scratch.nbytes < stride * self.team.count:
            self._scratch = np.empty(stride * self.team.count // 4, np.float32)
        addresses = np.array([b.ctypes.data for b in out], np.int64)
        strides = np.array([b.strides[0] for b in out], np.int64)
        counters = claim_counters(len(self._code), self.team.count)
        header = np.zeros(pr.HEADER, np.int64)
        header[[
            pr.PROGRAM, pr.LENGTH, pr.BUFFERS, pr.STRIDES, pr.TOKENS, pr.ROWS, pr.IDS, pr.POSITIONS, pr.TABLES,
            pr.OUT_ROWS, pr.CLAIMS, pr.DONE, pr.SCRATCH, pr.SCRATCH_STRIDE, pr.LAYER_BYTES, pr.SEE_WIDTH, pr.KV_KIND,
        ]] = [
            self._code.ctypes.data, len(self._code), addresses.ctypes.data, strides.ctypes.data, len(ids), len(rows),
            ids.ctypes.data, positions.ctypes.data, tables.ctypes.data, rows.ctypes.data, counters.ctypes.data,
            counters[-1:].ctypes.data, self._scratch.ctypes.data, stride, self.shape.layer_bytes, see_width,
            list(KINDS).index(self.shape.kind),
        ]  # fmt: skip
        self.team.run(
            Job(header, (self._code, addresses, strides, counters, out, ids, positions, tables, rows, self._scratch))
        )
