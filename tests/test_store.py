"""The store: what it refuses, what it finds again, what it survives, what it costs."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_record import PROVENANCE, SECRET, make_outcome, make_prompt, make_request, make_step, record
from threads_seen import trace_writers

import glassbox
from glassbox.errors import RunNotFound, StoreError
from glassbox.trace import alive, rows, sqlite
from glassbox.trace import store as store_module
from glassbox.trace.record import Recorder, Run
from glassbox.trace.store import AmbiguousRun, Store, default_path, open_store

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "runs.db"


def filled(path: Path, runs: int = 1, **how: Any) -> list[Run]:
    """A closed store with runs in it."""
    with open_store(path) as store:
        return [record(Recorder(store, **how)) for _ in range(runs)]


def sql(path: Path, *statements: str) -> None:
    conn = sqlite3.connect(path)
    with conn:
        for statement in statements:
            conn.execute(statement)
    conn.close()


def refused(path: Path, **how: Any) -> str:
    with pytest.raises(StoreError) as caught:
        open_store(path, **how)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert message.startswith(f"trace store {path}: ")
    assert "\n" not in message
    return message.removeprefix(f"trace store {path}: ")


# --- opening ---


def test_a_new_store_is_private(path: Path) -> None:
    before = os.umask(0)
    try:
        with open_store(path) as store:
            record(Recorder(store))
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (path.parent, *path.parent.iterdir())}
    finally:
        os.umask(before)
    assert modes == {"data": 0o700, "runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600}


def test_the_file_says_what_it_is(path: Path) -> None:
    filled(path)
    conn = sqlite3.connect(path)
    pragma = {p: conn.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version", "journal_mode")}
    tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    conn.close()
    assert pragma == {"application_id": int.from_bytes(b"GLBX"), "user_version": 1, "journal_mode": "wal"}
    assert tables == {"run", "segment", "position", "ledger", "candidate", "beam", "tensor"}


def test_the_default_lies_in_the_users_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert default_path() == tmp_path / "glassbox" / "runs.db"
    monkeypatch.setattr(store_module, "default_path", lambda: tmp_path / "x" / "runs.db")
    with open_store() as store:
        assert store.path == tmp_path / "x" / "runs.db"


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert refused(path, readonly=True) == "this is a SQLite database, but not a trace store of Glassbox"
    assert len(filled(path)) == 1


def test_what_is_not_a_store_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path) == "this is a folder, but a store is a file"
    assert refused(tmp_path / "none.db", readonly=True) == "there is no such file"
    assert not (tmp_path / "none.db").exists()
    for size in (1, 99, 512, 5000):
        garbage = tmp_path / f"garbage{size}"
        garbage.write_bytes(random.Random(size).randbytes(size))
        assert refused(garbage) == "this is not a SQLite database"
        assert refused(garbage, readonly=True) == "this is not a SQLite database"
        assert garbage.read_bytes() == random.Random(size).randbytes(size)
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == "this is not a regular file"
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file" / "runs.db").startswith("cannot be opened: ")


def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "contacts.db"
    sql(other, "CREATE TABLE run (n, id)", "INSERT INTO run VALUES (1, 'x')")
    before = other.read_bytes()
    assert refused(other) == "this is a SQLite database, but not a trace store of Glassbox"
    assert other.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [other]


def test_a_version_from_the_future_is_refused(path: Path) -> None:
    filled(path)
    sql(path, "PRAGMA user_version = 2")
    assert refused(path) == "its schema has version 2, but this Glassbox knows version 1 only"
    assert refused(path, readonly=True) == "its schema has version 2, but this Glassbox knows version 1 only"


def test_a_column_from_the_future_is_ignored(path: Path) -> None:
    (run,) = filled(path)
    sql(path, "ALTER TABLE position ADD COLUMN batch_size INTEGER", "ALTER TABLE run ADD COLUMN mood TEXT")
    with open_store(path) as store:
        assert store.load() == run
        assert record(Recorder(store)).to_dict() == store.load().to_dict()


def test_a_missing_table_is_damage(path: Path) -> None:
    filled(path)
    sql(path, "DROP TABLE candidate")
    assert refused(path) == "the file is damaged: no table 'candidate'"


def test_a_read_only_file_can_be_read_and_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = filled(path)
    real = sqlite3.connect

    def protected(database: str, **how: Any) -> sqlite3.Connection:
        # Permission bits do not bind root. This is what SQLite does of itself with a write-protected file.
        return real(database.replace("mode=rw", "mode=ro"), **how)

    monkeypatch.setattr(sqlite.sqlite3, "connect", protected)
    assert refused(path) == "cannot be written: it is read-only"
    with open_store(path, readonly=True) as store:
        assert store.load() == run
        with pytest.raises(StoreError, match="read-only"):
            Recorder(store)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder with a store in it, both of a user whom permission bits bind: root becomes nobody meanwhile."""
    folder = Path(tempfile.mkdtemp())  # not below pytest's own folder, which nobody may enter
    filled(folder / "runs.db")
    root = os.geteuid() == 0
    if root:
        for each in (folder, *folder.iterdir()):
            os.chown(each, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder / "runs.db"
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_read_only_folder_can_be_read_and_not_written(unprivileged: Path) -> None:
    unprivileged.parent.chmod(0o500)
    assert "read-only" in refused(unprivileged)
    assert "denied" in refused(unprivileged.with_name("new.db"))
    with open_store(unprivileged, readonly=True) as store:
        assert len(store.load().steps) > 0


def test_on_read_only_media_a_closed_store_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = filled(path)
    real = sqlite3.connect

    def no_shm(database: str, **how: Any) -> sqlite3.Connection:
        if "immutable" not in database:
            raise sqlite3.OperationalError("unable to open database file")
        return real(database, **how)

    monkeypatch.setattr(sqlite.sqlite3, "connect", no_shm)
    with open_store(path, readonly=True) as store:
        assert store.load() == run
    path.with_name("runs.db-wal").touch()  # now something may be pending, and reading past it would be wrong
    assert "unable to open" in refused(path, readonly=True)


@pytest.mark.slow
def test_many_processes_make_one_store(path: Path) -> None:
    script = """
        import sys, test_record
        from glassbox.trace.record import Recorder
        from glassbox.trace.store import open_store
        with open_store(sys.argv[1]) as store:
            recorder = Recorder(store)
            test_record.record(recorder)
            print(recorder.problem)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    children = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [child.communicate()[0] for child in children] == ["None\n"] * 3
    with open_store(path) as store:
        assert len({run.id for run in store.runs()}) == 3
        assert all(store.verify(run.id) is None for run in store.runs())


def test_another_process_that_comes_and_goes_takes_nothing_away(path: Path) -> None:
    """Closing any descriptor of a file drops the process's locks on it. Were a second open_store to read the
    file by itself, another process would think itself its last user and delete the -wal under the first."""
    script = """
        import sys
        from glassbox.trace.store import open_store
        with open_store(sys.argv[1]) as store:
            print(*[(len(store.load(r.id).steps), r.finish_reason) for r in store.runs()])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def other_process() -> str:
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()

    with open_store(path) as store:
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE)
        store.flush()
        open_store(path).close()
        assert other_process() == "(0, 'running')"
        assert path.with_name("runs.db-wal").exists()
        recorder.step(make_step(0, make_request()))
        store.flush()
        assert other_process() == "(1, 'running')"


