"""One run from store to store, row by row and bit for bit.

In: the rows of a run, as reader.py fetches them. Out: the same rows under another store's key. Which columns there are
rows.py says; digests go along as they are, since they bind the values and not the place.
But: it verifies nothing; merge.py and the readers do.
"""

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Iterator
from itertools import chain

from glassbox.trace import rows as layout
from glassbox.trace.journal import Begin, End, Journal, Tried
from glassbox.trace.reader import Rows, fetch
from glassbox.trace.rows import Row
from glassbox.trace.run import Run
from glassbox.trace.sqlite import in_memory

COLUMNS = {  # of each table, but for the key of the run
    "run": (*layout.ASKED, "digest", "ledger_steps", "incomplete", *layout.ENDED, "seal"),
    "segment": layout.SEGMENT,
    "position": (*layout.POSITION, "digest"),
    "ledger": layout.LEDGER,
    "candidate": layout.CANDIDATE,
    "beam": (*layout.BEAM, "digest"),
    "tensor": layout.TENSOR,
}


def tables(rows: Rows) -> Iterator[tuple[str, list[Row]]]:
    """Each table with the run's rows in it, in the order of COLUMNS."""
    yield "run", [tuple(rows.run[c] for c in COLUMNS["run"])]
    yield "segment", [tuple(r) for r in rows.segments]
    yield "position", [tuple(r) for r in rows.positions]
    yield "ledger", [tuple(r) for r in chain.from_iterable(rows.ledger.values())]
    yield "candidate", [tuple(r) for r in chain.from_iterable(rows.candidates.values())]
    yield "beam", [tuple(r) for r in rows.beams]
    yield "tensor", [tuple(r) for r in rows.tensors]


def put(conn: sqlite3.Connection, rows: Rows) -> int:
    """Insert the run; returns its key there. Raises sqlite3.Error; the transaction is the caller's."""
    key = 0
    for table, found in tables(rows):
        statement = layout.insert(table, COLUMNS[table])
        if table == "run":
            key = conn.execute(statement, found[0]).lastrowid or 0
        else:
            conn.executemany(statement, [(key, *row) for row in found])
    return key


def same(a: Rows, b: Rows) -> bool:
    """Whether all values are, and of the same types: 1 is not 1.0, and 0.0 not -0.0."""
    return marshal.dumps(list(tables(a)), 2) == marshal.dumps(list(tables(b)), 2)


def rows_of(run: Run) -> Rows:
    """The rows that a store would have of a run in memory, as the journal makes them."""
    journal, request = Journal(run.run_id, run.level, run.retain), run.request
    journal.take(Begin(run.created_ms, run.owner, request, run.provenance, run.prompt))
    for step in run.steps:
        journal.take(step)
    if run.tried:
        journal.take(Tried(run.tried))
    if run.status != "running":
        journal.take(End(run.outcome, run.finish_reason, run.error, run.failed))
    if run.problem is not None:
        journal.lacks(run.problem)
    conn = in_memory()
    journal.write(conn)
    return fetch(conn, conn.execute("SELECT * FROM run").fetchone())
