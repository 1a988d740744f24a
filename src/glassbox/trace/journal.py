"""One run on its way to the store: rows that wait, and what is there already.

In: what a Recorder passed on, in order. Out: statements on a connection, inside the writer's transaction.
Rows are encoded once, when they arrive; writing them changes nothing here until `committed`, so a failed
transaction is simply tried again. Only the writer thread calls this, except that anybody may read `problem`.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from glassbox.beam import BeamRow
from glassbox.events import PromptToken, Step
from glassbox.outcome import Outcome
from glassbox.policy.policy import LedgerRow
from glassbox.request import Provenance, Request
from glassbox.trace import encode, rows
from glassbox.trace.rows import Level, Retain, Row


@dataclass(frozen=True, slots=True)
class Begin:
    created_ms: int
    owner: str
    request: Request
    provenance: Provenance
    prompt: tuple[PromptToken, ...]


@dataclass(frozen=True, slots=True)
class End:
    outcome: Outcome | None
    finish_reason: str
    error: str | None = None
    failed: tuple[LedgerRow, ...] = ()  # the ledger of the step that failed


@dataclass(frozen=True, slots=True)
class Tried:
    """The candidates of one step of a beam search."""

    rows: tuple[BeamRow, ...]


Item = Begin | Step | End | Tried | tuple[PromptToken, ...]


@dataclass(slots=True)
class _Waiting:
    asked: Row | None = None
    segments: list[Row] = field(default_factory=list)
    prompt: dict[int, Row] = field(default_factory=dict)
    steps: list[Row] = field(default_factory=list)
    ledger: list[Row] = field(default_factory=list)
    candidates: list[Row] = field(default_factory=list)
    beams: list[Row] = field(default_factory=list)  # each with its digest
    digests: dict[int, bytes] = field(default_factory=dict)
    ledger_steps: str | None = None  # the list of policy steps, when it has grown
    ended: Row | None = None
    incomplete: bool = False

    def any(self) -> bool:
        return bool(self.asked or self.prompt or self.steps or self.beams or self.ended or self.incomplete)


_RUN = rows.insert("run", (*rows.ASKED, "digest"))
_SEGMENT = rows.insert("segment", rows.SEGMENT)
_STEP = rows.insert("position", (*rows.POSITION, "digest"))
_PROMPT = rows.insert("position", (*rows.POSITION, "digest"), "INSERT OR REPLACE")  # written again once measured
_LEDGER = rows.insert("ledger", rows.LEDGER)
_CANDIDATE = rows.insert("candidate", rows.CANDIDATE)
_BEAM = rows.insert("beam", (*rows.BEAM, "digest"))
_ENDED = f"UPDATE run SET {', '.join(f'{c} = ?' for c in (*rows.ENDED, 'seal'))} WHERE n = ?"


class Journal:
    def __init__(self, run_id: str, level: Level, retain: Retain) -> None:
        self.run_id, self.level, self.retain = run_id, level, retain
        self.problem: str | None = None  # why rows are missing in the store; None when none are
        self.gone = False  # the file that held what was committed is no longer there
        self._lost = False  # rows were given up, so later ones are not wanted either
        self._n: int | None = None  # key of the run in this store, once committed
        self._n_in_doubt: int | None = None
        self._header = b""
        self._request: Request | None = None
        self._policy_steps: rows.PolicySteps = []
        self._ledger_steps = "[]"  # the same as it is committed
        self._incomplete: str | None = None  # the mark of lost rows, as it is committed or is being written
        self._digests: dict[int, bytes] = {}  # of the positions that are committed
        self._beams: list[bytes] = []  # digests of the candidates of a beam search that are
        self._waiting = _Waiting()

    @property
    def kept(self) -> bool:
        """Whether the store holds the run, or will as far as anybody knows."""
        return not self.gone and (self._n is not None or self.problem is None)

    @property
    def has_work(self) -> bool:
        return self._waiting.any()

    @property
    def ends(self) -> bool:
        """Whether the end of the run is in what waits: there may be no other chance to write it."""
        return self._waiting.ended is not None

    def take(self, item: Item) -> None:
        """Encode one item. Raises whatever the values make the encoding raise; then nothing of it is kept."""
        w = self._waiting
        if isinstance(item, End):
            w.ended = encode.ended_row(item.outcome, item.finish_reason, item.error, self.retain, item.failed)
        elif self._lost:
            return
        elif isinstance(item, Step):
            self._take_step(item)
        elif isinstance(item, Tried):
            if self.retain != "none":
                made = [encode.beam_row(row, self.retain) for row in item.rows]
                w.beams += [(*row, rows.beam_digest(self._header, row)) for row in made]
        elif isinstance(item, Begin):
            request = item.request
            asked = encode.asked_row(
                self.run_id, item.created_ms, item.owner, self.level, self.retain, request, item.provenance
            )
            segments = encode.segment_rows(request.encoding, self.retain)
            self._header, self._request = rows.header_digest(asked, segments), request
            w.asked, w.segments = asked, segments
            measured = {token.position: token for token in item.prompt}
            if self.retain != "none":
                for position in range(len(request.encoding.ids)):
                    self._take_prompt(position, measured.get(position))
        elif self.retain != "none":
            for token in item:
                self._take_prompt(token.position, token)

    def _take_prompt(self, position: int, token: PromptToken | None) -> None:
        assert self._request is not None
        row = encode.prompt_row(self._request.encoding, position, token, self.retain)
        self._waiting.prompt[position] = row
        self._waiting.digests[position] = rows.position_digest(self._header, row, (), (), [])

    def _take_step(self, step: Step) -> None:
        assert self._request is not None
        w, look = self._waiting, self.level == "look" and self.retain != "none"
        known = len(self._policy_steps)
        row = encode.step_row(step, self._request, self.retain)
        ledger = encode.ledger_rows(step, self._policy_steps) if look else []
        candidates = encode.candidate_rows(step) if look else []
        w.digests[row[0]] = rows.position_digest(self._header, row, ledger, candidates, self._policy_steps)
        if len(self._policy_steps) > known:
            w.ledger_steps = encode.policy_steps_text(self._policy_steps)
        w.steps.append(row)
        w.ledger += ledger
        w.candidates += candidates

    def write(self, conn: sqlite3.Connection) -> None:
        """Execute what waits. Raises sqlite3.Error; the caller rolls back."""
        w, n = self._waiting, self._n
        self._n_in_doubt = n
        if n is None:
            if w.asked is None:
                return
            n = conn.execute(_RUN, (*w.asked, self._header)).lastrowid
            conn.executemany(_SEGMENT, [(n, *row) for row in w.segments])
        self._n_in_doubt = n
        conn.executemany(_PROMPT, [(n, *row, w.digests[row[0]]) for row in w.prompt.values()])
        conn.executemany(_STEP, [(n, *row, w.digests[row[0]]) for row in w.steps])
        conn.executemany(_LEDGER, [(n, *row) for row in w.ledger])
        conn.executemany(_CANDIDATE, [(n, *row) for row in w.candidates])
        conn.executemany(_BEAM, [(n, *row) for row in w.beams])
        if w.ledger_steps is not None:
            conn.execute("UPDATE run SET ledger_steps = ? WHERE n = ?", (w.ledger_steps, n))
        if w.incomplete:
            self._incomplete = self.problem
            conn.execute("UPDATE run SET incomplete = ? WHERE n = ?", (self.problem, n))
        if w.ended is not None:
            mark = rows.seal(
                self._header, {**self._digests, **w.digests}, w.ledger_steps or self._ledger_steps, w.ended,
                [*self._beams, *(row[-1] for row in w.beams)], self._incomplete,
            )  # fmt: skip
            conn.execute(_ENDED, (*w.ended, mark, n))

    def committed(self) -> None:
        self._n, self.gone = self._n_in_doubt, False
        self._digests.update(self._waiting.digests)
        self._beams += [row[-1] for row in self._waiting.beams]
        self._ledger_steps = self._waiting.ledger_steps or self._ledger_steps
        self._waiting = _Waiting()
        if not self._lost:
            self.problem = None

    def failed(self, why: str) -> None:
        """The transaction failed. While the run goes on, everything is kept for the next attempt."""
        if not self._lost:
            self.problem = f"incomplete: {why}"
        if self._waiting.ended is not None:
            self._drop_rows()

    def unusable(self, why: str) -> None:
        """An item cannot be encoded: what came before it stays, what comes after is not wanted."""
        self.problem, self._lost, self._waiting.incomplete = f"incomplete: {why}", True, True

    def lacks(self, problem: str) -> None:
        """What is missing of a run in memory, as the run says it: the mark is sealed with the rest."""
        self.problem, self._waiting.incomplete = problem, True

    def refused(self, why: str) -> None:
        """The store will never take these rows; other runs must not be held up by them."""
        self.problem = f"incomplete: {why}"
        self._drop_rows()

    def _drop_rows(self) -> None:
        self._lost = True
        ended, self._waiting = self._waiting.ended, _Waiting()
        if self._n is not None:  # else there is no row in `run` to carry the mark
            self._waiting.ended, self._waiting.incomplete = ended, True
