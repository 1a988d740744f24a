"""Forget runs for good: afterwards no byte of them is in the store's files, and their space is given back.

In: a store and which runs. Out: what went. Pages are overwritten before they are freed (secure_delete), the file is
built anew without them (VACUUM), and the write-ahead log, which holds older pages, is cut to nothing. Each of these is
a transaction or harmless to repeat, so a purge that is cut off leaves a sound store, and the next one ends the work.
But: a run that is being written stays; and what a disk keeps of blocks that the file system freed is out of reach.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glassbox.errors import StoreError
from glassbox.trace.alive import is_alive
from glassbox.trace.sqlite import BROKEN, connect, explain

PATIENCE_S = 10.0  # for others to let go of the write-ahead log


@dataclass(frozen=True)
class Purged:
    """What went, by id, and what it gave back."""

    gone: tuple[str, ...]
    running: tuple[str, ...]  # were meant too, but are still being written
    freed: int  # bytes of the store's files


def purge(path: Path, *, before_ms: int | None = None, ids: Sequence[str] = (), dry_run: bool = False) -> Purged:
    """Remove the runs made before a time (milliseconds since 1970), and those with these ids; dry_run: only say which.

    Raises StoreError; where it says that bytes are left behind, another purge removes them.
    """
    if not path.exists():
        raise StoreError(str(path), "there is no such file")
    conn = connect(path, readonly=dry_run)
    try:
        if dry_run:
            chosen, running = _chosen(conn, path, before_ms, ids)
            return Purged(tuple(chosen.values()), running, 0)
        size = _size(path)
        conn.execute("PRAGMA secure_delete=ON")
        # Chosen under the lock: keys are given again, and what stands under one may by then be another run.
        conn.execute("BEGIN IMMEDIATE")
        try:
            chosen, running = _chosen(conn, path, before_ms, ids)
            _delete(conn, list(chosen))
            conn.execute("COMMIT")
        except BaseException:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
            raise
        _sweep(conn, path)
        return Purged(tuple(chosen.values()), running, max(0, size - _size(path)))
    except BROKEN as exc:
        raise StoreError(str(path), explain(exc)) from exc
    finally:
        conn.close()


def _chosen(
    conn: sqlite3.Connection, path: Path, before_ms: int | None, ids: Sequence[str]
) -> tuple[dict[int, str], tuple[str, ...]]:
    """Keys and ids of those that go, and ids of those that would, did they not run."""
    gone: dict[int, str] = {}
    running: list[str] = []
    for n, name, created, ended, owner in conn.execute("SELECT n, id, created, finish_reason, owner FROM run"):
        if name in ids or (before_ms is not None and created < before_ms):
            if ended is None and is_alive(str(owner), path):
                running.append(name)
            else:
                gone[n] = name
    return gone, tuple(running)


def _delete(conn: sqlite3.Connection, keys: Sequence[int]) -> None:
    """All rows of these runs. Tables that a newer Glassbox added are found by their column."""
    tables = [name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        if "run" in {row[1] for row in conn.execute(f'PRAGMA table_info("{table}")')}:
            conn.executemany(f'DELETE FROM "{table}" WHERE run = ?', [(n,) for n in keys])
    conn.executemany("DELETE FROM run WHERE n = ?", [(n,) for n in keys])


def _sweep(conn: sqlite3.Connection, path: Path) -> None:
    """Build the file anew, bring all of it into the file, and cut the log to nothing, once nobody reads from it."""
    deadline = time.monotonic() + PATIENCE_S
    for statement in ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
        while _is_busy(conn, statement):
            if time.monotonic() > deadline:
                why = "the runs are gone, but bytes of them stay in its files while another process reads: purge again"
                raise StoreError(str(path), why)
            time.sleep(0.05)


def _is_busy(conn: sqlite3.Connection, statement: str) -> bool:
    try:
        row = conn.execute(statement).fetchone()  # a checkpoint that had to give up says so in its first column
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return True
    return row is not None and bool(row[0])


def _size(path: Path) -> int:
    files = (path, path.with_name(path.name + "-wal"))
    return sum(f.stat().st_size for f in files if f.exists())
