"""The thread that writes: it commits what recorders queue, in batches, many runs in one transaction.

A generation must never wait for a disk nor fail with it. So callers only append to a queue; everything that
can go wrong goes wrong here, and ends as a sentence in `Journal.problem`.
"""

from __future__ import annotations

import atexit
import math
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from glassbox.errors import StoreError
from glassbox.trace import sqlite
from glassbox.trace.journal import Begin, End, Item, Journal
from glassbox.trace.sqlite import BROKEN, begin_writing, explain, is_busy

PAUSE_S = 0.05  # rows wait this long for company, so each is committed within 100 ms
RETRY_S = 1.0
FLUSH_S = 10.0
FORKED = "the process was forked while the store was open"

_Entry = tuple[Journal, Item] | threading.Event | None  # an Event asks for a flush, None for the end


class Writer:
    """One per store. `connect` is called in the writer's own thread."""

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path, self._connect = path, connect
        self._queue: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._conn: sqlite3.Connection | None = None
        self._file: os.stat_result | None = None  # as it was when last seen
        self._schema = 0
        self._in_vain = -math.inf  # when another process was last waited for and went on holding the store
        self._pid = os.getpid()
        self._work: dict[Journal, None] = {}  # those with rows that wait, in order of arrival
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="glassbox-trace-writer", daemon=True)
        self._thread.start()
        # A daemon thread is frozen when the interpreter goes; what waits must be written before that.
        atexit.register(self.close)

    def put(self, journal: Journal, item: Item) -> None:
        """Queue one item. Never blocks and never raises; costs about a microsecond."""
        if self._closed:
            journal.problem = "incomplete: the store was closed while the run went on"
            return
        if self.forked:
            journal.problem = f"incomplete: {FORKED}"
            return
        self._queue.put((journal, item))
        if isinstance(item, Begin | End):
            self._hurry.set()

    def flush(self, timeout: float = FLUSH_S) -> bool:
        """Wait until all that was queued so far has been tried. False if `timeout` seconds do not suffice."""
        if self._closed:
            return True
        if self.forked or not self._thread.is_alive():
            return False
        done = threading.Event()
        self._queue.put(done)
        self._hurry.set()
        return done.wait(timeout)

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made the writer: no thread is here, and locks may be held."""
        return os.getpid() != self._pid

    def close(self) -> None:
        if self._closed or self.forked:
            return
        self._closed = True
        self._queue.put(None)
        self._hurry.set()
        self._thread.join(FLUSH_S)
        atexit.unregister(self.close)

    # --- in the thread ---

    def _run(self) -> None:
        more = True
        while more:
            try:
                entries: list[_Entry] = [self._queue.get(timeout=RETRY_S if self._work else None)]
                self._hurry.wait(PAUSE_S)
                self._hurry.clear()
            except queue.Empty:
                entries = []
            while not self._queue.empty():
                entries.append(self._queue.get())
            waiters = [entry for entry in entries if isinstance(entry, threading.Event)]
            for entry in entries:
                if isinstance(entry, tuple):
                    self._take(*entry)
            self._commit(waited_for=bool(waiters))
            for waiter in waiters:
                waiter.set()
            more = None not in entries
        if self._conn is not None:
            self._conn.close()

    def _take(self, journal: Journal, item: Item) -> None:
        try:
            journal.take(item)
        except Exception as exc:  # whatever is wrong with a value, this thread and the other runs go on
            journal.unusable(f"{type(exc).__name__}: {exc}")
        if journal.has_work:
            self._work[journal] = None

    def _commit(self, *, waited_for: bool) -> None:
        batch = list(self._work)
        if not batch:
            return
        # Rows of a run that goes on are tried again anyhow. And runs that end one after another, each of which waits
        # for its rows, must not add up what one locked store takes.
        pressing = waited_for or any(journal.ends for journal in batch)
        patient = pressing and time.monotonic() - self._in_vain > sqlite.BUSY_S
        try:
            conn = self._connection()
            begin_writing(conn, patient=patient)
            for journal in batch:
                self._write_one(conn, journal)
            conn.execute("COMMIT")
        except Exception as exc:
            if self._conn is not None and self._conn.in_transaction:
                self._conn.rollback()
            if patient and is_busy(exc):
                self._in_vain = time.monotonic()
            for journal in batch:
                journal.gone = isinstance(exc, _Gone)
                journal.failed(exc.why if isinstance(exc, _Gone) else explain(exc))
        else:
            for journal in batch:
                journal.committed()
        self._work = {journal: None for journal in batch if journal.has_work}

    def _write_one(self, conn: sqlite3.Connection, journal: Journal) -> None:
        conn.execute("SAVEPOINT one_run")
        try:
            journal.write(conn)
        except sqlite3.OperationalError:  # the disk, not the rows: all runs of the batch try again later
            raise
        except Exception as exc:
            conn.execute("ROLLBACK TO one_run")
            journal.refused(f"{type(exc).__name__}: {exc}")
            journal.write(conn)  # now only the mark
        conn.execute("RELEASE one_run")

    def _connection(self) -> sqlite3.Connection:
        if self._conn is None:
            conn = self._connect()
            try:
                self._schema = conn.execute("PRAGMA schema_version").fetchone()[0]
                self._file = os.stat(self._path)
            except BaseException:
                conn.close()
                raise
            self._conn = conn  # last: one of which nothing is known would never be tried again
        self._check_file()
        return self._conn

    def _check_file(self) -> None:
        """SQLite would go on writing into a file that has lost its name or its contents. Raises _Gone."""
        known = self._file
        assert known is not None
        try:
            found = os.stat(self._path)
        except OSError as exc:
            raise _Gone("the store was removed") from exc
        if (found.st_dev, found.st_ino) != (known.st_dev, known.st_ino):
            raise _Gone("the store was replaced by another file")
        if found.st_size < known.st_size and not self._was_purged():  # nothing else makes it smaller
            raise _Gone("the store was truncated")
        self._file = found

    def _was_purged(self) -> bool:
        """Whether the file was built anew since this was last asked: SQLite's VACUUM raises the schema's number."""
        assert self._conn is not None
        before = self._schema
        try:
            self._schema = self._conn.execute("PRAGMA schema_version").fetchone()[0]
        except BROKEN:
            return False
        return self._schema != before


class _Gone(StoreError):
    def __init__(self, why: str) -> None:
        super().__init__("", why)
        self.why = why
