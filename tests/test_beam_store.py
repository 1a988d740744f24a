"""A beam search in the store: every candidate is there, in a killed run too; damage is found; older stores go on."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import glassbox
from glassbox import Beam
from glassbox.cli import beams
from glassbox.cli.main import run as cli
from glassbox.cli.show_text import quoted
from glassbox.errors import StoreError
from glassbox.trace.sqlite import APPLICATION_ID, VERSION

BEAM = Beam(3, 2.0, "never", returned=2)


def made(path: Path, **how: Any) -> Any:
    with glassbox.open_store(path) as store:
        return glassbox.load("bigram").beam_search("ab", beam=BEAM, **{"max_tokens": 6, "store": store} | how)


@pytest.mark.parametrize("level", ["look", "ids"])
def test_what_was_found_is_read_back(tmp_path: Path, level: str) -> None:
    run = made(tmp_path / "s.db", level=level)
    with glassbox.open_store(tmp_path / "s.db", readonly=True) as store:
        found = store.load(run.run_id)
        assert store.runs()[0].beams == 3
    assert run.problem is None and found.beams == run.beams
    assert found.request == run.request and found.request.beam == BEAM
    assert found.beams is not None and found.beams.hypotheses == run.beams.hypotheses
    assert len(found.beams.hypotheses) == 2 and found.ids == found.beams.hypotheses[0].ids
    assert json.loads(json.dumps(found.to_dict()))["beams"]["hypotheses"][0]["ids"] == list(run.ids)


def test_retain_leaves_out_what_it_should(tmp_path: Path) -> None:
    ids, none = (made(tmp_path / "s.db", retain=r) for r in ("ids", "none"))
    with glassbox.open_store(tmp_path / "s.db", readonly=True) as store:
        rows = store.load(ids.run_id).tried
        assert [r.id for r in rows] == [r.id for r in ids.tried]
        assert not any(r.text or r.bytes for r in rows)
        assert store.load(none.run_id).tried == ()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE beam SET score = score + 1e-9 WHERE step = 1 AND i = 0",
        "UPDATE beam SET parent = 1 - parent WHERE step = 2 AND i = 0",
        "DELETE FROM beam WHERE step = 3 AND i = 1",
        "DELETE FROM beam",
    ],
)
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s.db"
    run = made(path)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(damage)
        conn.commit()
    with glassbox.open_store(path, readonly=True) as store, pytest.raises(StoreError, match="is damaged at"):
        store.load(run.run_id)


def test_a_store_from_before_gets_the_table(tmp_path: Path) -> None:
    """It can be read as it is, with the runs it has; the next that writes makes the table."""
    path = tmp_path / "s.db"
    schema = resources.files("glassbox.trace").joinpath("schema.sql").read_text(encoding="utf-8")
    old = re.sub(r"CREATE TABLE IF NOT EXISTS beam \(.*?\) WITHOUT ROWID;", "", schema, flags=re.DOTALL)
    with closing(sqlite3.connect(path)) as conn:
        conn.executescript(old + f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION};")
    assert "TABLE IF NOT EXISTS beam" not in old
    with glassbox.open_store(path, readonly=True) as store:
        assert store.runs() == []
    run = made(path)
    with glassbox.open_store(path, readonly=True) as store:
        assert store.load().beams == run.beams


def test_runs_of_before_are_still_what_they_were(tmp_path: Path) -> None:
    """The seal of a run without beams covers what it always did: one is read from a file without the table."""
    path = tmp_path / "s.db"
    with glassbox.open_store(path) as store:
        run = glassbox.load("bigram").generate("ab", seed=1, max_tokens=4, store=store)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("DROP TABLE beam")
    with glassbox.open_store(path, readonly=True) as store:
        assert store.load(run.run_id) == run


VICTIM = """
import os, sys, time
import glassbox
store = glassbox.open_store(sys.argv[1])
stream = glassbox.load("bigram").stream("ab", beam=glassbox.Beam(3), max_tokens=4000, store=store)
engine, search = stream._steps, stream._generation
record, count = stream._recorder.beams, 0
def beams(rows):
    global count
    record(rows)
    count += 1
    if count == 20:
        time.sleep(0.2)
        os.write(1, b"ready")
        time.sleep(60)
stream._recorder.beams = beams
next(stream)
"""


def test_a_killed_search_leaves_its_candidates(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with subprocess.Popen([sys.executable, "-c", VICTIM, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.read(5) == b"ready"
        os.kill(process.pid, signal.SIGKILL)
    with glassbox.open_store(path, readonly=True) as store:
        run = store.load()
    assert run.status == "interrupted" and run.steps == () and run.beams is not None
    assert run.beams.steps == 20
    best = run.beams.hypotheses[0]
    assert len(best.ids) == 20 and not best.finished


def test_the_command_line_shows_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def glass(*arguments: str) -> str:
        assert cli(list(arguments)) == 0
        return capsys.readouterr().out

    store = ("--store", str(tmp_path / "s.db"))
    flags = "--beams 4 --length-penalty 0 --early-stopping never --beam-groups 2 --diversity-penalty 0.5 --returned 3"
    whole = json.loads(glass("trace", "ab", "--model", "bigram", "--max-tokens", "5", *flags.split(), "--json", *store))
    beams = whole["beams"]
    assert (beams["width"], beams["groups"], beams["early_stopping"], beams["length_penalty"]) == (4, 2, "never", 0)
    assert len(beams["hypotheses"]) == 3
    assert beams["hypotheses"][0]["ids"] == [s["id"] for s in whole["steps"]]
    shown = glass("show", whole["run_id"], *store)
    assert "4 in 2 groups, diversity penalty 0.5, early stopping never" in shown
    assert "hypothesis" in shown and "draw" in shown and "greedy" not in shown
    at = glass("show", whole["run_id"], "--at", "1", *store)
    assert "dropped" in at and "live" in at
    step = json.loads(glass("show", whole["run_id"], "--at", "1", "--json", *store))
    assert step["id"] == whole["steps"][1]["id"] and {row["step"] for row in step["beams"]} == {1}
    assert "beams  4" in glass("runs", *store)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--beams 2 --n 2", "n is 2, but must be left out with --beams"),
        ("--returned 2", "returned is 2, but must be given with --beams only"),
        ("--beams 0", "width is 0, but must be a whole number from 1 to 64"),
        ("--beams 2 --early-stopping maybe", "early_stopping is 'maybe', but must be one of no, yes, never"),
        ("--beams 3 --temperature 0", "temperature is 0.0, but must be above 0 with beams"),
        ("--n 0", "n is 0, but must be a whole number from 1 to 1000"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    tmp_path: Path, flags: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(["trace", "ab", "--model", "bigram", *flags.split(), "--store", str(tmp_path / "s.db")]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_the_columns_of_the_tree_stand_below_each_other_and_five_fit() -> None:
    tokens = [b"a", b" confusion", b" misunderstanding", "日本語の文章".encode()]
    wide = {cell_len(beams._cell(quoted(t, beams.TREE), parent)) for t in tokens for parent in (None, 0, 4)}
    assert wide == {12} and 6 + 5 * 12 + 4 * 2 <= 80
