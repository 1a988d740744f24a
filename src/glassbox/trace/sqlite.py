"""Open a SQLite file as a trace store, or say in one sentence why that cannot be.

In: a path. Out: a connection to a file that is ours, of a version we know. It knows nothing of runs.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path

from glassbox.errors import StoreError

APPLICATION_ID = 0x474C4258  # "GLBX"
VERSION = 1
BUSY_S = 5.0  # how long another process that holds the store is waited for
MOMENT_S = 0.1  # the same where it can be tried again, or need not be known
SMALLEST = 512  # bytes, of a SQLite database
# The second: SQLite quotes a damaged schema in its error message, and Python fails to decode that message.
BROKEN = (sqlite3.Error, UnicodeDecodeError)

_opening = threading.Lock()
_WORDS = {
    sqlite3.SQLITE_NOTADB: "this is not a SQLite database",
    sqlite3.SQLITE_CORRUPT: "the file is damaged",
    sqlite3.SQLITE_FULL: "cannot be written: the disk is full",
    sqlite3.SQLITE_READONLY: "cannot be written: it is read-only",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: no permission, or its folder is read-only or gone",
    sqlite3.SQLITE_BUSY: "another process holds it locked",
    sqlite3.SQLITE_LOCKED: "another process holds it locked",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_PERM: "cannot be opened: permission denied",
    sqlite3.SQLITE_AUTH: "cannot be opened: permission denied",
}


def explain(exc: Exception) -> str:
    """What went wrong, in words that fit behind the name of the store."""
    if isinstance(exc, UnicodeDecodeError):
        return _WORDS[sqlite3.SQLITE_CORRUPT]
    code = getattr(exc, "sqlite_errorcode", None)
    if code is not None and (code & 0xFF) in _WORDS:
        return _WORDS[code & 0xFF]
    return f"failed: {exc}"


def connect(path: Path, *, readonly: bool) -> sqlite3.Connection:
    """A connection to the store at `path`; one that is wanted for writing is created where it is missing.

    Raises StoreError: a folder or device, not SQLite, not ours, of an unknown version, not writable, damaged.
    """
    try:
        with _opening:
            _make_private_file(path, readonly)
            conn = _open(path, readonly)
    except (OSError, *BROKEN) as exc:
        why = f"cannot be opened: {exc.strerror}" if isinstance(exc, OSError) else explain(exc)
        raise StoreError(str(path), why) from exc
    with closed_on_error(conn, path):
        if not readonly:
            _prepare_for_writing(conn)
        _check_ours(conn, path)
    return conn


@contextmanager
def closed_on_error(conn: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Whatever is raised inside closes the connection; what SQLite raises is a StoreError in our words."""
    try:
        yield
    except BROKEN as exc:
        conn.close()
        raise StoreError(str(path), explain(exc)) from exc
    except BaseException:
        conn.close()
        raise


def _make_private_file(path: Path, readonly: bool) -> None:
    # A file that exists is never opened here: closing it would drop every lock that this process's other
    # connections hold on it, and another process would then take their -wal away.
    try:
        info = path.stat()
    except FileNotFoundError:
        if readonly:
            raise StoreError(str(path), "there is no such file") from None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite gives its -wal and -shm files the mode of the file itself, so 0600 here covers all three.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        return
    if stat.S_ISDIR(info.st_mode):
        raise StoreError(str(path), "this is a folder, but a store is a file")
    if not stat.S_ISREG(info.st_mode):  # opening a pipe would wait for ever
        raise StoreError(str(path), "this is not a regular file")
    if 0 < info.st_size < SMALLEST:  # SQLite takes it for an empty database, and would overwrite it
        raise StoreError(str(path), _WORDS[sqlite3.SQLITE_NOTADB])


