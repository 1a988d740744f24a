"""A trace store: one SQLite file that holds runs, and the ways to find and read them.

In: a path. Out: a `Store`. Writing is a recorder's business (record.py), through the store's writer
(writer.py).
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

from glassbox.errors import GlassboxError, ParameterError, RunNotFound, StoreError
from glassbox.trace.alive import is_alive
from glassbox.trace.reader import Damage, Rows, check_types, damage, fetch, run_of
from glassbox.trace.run import Run
from glassbox.trace.runid import ALPHABET
from glassbox.trace.sqlite import BROKEN, connect, explain
from glassbox.trace.writer import Writer

LAST = "last"
NOWHERE = "a place that cannot be told"
# What the decoding of damaged values may raise.
UNREADABLE = (
    GlassboxError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
)


class AmbiguousRun(RunNotFound):
    """A prefix that several runs share. Attributes: run_id, matches."""

    def __init__(self, run_id: str, path: str, matches: list[str]) -> None:
        super().__init__(run_id, path)
        self.matches = tuple(matches)
        shown = ", ".join(matches[:8]) + (", …" if len(matches) > 8 else "")
        self.args = (f"{run_id!r} stands for more than one run in {path}: {shown}",)


@dataclass(frozen=True)
class RunSummary:
    """One line of `glassbox runs`."""

    id: str
    created: datetime
    model: str
    finish_reason: str  # or "running", "interrupted"
    prompt: str  # what the user said last, or the prompt's beginning; "" when it was not kept
    prompt_tokens: int
    tokens: int  # generated
    problem: str | None  # why the store holds less than happened
    parent: str | None = None  # the run it branches from, and at which step
    parent_step: int | None = None
    group: str | None = None  # what it has in common with others that were asked for together
    sequence: int = 0  # which of them it is
    beams: int | None = None  # of a beam search, how many


def default_path() -> Path:
    return platformdirs.user_data_path("glassbox") / "runs.db"


def open_store(path: str | Path | None = None, *, readonly: bool = False) -> Store:
    """The store at `path` (default: in the user's data folder), made for this user alone unless `readonly`.

    Raises StoreError: a folder, not SQLite, not ours, unknown version, not writable, damaged, or not there.
    Raises ParameterError for what is no path.
    """
    return Store(_a_path(path) if path is not None else default_path(), readonly=readonly)


def _a_path(path: object) -> Path:
    """A path that the file system can be asked for: text it can encode, without a null byte."""
    named = os.fspath(path) if isinstance(path, os.PathLike) else path
    try:
        if isinstance(named, str) and named and b"\0" not in os.fsencode(named):
            return Path(named)
    except UnicodeEncodeError:  # half of a surrogate pair
        pass
    raise ParameterError("path", path, "the path of a file")


class Store:
    """An open store. Usable from several threads; close it, or use it as a context manager."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path, self.readonly = path, readonly
        self._lock = threading.RLock()
        self._conn = connect(path, readonly=readonly)
        self._conn.row_factory = sqlite3.Row
        self._writer: Writer | None = None
        self._closed, self._pid = False, os.getpid()

    @property
    def writer(self) -> Writer:
        """The thread that writes, started on first use. Raises StoreError for a store opened read-only, or closed."""
        self._check_open()
        with self._lock:
            if self.readonly:
                raise StoreError(str(self.path), "cannot be written: it was opened read-only")
            if self._writer is None:
                self._writer = Writer(self.path, lambda: connect(self.path, readonly=False))
            return self._writer

    def runs(self, limit: int | None = 20) -> list[RunSummary]:
        """The newest runs, newest first. Raises StoreError where the file is damaged."""
        query = """SELECT id, created, model, owner, finish_reason, messages, prompt_text, prompt_tokens,
            incomplete, options, sequence, parent, parent_step, coalesce(
                completion_tokens, (SELECT count(*) FROM position WHERE run = n AND step IS NOT NULL)
            ) AS made
            FROM run ORDER BY n DESC LIMIT ?"""
        with self._reading() as conn:
            rows = conn.execute(query, (-1 if limit is None else limit,)).fetchall()
        return [self._summary(row) for row in rows]

    def branches(self, run_id: str) -> list[tuple[str, int | None]]:
        """(id, step) of the runs that branch from this one, in the order they were made. Raises StoreError."""
        query = "SELECT id, parent_step FROM run WHERE parent = ? ORDER BY n"
        with self._reading() as conn:
            return [(row["id"], row["parent_step"]) for row in conn.execute(query, (run_id,))]

    def load(self, run_id: str = LAST, *, verify: bool = True) -> Run:
        """The run of this id, of this unique beginning of an id, or the "last" one.

        Raises RunNotFound (AmbiguousRun where several begin so), and StoreError where the run is damaged;
        `verify=False` shows a damaged run as far as it can be read.
        """
        rows = self.rows(run_id)
        found = damage_of(rows) if verify else None
        if found is None:
            try:
                run = run_of(rows, self._unfinished(rows.run["owner"]))
                if not verify:  # what cannot be told of a damaged run is found here, not by whoever works on it
                    run.to_dict()
                return run
            except UNREADABLE as exc:
                found = Damage(rows.run["id"], NOWHERE, f"{type(exc).__name__}: {exc}")
        raise StoreError(str(self.path), str(found))

    def verify(self, run_id: str = LAST) -> Damage | None:
        """The first row of the run that is not as it was written, or None. Raises RunNotFound, StoreError."""
        return damage_of(self.rows(run_id))

    def rows(self, run_id: str = LAST, *, tensors: bool = False) -> Rows:
        """The run as it lies there, verified by nobody. Raises RunNotFound, StoreError."""
        with self._reading() as conn:
            return fetch(conn, self._find(conn, run_id), tensors=tensors)

    def flush(self) -> bool:
        """Wait until all that was recorded so far has been written, or has failed to be."""
        return self._writer is None or self._writer.flush()

    def close(self) -> None:
        if self._pid != os.getpid():  # SQLite's connections must not even be closed in a child, and locks may be held
            return
        with self._lock:
            self._closed = True
            if self._writer is not None:
                self._writer.close()
            self._conn.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.path}{' (read-only)' if self.readonly else ''}>"

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise StoreError(str(self.path), "was opened before this process was forked: open it here again")
        if self._closed:
            raise StoreError(str(self.path), "is closed")

    def _find(self, conn: sqlite3.Connection, name: str) -> sqlite3.Row:
        path = str(self.path)
        if name == LAST:
            row = conn.execute("SELECT * FROM run ORDER BY n DESC LIMIT 1").fetchone()
            if row is None:
                raise RunNotFound(name, path)
            return row  # type: ignore[no-any-return]
        prefix = name.lower()
        if not prefix or set(prefix) - set(ALPHABET):
            raise RunNotFound(name, path)
        query = "SELECT * FROM run WHERE id >= ? AND id < ? ORDER BY id"  # "~" sorts behind every letter of an id
        rows = conn.execute(query, (prefix, prefix + "~")).fetchall()
        if not rows:
            raise RunNotFound(name, path)
        if len(rows) > 1:
            raise AmbiguousRun(name, path, [r["id"] for r in rows])
        return rows[0]  # type: ignore[no-any-return]

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the file, with everything in it that was recorded before."""
        self._check_open()
        self.flush()
        with self._lock:
            try:
                self._conn.execute("BEGIN")
                try:
                    yield self._conn
                finally:
                    self._conn.execute("ROLLBACK")
            except BROKEN as exc:
                raise StoreError(str(self.path), explain(exc)) from exc

    def _summary(self, r: sqlite3.Row) -> RunSummary:
        try:
            check_types("run", [r])
            options = json.loads(r["options"])
            return RunSummary(
                id=r["id"],
                created=datetime.fromtimestamp(r["created"] / 1000, UTC),
                model=r["model"],
                finish_reason=r["finish_reason"] or self._unfinished(r["owner"]),
                prompt=_preview(r["messages"], r["prompt_text"]),
                prompt_tokens=r["prompt_tokens"],
                tokens=int(r["made"]),
                problem=r["incomplete"],
                parent=r["parent"],
                parent_step=r["parent_step"],
                group=options.get("group"),
                sequence=int(r["sequence"]),
                beams=options["beam"]["width"] if "beam" in options else None,
            )
        except (*UNREADABLE, OSError):  # one damaged run must not hide the others
            return RunSummary(str(r["id"]), datetime.fromtimestamp(0, UTC), "", "damaged", "", 0, 0, "damaged")

    def _unfinished(self, who: str) -> str:
        return "running" if is_alive(who, self.path) else "interrupted"


def damage_of(rows: Rows) -> Damage | None:
    """The first row that is not as it was written, whatever values the rows may have."""
    try:
        return damage(rows)
    except UNREADABLE as exc:
        return Damage(str(rows.run["id"]), NOWHERE, f"{type(exc).__name__}: {exc}")


def _preview(messages: str | None, prompt_text: str | None) -> str:
    said: Any = None
    if messages is not None:
        try:
            said = [m["content"] for m in json.loads(messages) if m.get("role") == "user"][-1]
        except (ValueError, LookupError, TypeError, AttributeError):
            said = None
    return " ".join((said if isinstance(said, str) else prompt_text or "").split())[:200]
