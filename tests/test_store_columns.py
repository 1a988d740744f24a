"""A store made before a column was added: brought up to date by whoever writes next, refused in words until then."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

import glassbox
from glassbox.errors import StoreError
from glassbox.trace.decode import policy_steps_of
from glassbox.trace.rows import CANDIDATE, ENDED, LEDGER, POSITION, _digest
from glassbox.trace.sqlite import APPLICATION_ID, VERSION

ADDED = ("options", "drafted", "reuse_why", "text_offset", "last_token_ns")


def test_missing_columns_are_added(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    schema = resources.files("glassbox.trace").joinpath("schema.sql").read_text(encoding="utf-8")
    old = re.sub(rf"^  ({'|'.join(ADDED)}) .*\n", "", schema, flags=re.MULTILINE)
    old = re.sub(r",(\s*--[^\n]*)?\n\) WITHOUT", r"\n) WITHOUT", old)
    assert all(f"  {name} " not in old for name in ADDED)
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.executescript(old + f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION};")
    conn.close()
    with pytest.raises(StoreError, match="made by an older Glassbox"):
        glassbox.open_store(path, readonly=True)
    with glassbox.open_store(path) as store:
        run = glassbox.load("bigram").generate("ab", seed=1, max_tokens=3, store=store)
        assert run.problem is None and store.load(run.run_id) == run
    with glassbox.open_store(path, readonly=True) as store:
        assert len(store.runs()) == 1


def test_a_run_of_before_a_column_was_added_is_whole(tmp_path: Path) -> None:
    """Its digests were made without the column: they hold when the store is brought up to date."""
    path = tmp_path / "runs.db"
    with glassbox.open_store(path) as store:
        run = glassbox.load("bigram").generate("ab", seed=1, max_tokens=3, store=store)
    kept = replace(run, steps=tuple(replace(s, text_offset=None) for s in run.steps))
    assert run.outcome is not None and run.timings is not None
    kept = replace(kept, outcome=replace(run.outcome, timings=replace(run.timings, last_token_ns=None)))
    with closing(sqlite3.connect(path)) as conn:
        write_as_of_old(conn)
    with pytest.raises(StoreError, match="made by an older Glassbox"):
        glassbox.open_store(path, readonly=True)
    glassbox.open_store(path).close()
    with glassbox.open_store(path, readonly=True) as store:
        assert store.load(run.run_id) == kept and store.verify(run.run_id) is None
        assert kept.speed is not None and kept.speed.gap_s is not None  # from the end of the run, as it was then
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("UPDATE position SET text_offset = 7 WHERE pos = 3")
    conn.close()
    with glassbox.open_store(path, readonly=True) as store:
        assert "step 1" in str(store.verify(run.run_id))  # a value that was not there is found


def write_as_of_old(conn: sqlite3.Connection) -> None:
    """Take the columns away, and make the digests over what is left, as the code before them did."""
    digests, (header, ledger_steps) = {}, conn.execute("SELECT digest, ledger_steps FROM run").fetchone()
    steps = policy_steps_of(ledger_steps)
    conn.execute("ALTER TABLE position DROP COLUMN text_offset")
    conn.execute("ALTER TABLE run DROP COLUMN last_token_ns")
    columns = [c for c in POSITION if c != "text_offset"]
    for row in conn.execute(f"SELECT {', '.join(columns)} FROM position ORDER BY pos").fetchall():
        ledger, candidates = (
            conn.execute(f"SELECT {', '.join(names)} FROM {table} WHERE pos = ? ORDER BY i", (row[0],)).fetchall()
            for table, names in (("ledger", LEDGER), ("candidate", CANDIDATE))
        )
        named = [(*r[:2], steps[r[2]][0], steps[r[2]][1] if r[3] is None else r[3], *r[4:]) for r in ledger]
        digests[row[0]] = _digest((row, named, candidates), header, 8)
        conn.execute("UPDATE position SET digest = ? WHERE pos = ?", (digests[row[0]], row[0]))
    ended = conn.execute(f"SELECT {', '.join(c for c in ENDED if c != 'last_token_ns')} FROM run").fetchone()
    conn.execute("UPDATE run SET seal = ?", (_digest((sorted(digests.items()), ledger_steps, ended), header, 16),))
    conn.commit()


def test_what_is_asked_survives(tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        for asked in ({"include_stop": True}, {"prompt_logprobs": True}, {}):
            run = glassbox.load("bigram").generate("ab", seed=1, max_tokens=3, store=store, **asked)
            kept = store.load(run.run_id).request
            assert kept == run.request and {k: getattr(kept, k) for k in asked} == asked
