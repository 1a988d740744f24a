"""Imports: what is sound goes in bit for bit, what is not is named, and the store is never the worse for it."""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from test_export import kinds, sources
from test_record import PROVENANCE, make_outcome, make_request, make_step, record

from glassbox.cli.main import run as cli
from glassbox.errors import StoreError
from glassbox.trace import alive, copy, rows, sqlite
from glassbox.trace import merge as merging
from glassbox.trace.merge import merge
from glassbox.trace.record import Recorder, Run
from glassbox.trace.store import open_store


def filled(path: Path, runs: int = 1) -> list[Run]:
    with open_store(path) as store:
        return [record(Recorder(store)) for _ in range(runs)]


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as conn:
        return sorted(conn.iterdump())


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as conn:
        for statement in statements:
            conn.execute(statement)
        conn.commit()


def forged(path: Path, column: str, value: Any) -> None:
    """A column of the only run changed, and every digest computed anew, as somebody who knows how would."""
    with closing(sqlite3.connect(path)) as conn:
        conn.row_factory = sqlite3.Row
        conn.execute(f"UPDATE run SET {column} = ?", (value,))
        forge(conn)
        conn.commit()


def forge(conn: sqlite3.Connection) -> None:
    run = conn.execute("SELECT * FROM run").fetchone()
    segments = [tuple(r) for r in conn.execute(f"SELECT {', '.join(rows.SEGMENT)} FROM segment ORDER BY i")]
    header = rows.header_digest(tuple(run[c] for c in rows.ASKED), segments)
    steps = [(s["name"], rows.dumps(s["params"]), s["params"]) for s in json.loads(run["ledger_steps"])]
    digests = {}
    for row in conn.execute(f"SELECT {', '.join(rows.POSITION)} FROM position ORDER BY pos").fetchall():

        def of(table: str, columns: tuple[str, ...], pos: int = row["pos"]) -> list[tuple[Any, ...]]:
            query = f"SELECT {', '.join(columns)} FROM {table} WHERE pos = ? ORDER BY i"
            return [tuple(r) for r in conn.execute(query, (pos,))]

        ledger, candidates = of("ledger", rows.LEDGER), of("candidate", rows.CANDIDATE)
        digests[row["pos"]] = rows.position_digest(header, tuple(row), ledger, candidates, steps)
        conn.execute("UPDATE position SET digest = ? WHERE pos = ?", (digests[row["pos"]], row["pos"]))
    ended = tuple(run[c] for c in rows.ENDED)
    seal = rows.seal(header, digests, run["ledger_steps"], ended)
    conn.execute("UPDATE run SET digest = ?, seal = ?", (header, seal))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One with two runs of its own."""
    filled(tmp_path / "mine.db", 2)
    return tmp_path / "mine.db"


def refused(source: Path, store: Path) -> str:
    before = dump(store)
    with pytest.raises(StoreError) as caught:
        merge(source, store)
    assert dump(store) == before
    message = str(caught.value)
    assert message.startswith(f"trace store {source}: ") and "\n" not in message
    return message.removeprefix(f"trace store {source}: ")


def left_out(source: Path, store: Path) -> str:
    """Why the only run of the source was refused by name, while the store stays as it was."""
    before = dump(store)
    done = merge(source, store)
    assert done.added == done.same == () and len(done.refused) == 1
    assert dump(store) == before
    return done.refused[0][1]


# --- what goes in ---


def test_every_kind_of_run_goes_in_bit_for_bit(tmp_path: Path, store: Path) -> None:
    kinds(tmp_path / "theirs.db")
    theirs = {s.run.run_id: s for s in sources(tmp_path / "theirs.db")}
    done = merge(tmp_path / "theirs.db", store)
    assert set(done.added) == set(theirs) and done.same == done.refused == ()
    with open_store(store, readonly=True) as opened:
        assert len(opened.runs(None)) == len(theirs) + 2
        for run_id, source in theirs.items():
            assert opened.verify(run_id) is None
            assert copy.same(opened.rows(run_id), source.rows)
            assert opened.load(run_id).to_dict() == source.run.to_dict()
    again = merge(tmp_path / "theirs.db", store)
    assert set(again.same) == set(theirs) and again.added == again.refused == ()


def test_there_and_back_again(tmp_path: Path) -> None:
    """Exported, imported elsewhere, exported from there: the same bytes."""
    (run,) = filled(tmp_path / "a.db")
    with open_store(tmp_path / "a.db", readonly=True) as opened:
        first = opened.load().export("run", tmp_path / "first.db")
    merge(first, tmp_path / "new" / "b.db")
    with open_store(tmp_path / "new" / "b.db", readonly=True) as opened:
        second = opened.load(run.run_id).export("run", tmp_path / "second.db")
    assert first.read_bytes() == second.read_bytes()
    assert merge(second, tmp_path / "a.db").same == (run.run_id,)


def test_tensors_come_along(tmp_path: Path, store: Path) -> None:
    filled(tmp_path / "t.db")
    sql(tmp_path / "t.db", "INSERT INTO tensor VALUES (1, 7, 'resid_post.3', 'f4', '[1]', x'0000803f', x'01')")
    assert len(merge(tmp_path / "t.db", store).added) == 1
    with open_store(store, readonly=True) as opened:
        assert [tuple(t) for t in opened.rows(tensors=True).tensors] == [
            (7, "resid_post.3", "f4", "[1]", b"\x00\x00\x80?", b"\x01")
        ]


def test_while_another_store_writes(tmp_path: Path, store: Path) -> None:
    filled(tmp_path / "theirs.db", 5)
    with open_store(store) as opened:
        recorder = Recorder(opened)
        recorder.begin(make_request(), PROVENANCE)
        recorder.step(make_step(0, make_request()))
        assert len(merge(tmp_path / "theirs.db", store).added) == 5
        recorder.step(make_step(1, make_request()))
        recorder.end(make_outcome(2, make_request()))
        recorder.close()
        assert recorder.problem is None and opened.load(recorder.run_id) == recorder.run


# --- what does not ---


def test_another_run_of_the_same_id_is_refused_and_nothing_lost(tmp_path: Path, store: Path) -> None:
    with open_store(store, readonly=True) as opened:
        mine = opened.load()
        mine.export("run", tmp_path / "x.db")
    forged(tmp_path / "x.db", "text", "another text")
    assert left_out(tmp_path / "x.db", store) == "the store has another run of this id"
    with open_store(store, readonly=True) as opened:
        assert opened.load() == mine


def test_damaged_runs_are_named_and_the_others_go_in(tmp_path: Path, store: Path) -> None:
    runs = [run.run_id for run in filled(tmp_path / "theirs.db", 4)]
    sql(
        tmp_path / "theirs.db",
        "UPDATE position SET u = 0.5 WHERE run = 1 AND step = 2",
        "DELETE FROM candidate WHERE run = 3 AND pos = 7 AND i = 1",
    )
    done = merge(tmp_path / "theirs.db", store)
    assert done.added == (runs[1], runs[3])
    assert dict(done.refused) == {
        runs[0]: "damaged at step 2 (position 8): it does not match its digest",
        runs[2]: "damaged at step 1 (position 7): it does not match its digest",
    }
    with open_store(store, readonly=True) as opened:
        assert len(opened.runs()) == 4 and opened.verify(runs[3]) is None


def test_a_run_under_way_waits_for_its_end(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path / "theirs.db") as opened:
        recorder = Recorder(opened)
        recorder.begin(make_request(), PROVENANCE)
        opened.flush()
        assert left_out(tmp_path / "theirs.db", store) == "it is still running"
        recorder.close()
        assert merge(tmp_path / "theirs.db", store).added == (recorder.run_id,)
    assert alive.is_alive(recorder._begin.owner, store)  # type: ignore[union-attr]


def test_what_is_no_store_of_ours(tmp_path: Path, store: Path) -> None:
    assert refused(tmp_path / "none.db", store) == "there is no such file"
    assert refused(tmp_path, store) == "this is a folder, but a store is a file"
    for size in (1, 100, 512, 5000):
        (tmp_path / "noise").write_bytes(random.Random(size).randbytes(size))
        assert refused(tmp_path / "noise", store) == "this is not a SQLite database"
    sql(tmp_path / "contacts.db", "CREATE TABLE run (n, id)", "INSERT INTO run VALUES (1, 'x')")
    assert "not a trace store of Glassbox" in refused(tmp_path / "contacts.db", store)
    filled(tmp_path / "later.db")
    sql(tmp_path / "later.db", "PRAGMA user_version = 2")
    assert refused(tmp_path / "later.db", store) == "its schema has version 2, but this Glassbox knows version 1 only"
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe", store) == "this is not a regular file"
    assert refused(store, store) == "it cannot be imported into itself"
    (tmp_path / "empty").touch()
    assert "not a trace store" in refused(tmp_path / "empty", store)
    with open_store(store, readonly=True) as opened:
        opened.load().export("json", tmp_path / "x.json")
    assert refused(tmp_path / "x.json", store).startswith("a JSON export has no digests")


def test_links(tmp_path: Path, store: Path) -> None:
    """One to a file is that file; one to anything else is refused as what it leads to."""
    (run,) = filled(tmp_path / "theirs.db")
    for name, to in (("nowhere", "gone"), ("circle", "circle"), ("device", "/dev/zero"), ("file", "theirs.db")):
        (tmp_path / name).symlink_to(to)
    assert refused(tmp_path / "nowhere", store) == "there is no such file"
    assert "symbolic links" in refused(tmp_path / "circle", store)
    assert refused(tmp_path / "device", store) == "this is not a regular file"
    (tmp_path / "self").symlink_to(store)
    assert refused(tmp_path / "self", store) == "it cannot be imported into itself"
    assert merge(tmp_path / "file", store).added == (run.run_id,)


def test_a_file_that_executes_is_refused(tmp_path: Path, store: Path) -> None:
    filled(tmp_path / "theirs.db")
    pristine = (tmp_path / "theirs.db").read_bytes()
    loop = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, x, x FROM c"
    for name, statements in {
        "view": ["ALTER TABLE segment RENAME TO s2", f"CREATE VIEW segment AS {loop}"],
        "beam": ["DROP TABLE beam", f"CREATE VIEW beam AS {loop}"],
        "virtual": [
            "PRAGMA writable_schema=ON",
            "INSERT INTO sqlite_master VALUES ('table', 'v', 'v', 0, 'CREATE VIRTUAL TABLE v USING fts5(x)')",
        ],
        "trigger": ["CREATE TRIGGER t AFTER DELETE ON run BEGIN DELETE FROM segment; END"],
        "computed": ["ALTER TABLE run ADD COLUMN z BLOB GENERATED ALWAYS AS (zeroblob(2000000000)) VIRTUAL"],
    }.items():
        path = tmp_path / f"{name}.db"
        path.write_bytes(pristine)
        sql(path, *statements)
        begin = time.monotonic()
        assert re.match(
            "it was not made by|it was made by an older|the file is damaged: no table", refused(path, store)
        ), name
        assert time.monotonic() - begin < 5


def test_a_file_from_anybody_is_read_with_care(tmp_path: Path) -> None:
    """Nothing in its schema is run, a cell that its page has no room for is an error, and no value is too large."""
    filled(tmp_path / "theirs.db")
    with closing(merging._open_foreign(tmp_path / "theirs.db")) as conn:
        said = {name: conn.execute(f"PRAGMA {name}").fetchone()[0] for name in ("trusted_schema", "cell_size_check")}
        assert said == {"trusted_schema": 0, "cell_size_check": 1}
        assert conn.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) == merging.LONGEST


def test_truncated_files(tmp_path: Path) -> None:
    """At any length: refused as a whole, or its runs by name; what can still be read whole goes in as it was."""
    runs = {run.run_id: run.to_dict() for run in filled(tmp_path / "theirs.db", 3)}
    pristine = (tmp_path / "theirs.db").read_bytes()
    rng = random.Random(3)
    for size in [0, 1, 99, 512, 4096, 8192, *(rng.randrange(len(pristine)) for _ in range(60))]:
        path, into = tmp_path / "cut.db", tmp_path / f"into{size}.db"
        path.write_bytes(pristine[:size])
        try:
            done = merge(path, into)
        except StoreError as e:
            assert "\n" not in str(e) and not into.exists()
            continue
        assert all(name in runs or name.startswith("row ") for name in [*done.added, *dict(done.refused)])
        with open_store(into, readonly=True) as opened:
            assert {r.id: opened.load(r.id).to_dict() for r in opened.runs()} == {n: runs[n] for n in done.added}


def test_flipped_bits(tmp_path: Path, store: Path) -> None:
    """What goes in is what was written, whichever bits are turned."""
    runs = {run.run_id: run.to_dict() for run in filled(tmp_path / "theirs.db", 3)}
    pristine = (tmp_path / "theirs.db").read_bytes()
    rng = random.Random(4)
    for n in range(60):
        data = bytearray(pristine)
        for _ in range(rng.choice((1, 3, 30))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path, into = tmp_path / "bent.db", tmp_path / f"into{n}.db"
        path.write_bytes(data)
        try:
            merge(path, into)
        except StoreError:
            continue
        with open_store(into, readonly=True) as opened:
            for summary in opened.runs(None):
                assert opened.load(summary.id).to_dict() == runs[summary.id]
        into.unlink()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", "\x1b[31mred"), ("id", "x" * 1000), ("id", 7), ("policy", '{"temperature": "hot"}'), ("policy", "["),
        ("policy", "[" * 100_000), ("created", 10**18), ("created", "soon"), ("options", '{"no": 1}'),
        ("prompt_tokens", "many"), ("seed", "x"), ("messages", "7"), ("stop_detail", b"\x00"), ("total_ns", "long"),
        ("retain", "some"), ("level", b"look"), ("sources", "[]"), ("sequence", -0.5), ("max_tokens", 1.5),
        ("text", b"bytes"), ("template_sha256", 5), ("prompt_text", 3.25),
    ],
)  # fmt: skip
def test_wrong_values_with_right_digests(tmp_path: Path, store: Path, column: str, value: Any) -> None:
    """Refused by name, or of no harm: the run can then be listed, shown and exported."""
    filled(tmp_path / "theirs.db")
    forged(tmp_path / "theirs.db", column, value)
    before = dump(store)
    done = merge(tmp_path / "theirs.db", store)
    if done.refused:
        assert dump(store) == before and done.added == ()
        return
    with open_store(store, readonly=True) as opened:
        json.dumps(opened.load(done.added[0]).to_dict(), allow_nan=False)
        assert len(opened.runs()) == 3


def test_columns_without_a_type_do_not_smuggle_one_in(tmp_path: Path, store: Path) -> None:
    """A whole number in a column of reals would be another value in the store than its digest says."""
    filled(tmp_path / "theirs.db")
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as conn:
        conn.row_factory = sqlite3.Row
        (made,) = conn.execute("SELECT sql FROM sqlite_master WHERE name = 'position'").fetchone()
        untyped = re.sub(r"(\w+) +(REAL|INTEGER|TEXT|BLOB)", r"\1", made).replace("TABLE position", "TABLE untyped")
        conn.execute(untyped)
        conn.execute("INSERT INTO untyped SELECT * FROM position")
        conn.execute("DROP TABLE position")
        conn.execute("ALTER TABLE untyped RENAME TO position")
        conn.execute("UPDATE position SET entropy = 2 WHERE step = 1")
        forge(conn)
        conn.commit()
    assert left_out(tmp_path / "theirs.db", store) == "a column holds values of a wrong type"


def test_huge_values(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "theirs.db")
    monkeypatch.setattr(merging, "LONGEST", 1 << 20)
    forged(tmp_path / "theirs.db", "prompt_text", "x" * (2 << 20))
    assert "too big" in left_out(tmp_path / "theirs.db", store)


def test_parents_that_go_round(tmp_path: Path, store: Path) -> None:
    with open_store(tmp_path / "theirs.db") as opened:
        ids = [record(Recorder(opened)).run_id for _ in range(2)]
        alone = record(Recorder(opened)).run_id
    for n, (own, parent) in enumerate([(ids[0], ids[1]), (ids[1], ids[0])]):
        with open_store(tmp_path / "theirs.db", readonly=True) as opened:
            opened.load(own).export("run", tmp_path / f"{n}.db")
        forged(tmp_path / f"{n}.db", "parent", parent)
    both = tmp_path / "both.db"
    assert merge(tmp_path / "0.db", both).added == (ids[0],)  # no circle yet
    assert dict(merge(tmp_path / "1.db", both).refused) == {ids[1]: "its parents go round in a circle"}
    with open_store(tmp_path / "theirs.db", readonly=True) as opened:
        opened.load(alone).export("run", tmp_path / "self.db")
    forged(tmp_path / "self.db", "parent", alone)
    assert left_out(tmp_path / "self.db", store) == "its parents go round in a circle"


def test_long_lines_of_parents_take_no_time() -> None:
    line = {str(n): str(n + 1) for n in range(100_000)}
    begin = time.monotonic()
    assert merging._circular(line) == set()
    assert merging._circular(line | {"100000": "50000"}) == {*line, "100000"}
    assert time.monotonic() - begin < 5


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "theirs.db", 2)
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        before = dump(store)
        with pytest.raises(StoreError, match=r"mine\.db: another process holds it locked"):
            merge(tmp_path / "theirs.db", store)
        other.execute("ROLLBACK")
    assert dump(store) == before


def test_the_command(tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = filled(tmp_path / "theirs.db", 2)
    into = ["--store", str(store)]
    assert cli(["import", str(tmp_path / "theirs.db"), *into]) == 0
    assert capsys.readouterr().out == "added    2\nsame     0\n"
    sql(tmp_path / "theirs.db", "UPDATE run SET text = 'else' WHERE n = 1")
    assert cli(["import", str(tmp_path / "theirs.db"), *into, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["same"] == [runs[1].run_id] and told["refused"][0]["id"] == runs[0].run_id
    assert cli(["import", str(tmp_path / "no.db"), *into]) == 2
    err = capsys.readouterr().err
    assert err == f"glassbox: trace store {tmp_path / 'no.db'}: there is no such file\n"
