"""From the rows of one run back to a `Run`, and whether the rows are still what was written.

In: a connection and a row of `run`. Out: a `Run`, or the first damage found.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from glassbox.outcome import Usage
from glassbox.trace import decode
from glassbox.trace import rows as layout
from glassbox.trace.run import Run
from glassbox.trace.sqlite import columns, has_table

# Of values, by the type of their column.
TYPES: dict[str, tuple[type, ...]] = {"INTEGER": (int,), "REAL": (float, int), "TEXT": (str,), "BLOB": (bytes,)}
# Columns that the schema lets be NULL, but not in such a row.
PROMPT = ("id", "segment", "kind", "span_lo", "span_hi")
STEP = (
    "id", "logprob_raw", "logprob_final", "rank_raw", "ties", "entropy", "cdf_lo", "cdf_hi", "logits_hash", "model_ns",
    "policy_ns",
)  # fmt: skip
TIMES = ("model_ns", "policy_ns")  # of a token whose content was not kept
LEDGER = (
    "alive_before", "alive_after", "mass_removed", "removed_count", "removed_ids", "entropy", "top", "argmax_changed",
)  # fmt: skip
CANDIDATE = ("logit", "p_raw", "p_final")
ENDED = ("cached_tokens", "completion_tokens", "queue_ns", "total_ns")


@dataclass(frozen=True)
class Damage:
    """The first place where a run is not as it was written."""

    run_id: str
    where: str  # "the request", "step 3 (position 17)", "the ending"
    why: str

    def __str__(self) -> str:
        return f"run {self.run_id} is damaged at {self.where}: {self.why}"


@dataclass(frozen=True)
class Rows:
    run: sqlite3.Row
    segments: Sequence[sqlite3.Row]
    positions: Sequence[sqlite3.Row]
    ledger: dict[int, list[sqlite3.Row]]
    candidates: dict[int, list[sqlite3.Row]]
    beams: Sequence[sqlite3.Row]
    tensors: Sequence[sqlite3.Row] = ()  # only where they were asked for: they may be large


def fetch(conn: sqlite3.Connection, run: sqlite3.Row, *, tensors: bool = False) -> Rows:
    """All rows of the run. Raises sqlite3.Error where the file itself is damaged."""

    def rows(table: str, columns: Sequence[str], order: str) -> list[sqlite3.Row]:
        query = f"SELECT {', '.join(columns)} FROM {table} WHERE run = ? ORDER BY {order}"
        return conn.execute(query, (run["n"],)).fetchall()

    def by_position(table: str, columns: Sequence[str]) -> dict[int, list[sqlite3.Row]]:
        groups: dict[int, list[sqlite3.Row]] = defaultdict(list)
        for row in rows(table, columns, "pos, i"):
            groups[row["pos"]].append(row)
        return groups

    return Rows(
        run,
        rows("segment", layout.SEGMENT, "i"),
        rows("position", (*layout.POSITION, "digest"), "pos"),
        by_position("ledger", layout.LEDGER),
        by_position("candidate", layout.CANDIDATE),
        rows("beam", (*layout.BEAM, "digest"), "step, i") if has_table(conn, "beam") else [],
        rows("tensor", layout.TENSOR, "pos, point") if tensors else (),
    )


def damage(rows: Rows) -> Damage | None:
    """The first row that does not match its digest, or that is missing; None when all is as written."""
    run = rows.run
    asked = tuple(run[c] for c in layout.ASKED)
    header = layout.header_digest(asked, [tuple(s) for s in rows.segments])
    if header != run["digest"]:
        return Damage(run["id"], "the request", "it does not match its digest")
    steps = decode.policy_steps_of(run["ledger_steps"])
    prompt_tokens = run["prompt_tokens"]
    expected = prompt_tokens if run["retain"] == "none" else 0
    digests: dict[int, bytes] = {}
    for row in rows.positions:
        pos = row["pos"]
        if pos != expected:
            return Damage(run["id"], _place(expected, prompt_tokens), "it is missing")
        ledger = [tuple(r) for r in rows.ledger.get(pos, ())]
        candidates = [tuple(r) for r in rows.candidates.get(pos, ())]
        try:
            found = layout.position_digest(header, tuple(row)[:-1], ledger, candidates, steps)
        except (IndexError, TypeError):  # a ledger row points outside the list of policy steps
            found = b""
        if found != row["digest"]:
            return Damage(run["id"], _place(pos, prompt_tokens), "it does not match its digest")
        digests[pos] = found
        expected += 1
    if run["retain"] != "none" and expected < prompt_tokens:  # these were committed together with the run
        return Damage(run["id"], _place(expected, prompt_tokens), "it is missing")
    if stray := sorted((rows.ledger.keys() | rows.candidates.keys()) - digests.keys()):
        return Damage(
            run["id"],
            _place(stray[0], prompt_tokens),
            "it is missing, but its ledger or candidates are there",
        )
    for row in rows.beams:
        if layout.beam_digest(header, tuple(row)[:-1]) != row["digest"]:
            return Damage(run["id"], f"step {row['step']}, candidate {row['i']} of the beams", "it does not match")
    ended, beams = tuple(run[c] for c in layout.ENDED), [row["digest"] for row in rows.beams]
    if run["finish_reason"] is None:
        if (*ended, run["seal"]).count(None) <= len(ended):
            return Damage(run["id"], "the ending", "there is one, but nothing says how it ended")
        return None
    if layout.seal(header, digests, run["ledger_steps"], ended, beams, run["incomplete"]) != run["seal"]:
        return Damage(run["id"], "the ending", "rows are missing at the end, or the ending was changed")
    return None


def _place(position: int, prompt_tokens: int) -> str:
    if position < prompt_tokens:
        return f"prompt position {position}"
    return f"step {position - prompt_tokens} (position {position})"


def check_types(table: str, rows: Iterable[sqlite3.Row], needed: Sequence[str] = ()) -> None:
    """Raises TypeError for a value that is not of its column's type: SQLite keeps whatever it is given. needed: the
    columns in which there must be one."""
    declared = {column: TYPES[kind] for name, column, kind, _ in columns() if name == table}
    for row in rows:
        for column, value in zip(row.keys(), row, strict=True):
            if value is None and column in needed:
                raise TypeError(f"{table}.{column} holds nothing")
            if value is not None and not isinstance(value, declared.get(column, (object,))):
                raise TypeError(f"{table}.{column} holds {type(value).__name__}")


def run_of(rows: Rows, unfinished: str) -> Run:
    """The run. `unfinished` is its status if it has no ending: running or interrupted.

    Raises many things where rows are damaged and `damage` was not asked first.
    """
    run, kept = rows.run, rows.run["retain"] != "none"
    prompt = [r for r in rows.positions if r["step"] is None]
    made = [r for r in rows.positions if r["step"] is not None]
    check_types("run", [run], ENDED if run["stop_kind"] is not None else ())
    check_types("segment", rows.segments)
    check_types("position", prompt, PROMPT if kept else ())
    check_types("position", made, STEP if kept else TIMES)
    check_types("ledger", chain(*rows.ledger.values()), LEDGER)
    check_types("candidate", chain(*rows.candidates.values()), CANDIDATE)
    check_types("beam", rows.beams)
    steps = decode.policy_steps_of(run["ledger_steps"])
    request = decode.request_of(run, rows.segments, prompt)
    outcome = decode.outcome_of(run, request.dropped)
    measured = [decode.prompt_token_of(r) for r in prompt if r["kv"] is not None]
    cached = sum(token.kv == "reused" for token in measured)
    return Run.from_parts(
        run["id"],
        request,
        decode.provenance_of(run),
        measured,
        [
            decode.step_of(r, rows.ledger.get(r["pos"], ()), rows.candidates.get(r["pos"], ()), steps, request)
            for r in made
            if r["id"] is not None
        ],
        outcome,
        created_ms=run["created"],
        status="done" if outcome else run["finish_reason"] or unfinished,
        usage=outcome.usage if outcome else Usage(run["prompt_tokens"], cached, len(made), request.dropped),
        error=run["error"],
        failed=decode.failed_of(run),
        level=run["level"],
        retain=run["retain"],
        token_ns=tuple((r["model_ns"], r["policy_ns"]) for r in made),
        problem=run["incomplete"],
        tried=tuple(decode.beam_row_of(r) for r in rows.beams),
        owner=run["owner"],
    )
