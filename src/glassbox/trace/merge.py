"""Runs of another file into a store: what is sound goes in, what is not is named, what is there already stays.

In: a file of our schema, from anybody. Out: the same rows in the store, bit for bit, and what became of each run.
Each run goes in by a transaction of its own, so that a long import does not hold up those who record; a run is in the
store whole or not at all. But: digests find damage, not a forger; what is read is bounded and has to decode.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glassbox.errors import StoreError
from glassbox.trace.alive import is_alive
from glassbox.trace.copy import put, same
from glassbox.trace.reader import Rows, fetch, run_of
from glassbox.trace.runid import ALPHABET
from glassbox.trace.sqlite import BROKEN, closed_on_error, connect, explain
from glassbox.trace.store import UNREADABLE, damage_of

LONGEST = 1 << 26  # bytes of one value
ID_LENGTH = 32  # characters, at most; ours have 14
PLAIN = "SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger') OR sql LIKE 'CREATE VIRTUAL%'"


@dataclass(frozen=True)
class Merged:
    """What became of the runs of a file, by id."""

    added: tuple[str, ...]
    same: tuple[str, ...]  # already there, equal in every value
    refused: tuple[tuple[str, str], ...]  # (id, why)


def merge(source: Path, into: Path) -> Merged:
    """Copy the runs of `source` into the store `into`, which is made where it is missing.

    Raises StoreError: the source is no store of ours or cannot be read, or the store cannot be written; what was
    added before stays.
    """
    if source.exists() and into.exists() and os.path.samefile(source, into):
        raise StoreError(str(source), "it cannot be imported into itself")
    _check_kind(source)
    theirs = _open_foreign(source)
    try:
        try:
            found = theirs.execute("SELECT n, id, parent FROM run ORDER BY n").fetchall()
        except BROKEN as exc:
            raise StoreError(str(source), explain(exc)) from exc
        ours = connect(into, readonly=False)
        ours.row_factory = sqlite3.Row
        try:
            return _all(theirs, source, ours, into, found)
        finally:
            ours.close()
    finally:
        theirs.close()


def _all(
    theirs: sqlite3.Connection, source: Path, ours: sqlite3.Connection, into: Path, found: list[sqlite3.Row]
) -> Merged:
    became: dict[str, list[str]] = {"added": [], "same": []}
    refused: list[tuple[str, str]] = []
    try:
        known = ours.execute("SELECT id, parent FROM run").fetchall()
        circular = _circular({str(r["id"]): r["parent"] for r in (*known, *found)})
        for row in found:
            name = row["id"] if isinstance(row["id"], str) else f"row {row['n']}"
            rows, why = _sound(theirs, source, row["n"])
            if rows is None:
                refused.append((name, why))
            elif name in circular:
                refused.append((name, "its parents go round in a circle"))
            elif (what := _put_one(ours, rows)) in became:
                became[what].append(name)
            else:
                refused.append((name, what))
    except BROKEN as exc:
        raise StoreError(str(into), explain(exc)) from exc
    return Merged(tuple(became["added"]), tuple(became["same"]), tuple(refused))


def _put_one(ours: sqlite3.Connection, rows: Rows) -> str:
    """ "added", "same", or why not. Raises sqlite3.Error where the store cannot be written."""
    query = "SELECT * FROM run WHERE id = ?"
    ours.execute("BEGIN IMMEDIATE")
    try:
        here = ours.execute(query, (rows.run["id"],)).fetchone()
        if here is not None:
            ours.execute("ROLLBACK")
            equal = same(rows, fetch(ours, here, tensors=True))
            return "same" if equal else "the store has another run of this id"
        put(ours, rows)
        kept = same(rows, fetch(ours, ours.execute(query, (rows.run["id"],)).fetchone(), tensors=True))
        ours.execute("COMMIT" if kept else "ROLLBACK")
        return "added" if kept else "a column holds values of a wrong type"
    except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError) as exc:  # the rows, not the disk
        ours.execute("ROLLBACK")
        return f"its rows do not fit: {exc}"
    except BaseException:
        if ours.in_transaction:
            ours.execute("ROLLBACK")
        raise


def _sound(conn: sqlite3.Connection, path: Path, n: int) -> tuple[Rows | None, str]:
    """The rows of a run that is as it was written and can be read, or why it is not taken."""
    try:
        rows = fetch(conn, conn.execute("SELECT * FROM run WHERE n = ?", (n,)).fetchone(), tensors=True)
    except (*BROKEN, TypeError) as exc:
        return None, explain(exc) if isinstance(exc, BROKEN) else "the file is damaged"
    name = rows.run["id"]
    if not isinstance(name, str) or not 0 < len(name) <= ID_LENGTH or set(name) - set(ALPHABET):
        return None, "its id is none that Glassbox gives"
    try:
        if damage := damage_of(rows):
            return None, f"damaged at {damage.where}: {damage.why}"
        run_of(rows, "interrupted").to_dict()
    except (*UNREADABLE, OSError, MemoryError) as exc:
        return None, f"it cannot be read: {type(exc).__name__}: {exc}"
    if rows.run["finish_reason"] is None and is_alive(rows.run["owner"], path):
        return None, "it is still running"
    return rows, ""


def _circular(parents: Mapping[str, object]) -> set[str]:
    """Those that descend from themselves, or from one that does."""
    fine: set[str] = set()
    circular: set[str] = set()
    for name in parents:
        way: list[str] = []
        seen: set[str] = set()
        at: object = name
        while isinstance(at, str) and at in parents and at not in fine and at not in circular and at not in seen:
            way.append(at)
            seen.add(at)
            at = parents[at]
        (circular if at in seen or at in circular else fine).update(way)
    return circular


def _check_kind(source: Path) -> None:
    try:
        if source.is_file():
            with source.open("rb") as file:
                if file.read(64).lstrip()[:1] in (b"{", b"["):
                    why = "a JSON export has no digests, so it cannot be imported; export the run with --to run"
                    raise StoreError(str(source), why)
    except OSError as exc:
        raise StoreError(str(source), f"cannot be opened: {exc.strerror}") from exc


def _open_foreign(source: Path) -> sqlite3.Connection:
    """For reading what anybody may have made: nothing in it is executed, and no value is larger than LONGEST."""
    conn = connect(source, readonly=True)
    with closed_on_error(conn, source):
        conn.row_factory = sqlite3.Row
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        conn.execute("PRAGMA trusted_schema=OFF")
        conn.execute("PRAGMA cell_size_check=ON")
        if odd := conn.execute(PLAIN).fetchone():
            raise StoreError(str(source), f"it was not made by Glassbox: {odd['name']!r} is no table of rows")
        for table in ("run", "segment", "position", "ledger", "candidate", "beam", "tensor"):
            if any(row["hidden"] for row in conn.execute(f"PRAGMA table_xinfo({table})")):
                raise StoreError(str(source), f"it was not made by Glassbox: {table!r} has computed columns")
    return conn