# --- finding ---


def test_runs_are_listed_newest_first(path: Path) -> None:
    runs = filled(path, 3)
    with open_store(path, readonly=True) as store:
        listed = store.runs()
        assert [r.id for r in listed] == [r.run_id for r in reversed(runs)]
        assert [r.id for r in store.runs(limit=1)] == [runs[2].run_id]
    first = listed[0]
    assert (first.model, first.finish_reason, first.prompt) == ("smollm2-135m", "stop", f"{SECRET}?")
    assert (first.prompt_tokens, first.tokens, first.problem) == (6, 4, None)
    assert first.created == runs[2].created
    assert abs(first.created.timestamp() - time.time()) < 60


def test_the_preview_falls_back_on_the_prompts_text(path: Path) -> None:
    parts = ({"role": "user", "content": [{"type": "text", "text": "in parts"}]},)
    with open_store(path) as store:
        record(Recorder(store), request=make_request(messages=None))
        record(Recorder(store), request=make_request(messages=parts))
        record(Recorder(store, retain="none"))
        assert store.load(store.runs()[1].id).request.messages == parts
        assert [r.prompt for r in store.runs()] == [
            "",
            f"<|user|>{SECRET}?<|end|>",
            f"<|user|>{SECRET}?<|end|>",
        ]


def test_a_run_is_found_by_its_beginning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["01aaa0000000aa", "01aab0000000aa", "01zzz0000000aa"])
    monkeypatch.setattr("glassbox.trace.record.new_run_id", lambda: next(ids))
    runs = filled(path, 3)
    with open_store(path) as store:
        assert store.load("01AAA").run_id == runs[0].run_id
        assert store.load("01z") == store.load("last") == store.load() == runs[2]
        with pytest.raises(AmbiguousRun) as caught:
            store.load("01aa")
        assert caught.value.matches == ("01aaa0000000aa", "01aab0000000aa")
        assert "01aaa0000000aa, 01aab0000000aa" in str(caught.value)
        for name in ("02", "", "01a%", "_", "../../etc/passwd", "\0", "01aaa0000000aab", "Last"):
            with pytest.raises(RunNotFound) as missing:
                store.load(name)
            assert not isinstance(missing.value, AmbiguousRun)
            assert missing.value.run_id == name


def test_an_empty_store_has_no_last_run(path: Path) -> None:
    with open_store(path) as store:
        assert store.runs() == []
        with pytest.raises(RunNotFound):
            store.load()


def test_a_run_under_way_is_running_until_its_process_is_gone(path: Path) -> None:
    with open_store(path) as store:
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE)
        recorder.step(make_step(0, make_request()))
        with open_store(path, readonly=True) as reader:
            store.flush()
            assert reader.runs()[0].finish_reason == reader.load().status == "running"
            assert reader.load() == recorder.run
            recorder.end(make_outcome(1, make_request()))
            store.flush()
            assert reader.load().status == "done"