def _open(path: Path, readonly: bool) -> sqlite3.Connection:
    def dial(query: str) -> sqlite3.Connection:
        # Callers serialise their calls (Store holds a lock), so the connection may cross threads.
        conn = sqlite3.connect(
            f"{path.absolute().as_uri()}?{query}",
            uri=True,
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        # Damaged text must reach the digest check, not stop the reading.
        conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            conn.execute("PRAGMA schema_version").fetchone()  # the first read is what really opens the file
        except BROKEN:
            conn.close()
            raise
        return conn

    if not readonly:
        return dial("mode=rw")
    try:
        return dial("mode=ro")
    except sqlite3.OperationalError:
        # On read-only media SQLite cannot make the -shm file that a WAL store needs. Without a -wal file
        # nothing can be pending and nobody can be writing, so the file may be read as it lies.
        if path.with_name(path.name + "-wal").exists():
            raise
        return dial("mode=ro&immutable=1")


def _schema() -> str:
    return resources.files("glassbox.trace").joinpath("schema.sql").read_text(encoding="utf-8")


@cache
def columns() -> list[tuple[str, str, str, str | None]]:
    """(table, column, type, default) of everything in the schema."""
    with closing(sqlite3.connect(":memory:")) as new:
        new.executescript(_schema())
        tables = [name for (name,) in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [(t, c[1], c[2], c[4]) for t in tables for c in new.execute(f"PRAGMA table_info({t})")]


def _missing_columns(conn: sqlite3.Connection) -> list[str]:
    """The ALTERs that bring a store of this version up to date: columns may be added within a version."""
    had = {t: {row[1] for row in conn.execute(f"PRAGMA table_info({t})")} for t in {t for t, *_ in columns()}}
    return [
        f"ALTER TABLE {table} ADD COLUMN {name} {kind}" + (f" NOT NULL DEFAULT {default}" if default else "")
        for table, name, kind, default in columns()
        if had[table] and name not in had[table]
    ]


def in_memory() -> sqlite3.Connection:
    """An empty store that is nowhere; `serialize()` gives the bytes of its file."""
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.row_factory = sqlite3.Row
    conn.executescript(f"{_schema()}; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION};")
    return conn


def has_table(conn: sqlite3.Connection, name: str) -> bool:
    """Whether there is one: a store of this version that was made before a table was added has none."""
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
    return bool(conn.execute(query, (name,)).fetchone()[0])


def _prepare_for_writing(conn: sqlite3.Connection) -> None:
    if (_pragma(conn, "application_id"), _pragma(conn, "user_version")) == (APPLICATION_ID, VERSION):
        if not has_table(conn, "beam"):
            conn.executescript(f"BEGIN IMMEDIATE; {_schema()} COMMIT;")  # makes what is missing
        for statement in _missing_columns(conn):
            conn.execute(statement)
    if _is_empty(conn):
        _retry_while_busy(conn, "PRAGMA journal_mode=WAL")
        script = _schema()
        marks = f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION};"
        # One transaction, and IF NOT EXISTS throughout: two processes may create the same store at once.
        conn.executescript(f"BEGIN IMMEDIATE; {script}; {marks} COMMIT;")
    conn.execute("PRAGMA synchronous=NORMAL")
    # SQLite opens a write-protected file for reading without a word, and even lends the write lock; only a
    # write tells.
    try:
        begin_writing(conn, patient=False)
        try:
            conn.execute(f"PRAGMA user_version={_pragma(conn, 'user_version')}")
        finally:
            conn.execute("ROLLBACK")
    except sqlite3.OperationalError as exc:
        if not is_busy(exc):  # somebody else is writing: then it can be written
            raise
    finally:
        _wait_at_most(conn, BUSY_S)


def begin_writing(conn: sqlite3.Connection, *, patient: bool) -> None:
    """Begin a transaction that writes; patient: wait for who is writing, else only a moment. Raises sqlite3.Error."""
    _wait_at_most(conn, BUSY_S if patient else min(MOMENT_S, BUSY_S))
    conn.execute("BEGIN IMMEDIATE")


def _wait_at_most(conn: sqlite3.Connection, seconds: float) -> None:
    conn.execute(f"PRAGMA busy_timeout={round(1000 * seconds)}")


def is_busy(exc: BaseException) -> bool:
    """Whether it is that another process holds the store."""
    code = getattr(exc, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY


def _retry_while_busy(conn: sqlite3.Connection, statement: str) -> None:
    """Changing the journal mode does not wait for other connections as ordinary statements do."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            conn.execute(statement).fetchone()
            return
        except sqlite3.OperationalError as exc:
            if not is_busy(exc) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _is_empty(conn: sqlite3.Connection) -> bool:
    tables: int = conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return tables == 0 and _pragma(conn, "application_id") == 0 and _pragma(conn, "user_version") == 0


def _pragma(conn: sqlite3.Connection, name: str) -> int:
    value: int = conn.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _check_ours(conn: sqlite3.Connection, path: Path) -> None:
    if _pragma(conn, "application_id") != APPLICATION_ID:
        raise StoreError(str(path), "this is a SQLite database, but not a trace store of Glassbox")
    version = _pragma(conn, "user_version")
    if version != VERSION:
        raise StoreError(str(path), f"its schema has version {version}, but this Glassbox knows version {VERSION} only")
    tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if missing := {"run", "segment", "position", "ledger", "candidate", "tensor"} - tables:
        raise StoreError(str(path), f"the file is damaged: no table {min(missing)!r}")
    if _missing_columns(conn):  # opened for reading only
        raise StoreError(str(path), "it was made by an older Glassbox; the next trace into it brings it up to date")