def test_who_lives(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    me = alive.owner()
    machine, pid, start = me.split(":")
    assert pid == str(os.getpid())
    assert alive.is_alive(me, path)
    assert not alive.is_alive(f"{machine}:{pid}:{int(start) + 1}", path), "another process had this pid before"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(alive.os, "getpid", lambda: child.pid)
    its = alive.owner()
    monkeypatch.undo()
    assert alive.is_alive(its, path)
    child.kill()
    deadline = time.monotonic() + 10
    while alive.is_alive(its, path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive.is_alive(its, path), "killed, but not yet collected by its parent"
    child.communicate()
    assert not alive.is_alive(its, path)


def test_a_run_of_a_foreign_machine_is_running_while_the_store_changes(path: Path) -> None:
    filled(path)
    sql(path, "UPDATE run SET owner = 'elsewhere:1:1', finish_reason = NULL")
    long_ago = time.time() - 2 * alive.RECENT_S
    with open_store(path, readonly=True) as store:
        assert store.runs()[0].finish_reason == "running"
        for file in path.parent.iterdir():
            os.utime(file, (long_ago, long_ago))
        assert store.runs()[0].finish_reason == "interrupted"


def test_of_a_foreign_machine_only_the_files_age_tells(path: Path) -> None:
    filled(path)
    assert alive.is_alive("elsewhere:1:1", path)
    assert alive.is_alive("nonsense", path)
    old = time.time() - 120
    os.utime(path, (old, old))
    assert not alive.is_alive("elsewhere:1:1", path)
    path.with_name("runs.db-wal").touch()
    assert alive.is_alive("elsewhere:1:1", path)


# --- writing, when all is well ---


def test_eight_recorders_at_once(path: Path) -> None:
    runs: list[Run] = []
    with open_store(path) as store:
        gate = threading.Barrier(8)

        def work(k: int) -> None:
            recorder = Recorder(store)
            gate.wait()
            run = record(recorder, steps=20 + k, request=make_request(prompt=4 + k, seed=k))
            assert recorder.problem is None
            runs.append(run)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        assert len(trace_writers()) == 1
        for thread in threads:
            thread.join()
        assert len(runs) == len({run.run_id for run in runs}) == 8
        for run in runs:
            assert store.load(run.run_id) == run
    assert not trace_writers()


def test_rows_are_committed_while_the_run_goes_on(path: Path) -> None:
    """Nobody flushes here: another connection sees each step soon after. The promise is 100 ms."""
    with open_store(path) as store, open_store(path, readonly=True) as reader:
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE)
        waits = []
        for n in range(5):
            recorder.step(make_step(n, make_request()))
            start = time.monotonic()
            while not reader.runs() or reader.runs()[0].tokens <= n:
                assert time.monotonic() - start < 10
                time.sleep(0.005)
            waits.append(time.monotonic() - start)
        recorder.close()
    assert sorted(waits)[2] < 0.1


def test_what_is_pending_is_written_when_the_interpreter_ends(path: Path) -> None:
    script = f"""
        import test_record
        from glassbox.trace.record import Recorder
        from glassbox.trace.store import open_store
        recorder = Recorder(open_store({str(path)!r}))
        request = test_record.make_request()
        recorder.begin(request, test_record.PROVENANCE)
        recorder.step(test_record.make_step(0, request))
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=env, check=True)
    with open_store(path) as store:
        run = store.load()
        assert (len(run.steps), run.finish_reason) == (1, "interrupted")


# --- writing, when the disk is not ---


Squeeze = Callable[[sqlite3.Connection], None]


def writer_that(monkeypatch: pytest.MonkeyPatch, squeeze: Squeeze) -> list[sqlite3.Connection]:
    """Let `squeeze` spoil the writer's connection as soon as it is made. Returns the connections made."""
    made: list[sqlite3.Connection] = []

    def connect(path: Path, *, readonly: bool) -> sqlite3.Connection:
        conn = sqlite.connect(path, readonly=readonly)
        squeeze(conn)
        made.append(conn)
        return conn

    monkeypatch.setattr(store_module, "connect", connect)
    return made


def small_disk(spare: int) -> Squeeze:
    def squeeze(conn: sqlite3.Connection) -> None:
        pages = conn.execute("PRAGMA page_count").fetchone()[0]
        conn.execute(f"PRAGMA max_page_count = {pages + spare}")

    return squeeze


@pytest.mark.parametrize("spare", range(0, 25, 2))
def test_a_full_disk_costs_the_trace_and_not_the_text(path: Path, monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    request, steps = make_request(), 80
    with open_store(path) as store:
        writer_that(monkeypatch, small_disk(spare))
        recorder = Recorder(store)
        recorder.begin(request, PROVENANCE)
        recorder.prompt(make_prompt(request))
        for n in range(steps):
            recorder.step(make_step(n, request))
            if n % 10 == 9:
                store.flush()
        recorder.end(make_outcome(steps, request))
        recorder.close()
        assert recorder.run.text == "the text as delivered"
        assert recorder.run.steps == tuple(make_step(n, request) for n in range(steps))
        assert recorder.problem == "incomplete: cannot be written: the disk is full"
        assert recorder.run.problem == recorder.problem
        if not store.runs():
            assert spare < 6
            return
        kept = store.load(recorder.run_id)
        assert kept.steps == recorder.run.steps[: len(kept.steps)]
        assert len(kept.steps) < steps
        assert (kept.status, kept.problem, kept.usage.completion_tokens) == ("done", recorder.problem, steps)
        assert store.runs()[0].problem == recorder.problem


class Failing:
    """A connection whose nth statement finds the disk full, and, for ever, every one behind it."""

    def __init__(self, conn: sqlite3.Connection, nth: int, forever: bool) -> None:
        self._conn, self._nth, self._forever, self.count = conn, nth, forever, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def execute(self, *statement: Any) -> Any:
        return self._tried(self._conn.execute, statement)

    def executemany(self, *statement: Any) -> Any:
        return self._tried(self._conn.executemany, statement)

    def _tried(self, run: Callable[..., Any], statement: tuple[Any, ...]) -> Any:
        self.count += 1
        if self.count == self._nth or (self._forever and self.count > self._nth and statement[0] != "ROLLBACK"):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return run(*statement)


@pytest.mark.parametrize("forever", [True, False])
def test_whichever_write_finds_the_disk_full(path: Path, monkeypatch: pytest.MonkeyPatch, forever: bool) -> None:
    """A real generation, with a commit behind every token; each write in turn is the one that fails."""
    model = glassbox.load("bigram")
    writes = 0
    for nth in [10**9, *range(1, 200)]:
        if writes and nth > writes:
            break
        here = path.with_name(f"{nth}.db")
        with open_store(here) as store:
            made: list[Failing] = []

            def connect(to: Path, *, readonly: bool, nth: int = nth, made: list[Failing] = made) -> Any:
                made.append(Failing(sqlite.connect(to, readonly=readonly), nth, forever))
                return made[-1]

            monkeypatch.setattr(store_module, "connect", connect)
            stream = model.stream("ab", seed=7, max_tokens=5, store=store)
            for _ in stream:
                store.flush()
            run = stream.run
            monkeypatch.undo()
            writes = writes or made[0].count
            assert (run.finish_reason, len(run.steps), run.text) == ("length", 5, "".join(s.text for s in run.steps))
            kept = [store.load(r.id) for r in store.runs()]
            if made[0].count >= nth and forever:  # how many there are is a matter of how commits fall
                assert run.problem == "incomplete: cannot be written: the disk is full"
                # No ending can be written: the run counts as under way as long as this process lives.
                assert all(k.steps == run.steps[: len(k.steps)] and k.status == "running" for k in kept)
            elif run.problem is None:  # what failed once was tried again
                assert kept == [run]
            else:  # the last write of all is not tried again, but the mark is
                assert run.problem == "incomplete: cannot be written: the disk is full"
                assert [k.problem for k in kept] == [run.problem] or not kept
    assert writes > 30


def test_the_sweep_above_meets_runs_that_are_cut_in_the_middle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(path) as store:
        writer_that(monkeypatch, small_disk(22))
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE)
        for n in range(80):
            recorder.step(make_step(n, make_request()))
            if n % 5 == 0:
                store.flush()
        recorder.close()
        assert 10 < len(store.load().steps) < 80


def test_space_that_comes_back_in_time_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = make_request()
    with open_store(path) as store:
        made = writer_that(monkeypatch, small_disk(0))
        recorder = Recorder(store)
        recorder.begin(request, PROVENANCE, make_prompt(request))
        for n in range(10):
            recorder.step(make_step(n, request))
        store.flush()
        assert recorder.problem == "incomplete: cannot be written: the disk is full"
        assert store.runs() == []
        made[0].execute("PRAGMA max_page_count = 100000")
        recorder.end(make_outcome(10, request))
        recorder.close()
        assert recorder.problem is None
        assert store.load() == recorder.run


def test_later_runs_are_recorded_again_when_there_is_space(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(path) as store:
        made = writer_that(monkeypatch, small_disk(0))
        lost = Recorder(store)
        record(lost, steps=40)
        assert lost.problem is not None
        made[0].execute("PRAGMA max_page_count = 100000")
        later = Recorder(store)
        record(later)
        assert later.problem is None
        assert [r.id for r in store.runs()] == [later.run_id]


def test_a_locked_store_can_be_opened_for_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with closing(sqlite.connect(path, readonly=False)) as conn:  # somebody writes: then it can be written
        assert conn.execute("SELECT count(*) FROM run").fetchone() == (1,)
    other.close()


def test_commits_reach_the_disk_in_order(path: Path) -> None:
    """Write-ahead log and synchronous NORMAL: power that fails may cost the last commits, never the file."""
    filled(path)
    with closing(sqlite.connect(path, readonly=False)) as conn:
        found = [conn.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 1]


def test_a_run_that_begins_is_committed_without_waiting_for_company(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassbox.trace.writer.PAUSE_S", 60.0)
    with open_store(path) as store, open_store(path, readonly=True) as reader:
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE)
        deadline = time.monotonic() + 20
        while not reader.runs() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [r.id for r in reader.runs()] == [recorder.run.run_id]
        recorder.close()


def test_a_store_that_stays_locked_is_waited_for_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open it, to begin a run and to end one each used to wait BUSY_S, and each further run twice that: about 7 s
    here, where now it is one and some moments."""
    open_store(path).close()
    monkeypatch.setattr(sqlite, "BUSY_S", 1.0)
    request = make_request()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with open_store(path) as store:
        for _ in range(3):
            recorder = Recorder(store)
            recorder.begin(request, PROVENANCE)
            recorder.step(make_step(0, request))
            recorder.end(make_outcome(1, request))
            recorder.close()
            assert recorder.problem == "incomplete: another process holds it locked"
            assert not recorder.run.recorded
    took = time.monotonic() - began
    other.execute("ROLLBACK")
    other.close()
    assert took < 4


def test_a_locked_store_delays_rows_and_loses_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = make_request()
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    with open_store(path) as store:
        recorder = Recorder(store)
        recorder.begin(request, PROVENANCE)
        store.flush()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        recorder.step(make_step(0, request))
        store.flush()
        assert recorder.problem == "incomplete: another process holds it locked"
        recorder.step(make_step(1, request))
        other.execute("ROLLBACK")
        other.close()
        recorder.end(make_outcome(2, request))
        recorder.close()
        assert recorder.problem is None
        assert store.load() == recorder.run


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_is_removed_is_reported(path: Path, replaced: bool) -> None:
    request = make_request()
    with open_store(path) as store:
        recorder = Recorder(store)
        recorder.begin(request, PROVENANCE)
        store.flush()
        shutil.rmtree(path.parent)
        if replaced:
            path.parent.mkdir()
            path.touch()
        recorder.step(make_step(0, request))
        recorder.end(make_outcome(1, request))
        recorder.close()
        why = "the store was replaced by another file" if replaced else "the store was removed"
        assert recorder.problem == f"incomplete: {why}"
        assert recorder.run.text == "the text as delivered"


@pytest.mark.parametrize("left", [0, 4096])
def test_a_store_that_is_cut_short_is_reported(path: Path, left: int) -> None:
    filled(path, 3)
    with open_store(path) as store:
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE)
        store.flush()
        os.truncate(path, left)
        recorder.step(make_step(0, make_request()))
        recorder.end(make_outcome(1, make_request()))
        recorder.close()
        assert recorder.problem == "incomplete: the store was truncated"
        assert not recorder.run.recorded


def test_a_run_that_cannot_be_kept_at_all_is_not_called_recorded(path: Path) -> None:
    with open_store(path) as store:
        recorder = Recorder(store)
        run = record(recorder, request=make_request(model=None))
        assert run.problem is not None and not run.recorded and ", not recorded" in repr(run)
        with pytest.raises(RunNotFound):
            store.load(run.run_id)
        cut = Recorder(store)
        cut.begin(make_request(), PROVENANCE)
        cut.step(replace(make_step(0, make_request()), logits_hash="not hexadecimal"))
        cut.close()
        assert cut.run.problem is not None and cut.run.recorded, "what came before the bad step is there"


def test_words_that_are_no_text_cost_nothing(path: Path) -> None:
    """A path with a byte that is no UTF-8, and an error that quotes it."""
    with open_store(path) as store:
        recorder = Recorder(store)
        recorder.begin(make_request(model="a\udcff.gguf"), PROVENANCE)
        recorder.fail(ValueError("a\udcff.gguf"))
        recorder.close()
        assert recorder.problem is None
        kept = store.load()
        assert (kept.model, kept.error) == (r"a\udcff.gguf", r"ValueError: a\udcff.gguf")


FORKS = """
    import os, sys, time, test_record
    from glassbox.errors import StoreError
    from glassbox.trace.record import Recorder
    from glassbox.trace.store import open_store
    store, request = open_store(sys.argv[1]), test_record.make_request()
    recorder = Recorder(store)
    recorder.begin(request, test_record.PROVENANCE)
    store.flush()
    child = os.fork()
    begin = time.monotonic()
    recorder.step(test_record.make_step(0, request))
    recorder.end(test_record.make_outcome(1, request))
    recorder.close()
    if not child:
        try:
            Recorder(store)
        except StoreError as e:
            print(e, flush=True)
        store.close()
        print(recorder.problem, time.monotonic() - begin < 2, flush=True)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert store.load() == recorder.run and recorder.problem is None
    store.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_does_not_wait_and_leaves_the_store_alone(path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(FORKS), str(path)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    refusal, problem = done.stdout.splitlines()
    assert refusal.endswith("was opened before this process was forked: open it here again")
    assert problem == "incomplete: the process was forked while the store was open True"
    with open_store(path) as store:
        assert len(store.load().steps) == 1 and store.verify() is None


def test_a_disk_that_fails_in_earnest(path: Path) -> None:
    """The kernel itself refuses to let the file grow, at one size after another."""
    script = """
        import resource, signal, sys, test_record
        from glassbox.trace.record import Recorder
        from glassbox.trace.store import open_store
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with open_store(sys.argv[1]) as store:
            recorder, request = Recorder(store), test_record.make_request()
            recorder.begin(request, test_record.PROVENANCE)
            store.flush()
            limit = int(sys.argv[2])
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            for n in range(100):
                recorder.step(test_record.make_step(n, request))
                if n % 10 == 9:
                    store.flush()
            recorder.end(test_record.make_outcome(100, request))
            recorder.close()
            print(recorder.run.text, len(recorder.run.steps), recorder.problem, sep="|")
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    for k, limit in enumerate((0, 100_000, 150_000)):
        here = path.with_name(f"{k}.db")
        command = [sys.executable, "-c", textwrap.dedent(script), str(here), str(limit)]
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        text, steps, problem = done.stdout.strip().split("|")
        assert (text, steps) == ("the text as delivered", "100")
        assert problem.startswith("incomplete: cannot be ")
        with open_store(here) as store:
            kept = store.load()
            assert kept.steps == tuple(make_step(n, make_request()) for n in range(len(kept.steps)))
            assert len(kept.steps) < 100
            assert kept.finish_reason in ("interrupted", "stop")


def test_a_closed_store_is_reported_too(path: Path) -> None:
    store = open_store(path)
    recorder = Recorder(store)
    recorder.begin(make_request(), PROVENANCE)
    store.close()
    store.close()
    recorder.step(make_step(0, make_request()))
    recorder.close()
    assert recorder.problem == "incomplete: the store was closed while the run went on"
    for use in (store.runs, lambda: Recorder(store)):
        with pytest.raises(StoreError, match="is closed"):
            use()
    with open_store(path) as store:
        assert store.load(verify=True).steps == ()


# --- what is kept ---


def on_disk(path: Path) -> bytes:
    return b"".join(p.read_bytes() for p in sorted(path.parent.iterdir()))


@pytest.mark.parametrize("retain", ["text", "ids", "none"])
def test_what_is_not_kept_never_reaches_the_disk(path: Path, retain: str) -> None:
    request = make_request(stop=("Xylophon",))
    words = [
        SECRET,
        "heron",
        "Zanzibar",
        "message 0",
        "the text as delivered",
        "Xylophon",
        "byte 0x04",
        "tokÃ",
    ]
    secrets = [word.encode() for word in words]
    with open_store(path) as store:
        recorder = Recorder(store, retain=retain)  # type: ignore[arg-type]
        recorder.begin(request, PROVENANCE)
        recorder.prompt(make_prompt(request))
        for n in range(20):
            recorder.step(make_step(n, request))
        recorder.end(replace(make_outcome(20, request)))
        recorder.close()
        failed = Recorder(store, retain=retain)  # type: ignore[arg-type]
        failed.begin(request, PROVENANCE)
        failed.fail(ValueError(SECRET))
        failed.close()
        assert path.with_name("runs.db-wal").stat().st_size > 0
        while_open = on_disk(path)
        assert store.load(recorder.run_id).usage.completion_tokens == 20
        assert store.load(failed.run_id).finish_reason == "error"
    after = on_disk(path)
    found = {word for word, secret in zip(words, secrets, strict=True) if secret in while_open or secret in after}
    assert found == {"text": set(words), "ids": {"message 0", "Xylophon"}, "none": set()}[retain]


def test_with_retain_none_no_id_hash_or_draw_is_kept(path: Path) -> None:
    filled(path, retain="none")
    conn = sqlite3.connect(path)
    counted = {
        c: conn.execute(f"SELECT count({c}) FROM position").fetchone()[0] for c in ["id", "u", "logits_hash", "step"]
    }
    others = [conn.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("segment", "ledger", "candidate")]
    conn.close()
    assert counted == {"id": 0, "u": 0, "logits_hash": 0, "step": 4}
    assert others == [0, 0, 0]


# --- what it costs ---


def bytes_per_token(path: Path, at_once: int, **how: Any) -> float:
    """File growth from `at_once` empty runs to as many with 400 tokens, page overhead and all."""
    sizes = []
    for steps in (0, 400):
        here = path.with_name(f"{steps}-{at_once}.db")
        with open_store(here) as store:
            recorders = [Recorder(store, **how) for _ in range(at_once)]
            request = make_request()
            for recorder in recorders:
                recorder.begin(request, PROVENANCE, make_prompt(request))
            for n in range(steps):
                for recorder in recorders:
                    recorder.step(make_step(n, request))
                if n % 5 == 0:
                    store.flush()  # as the writer would commit a few tokens at a time
            for recorder in recorders:
                recorder.end(make_outcome(steps, request))
                recorder.close()
        sizes.append(here.stat().st_size)
    return (sizes[1] - sizes[0]) / (400 * at_once)


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize(("level", "limit"), [("ids", 200), ("look", 3000)])
def test_size_of_a_token(path: Path, level: str, limit: int, at_once: int) -> None:
    size = bytes_per_token(path, at_once, level=level)
    print(f"{level}, {at_once} at once: {size:.0f} bytes a token")
    assert limit / 4 < size <= limit


# --- damage ---


def columns(path: Path) -> list[tuple[str, str]]:
    conn = sqlite3.connect(path)
    found = [
        (table, row[1])
        for table in ("run", "segment", "position", "ledger", "candidate")
        for row in conn.execute(f"PRAGMA table_info({table})")
    ]
    conn.close()
    return found


CHANGE = """UPDATE {t} SET {c} = CASE typeof({c}) WHEN 'integer' THEN {c} + 1
    WHEN 'real' THEN {c} * 1.0000000000000002 + 1e-300
    WHEN 'text' THEN {c} || ' ' WHEN 'blob' THEN CAST(substr({c}, 2) || x'00' AS BLOB) ELSE 0 END
    WHERE {where}"""
FREE = {("run", "n")}  # the local key, which joins decide


def test_any_change_of_any_column_is_found(path: Path) -> None:
    (run,) = filled(path)
    pristine = path.read_bytes()
    step = "step 1 (position 7)"
    places = {"run": None, "segment": "the request", "position": step, "ledger": step, "candidate": step}
    missed, misplaced = [], []
    for table, column in columns(path):
        if (table, column) in FREE:
            continue
        path.write_bytes(pristine)
        where = {"run": "1", "segment": "i = 1", "position": "pos = 7"}.get(table, "pos = 7 AND i = 3")
        if column == "pos":
            statement = f"UPDATE {table} SET pos = 900 WHERE {where}"
        elif column in ("i", "run"):
            statement = f"UPDATE {table} SET {column} = 90 WHERE {where}"
        else:
            statement = CHANGE.format(t=table, c=column, where=where)
        sql(path, statement)
        with open_store(path) as store:
            found = store.verify()
            if found is None:
                missed.append((table, column))
                continue
            expected = places[table]
            if expected and found.where != expected:
                misplaced.append((table, column, found.where))
            with pytest.raises(StoreError, match="is damaged at"):
                store.load()
    assert missed == []
    # A row whose owner changed is another run's business too, but its absence shows at its own place first.
    assert misplaced == []
    path.write_bytes(pristine)
    with open_store(path) as store:
        assert store.verify() is None
        assert store.load() == run


def test_digests_do_not_depend_on_the_python_that_made_them() -> None:
    """Stores outlive interpreters. Should this fail on a new Python, rows.py needs an encoding of its own."""
    header = rows.header_digest(("ä\U0001faea", 2**64, None, 1.5, -1), [(0, b"\0\xff")])
    assert header.hex() == "6a94954f81484d0e905a7357b94e391d"
    steps: rows.PolicySteps = [("top_p", '{"top_p":0.9}', {"top_p": 0.9})]
    ledger = (7, 0, 0, None, 9, 8, 0.1, 1, b"\1\0\0\0", 0.5, b"", 0)
    assert rows.position_digest(header, (7, "a"), [ledger], [(7, 0, 3, 0.1)], steps).hex() == "325b0128290cc447"
    assert rows.seal(header, {1: b"b", 0: b"a"}, "[]", ("stop", None)).hex() == "7e16cf04dd0d6593e203c631801e1e52"


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ("created = 'soon'", "damaged"),
        ("created = 1e300", "damaged"),
        ("owner = x'00'", "damaged"),
        ("model = x'ff'", "damaged"),
        ("prompt_tokens = 'x'", "damaged"),
        ("options = replace(hex(zeroblob(100000)), '0', '[')", "damaged"),
        ("text = 5", "running"),
    ],
)
def test_a_damaged_run_does_not_hide_the_others(path: Path, change: str, shown: str) -> None:
    runs = filled(path, 3)
    sql(path, f"UPDATE run SET {change}, finish_reason = NULL WHERE id = '{runs[1].run_id}'")
    with open_store(path) as store:
        listed = store.runs()
        assert [r.id for r in listed] == [r.run_id for r in reversed(runs)]
        assert [store.verify(r.run_id) is None for r in runs] == [True, False, True]
        assert [r.finish_reason for r in listed] == ["stop", shown, "stop"]


@pytest.mark.parametrize(
    "change",
    [
        "run SET model = x'ff'",
        "position SET text_offset = x''",
        "position SET rank_raw = 'x'",
        "ledger SET entropy = 'x'",
    ],
)
def test_a_value_of_another_type_than_its_column_is_damage_even_to_those_who_welcome_it(
    path: Path, change: str
) -> None:
    (run,) = filled(path)
    sql(path, f"UPDATE {change}")
    with open_store(path) as store, pytest.raises(StoreError, match=r"TypeError: .* holds (bytes|str)"):
        store.load(run.run_id, verify=False)


def test_the_parameters_of_a_step_are_an_object(path: Path) -> None:
    (run,) = filled(path)
    sql(path, "UPDATE ledger SET params = '3'")
    with open_store(path) as store, pytest.raises(StoreError, match="TypeError"):
        store.load(run.run_id, verify=False)


def test_damage_is_told_and_can_be_looked_at(path: Path) -> None:
    (run,) = filled(path)
    sql(path, "UPDATE position SET id = 7 WHERE step = 2", "UPDATE position SET u = 0.5 WHERE step = 3")
    with open_store(path) as store:
        found = store.verify()
        assert str(found) == f"run {run.run_id} is damaged at step 2 (position 8): it does not match its digest"
        with pytest.raises(StoreError, match=r"step 2 \(position 8\)"):
            store.load()
        assert store.load(verify=False).steps[2].id == 7


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("DELETE FROM position WHERE step = 3", "step 3 (position 9)"),
        ("DELETE FROM position WHERE step = 1", "step 1 (position 7)"),
        ("DELETE FROM position WHERE pos = 0", "prompt position 0"),
        ("DELETE FROM ledger WHERE pos = 8 AND i = 0", "step 2 (position 8)"),
        ("DELETE FROM candidate WHERE pos = 9", "step 3 (position 9)"),
        ("DELETE FROM segment WHERE i = 2", "the request"),
        ("INSERT INTO candidate (run, pos, i, id) VALUES (1, 8, 8, 4)", "step 2 (position 8)"),
        ("INSERT INTO candidate (run, pos, i, id) VALUES (1, 70, 0, 4)", "step 64 (position 70)"),
        ("UPDATE run SET ledger_steps = '[]'", "step 0 (position 6)"),
        ("UPDATE run SET finish_reason = NULL", "the ending"),
        ("UPDATE run SET seal = NULL", "the ending"),
    ],
)
def test_rows_that_go_or_come_are_found(path: Path, change: str, where: str) -> None:
    filled(path)
    sql(path, change.replace("VALUES (1,", "VALUES ((SELECT n FROM run),"))
    with open_store(path) as store:
        found = store.verify()
    assert found is not None
    assert found.where == where


def test_of_a_run_without_an_ending_missing_prompt_rows_are_found(path: Path) -> None:
    """They were committed together with the run, so a crash does not explain them."""
    with open_store(path) as store:
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE)
        store.flush()
        assert store.verify() is None
        sql(path, "DELETE FROM position WHERE pos >= 4")
        found = store.verify()
        assert found is not None and (found.where, found.why) == ("prompt position 4", "it is missing")
        recorder.close()


def test_text_that_is_no_utf8_is_damage_of_its_row(path: Path) -> None:
    (run,) = filled(path)
    sql(path, "UPDATE position SET text = CAST(x'ff' AS TEXT) WHERE step = 1")
    with open_store(path) as store:
        found = store.verify()
        assert found is not None and (found.run_id, found.where) == (run.run_id, "step 1 (position 7)")
        assert store.load(verify=False).steps[1].text == "\ufffd"


def test_rows_cannot_move_between_runs(path: Path) -> None:
    filled(path, 2)
    sql(path, "DELETE FROM position WHERE run = 2 AND pos = 7")
    sql(path, "UPDATE position SET run = 2 WHERE run = 1 AND pos = 7")
    with open_store(path) as store:
        found = store.verify()
        assert found is not None
        assert found.where == "step 1 (position 7)"


def read_all(path: Path, original: dict[str, Run]) -> str:
    """Open, list, load. Anything but the original or a StoreError is a defect."""
    try:
        with open_store(path, readonly=True) as store:
            listed = store.runs()
            for summary in listed:
                run = store.load(summary.id)
                assert run == original[summary.id]
            return "same" if len(listed) == len(original) else "fewer"
    except (StoreError, RunNotFound):
        return "refused"


def test_flipped_bits_never_pass_for_the_truth(path: Path) -> None:
    original = {run.run_id: run for run in filled(path, 2)}
    pristine = path.read_bytes()
    rng = random.Random(11)
    counts = {"same": 0, "fewer": 0, "refused": 0}
    for _ in range(300):
        spoiled = bytearray(pristine)
        spoiled[rng.randrange(len(spoiled))] ^= 1 << rng.randrange(8)
        path.write_bytes(spoiled)
        counts[read_all(path, original)] += 1
    assert counts["refused"] > 30, "the flips must hit data, too, for this test to mean anything"
    assert counts["same"] > 30, "and free space"
    assert counts["fewer"] < 10


def test_a_truncated_file_never_passes_for_the_truth(path: Path) -> None:
    original = {run.run_id: run for run in filled(path, 2)}
    pristine = path.read_bytes()
    rng = random.Random(12)
    for size in [*range(0, 600, 50), *(rng.randrange(len(pristine)) for _ in range(60))]:
        path.write_bytes(pristine[:size])
        assert read_all(path, original) == "refused"
    path.write_bytes(pristine)
    assert read_all(path, original) == "same"


def test_a_store_reads_well(path: Path) -> None:
    with open_store(path) as store:
        assert isinstance(store, Store)
        assert repr(store) == f"<Store {path}>"
    with open_store(path, readonly=True) as store:
        assert repr(store) == f"<Store {path} (read-only)>"
