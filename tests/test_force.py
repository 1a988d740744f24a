"""--force on a damaged run: whatever is NULL in it, replay, tensor, explain and diff go on or say why in one line."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

import glassbox
from glassbox.cli.app import invoke
from glassbox.errors import EmptySupport
from glassbox.trace.store import open_store

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is whole, one of ids alone, a beam search, one that failed."""
    path, model = tmp_path_factory.mktemp("world") / "runs.db", glassbox.load("bigram")
    with open_store(path) as store:
        how = dict(seed=3, max_tokens=3, ignore_eos=True, store=store, policy=glassbox.Policy(1.1, top_k=3))
        model.generate("ab", **how)
        model.generate("ab", level="ids", retain="ids", **how)
        model.generate("ab", **how, beam=glassbox.Beam(2))
        with pytest.raises(EmptySupport):
            model.generate("ab", **how | {"policy": glassbox.Policy(allowed_ids=(1, 2), no_repeat_ngram_size=1)})
    return path


@pytest.mark.slow
def test_nothing_where_something_belongs(world: Path, tmp_path: Path, capsys: Capture) -> None:
    path = str(shutil.copy(world, tmp_path / "runs.db"))
    conn = sqlite3.connect(path, isolation_level=None)
    names = [name for (name,) in conn.execute("SELECT id FROM run ORDER BY n")]
    codes, tried = set[int](), 0
    for table in ("run", "segment", "position", "ledger", "candidate", "beam"):
        info = conn.execute(f"PRAGMA table_info({table})").fetchall()
        key = [c[1] for c in info if c[5]]
        for column in [c[1] for c in info if not c[3] and not c[5]]:
            which = f"SELECT {', '.join(key)}, {column} FROM {table} WHERE {column} IS NOT NULL GROUP BY "
            group = "n" if table == "run" else f"run, {'step IS NULL' if table == 'position' else 'i > 0'}"
            for *at, value in conn.execute(which + group).fetchall():
                where = " AND ".join(f"{k} = ?" for k in key)
                conn.execute(f"UPDATE {table} SET {column} = NULL WHERE {where}", at)
                name = names[at[0] - 1]
                for command in (
                    ["replay", name], ["tensor", name, "--at", "1", "--point", "embed"], ["explain", name, "--at", "1"],
                    ["diff", name, names[0]], ["diff", names[0], name],
                ):  # fmt: skip
                    code = invoke([*command, "--force", "--store", path])
                    err = capsys.readouterr().err
                    assert code in (0, 1) or (code == 2 and err.count("\n") == 1), (command, table, column, err)
                    codes.add(code)
                    tried += 1
                conn.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *at))
    conn.close()
    assert tried > 300 and codes == {0, 1, 2}


@pytest.mark.parametrize("command", [["explain", "last", "--at", "1"], ["diff", "last", "last"]])
def test_force_goes_on_with_a_damaged_trace(tmp_path: Path, capsys: Capture, command: list[str]) -> None:
    path = tmp_path / "runs.db"
    with open_store(path) as store:
        glassbox.load("bigram").generate("ab", seed=3, max_tokens=3, store=store)
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE position SET policy_ns = policy_ns + 1 WHERE step = 1")
    conn.close()
    assert invoke([*command, "--store", str(path)]) == 2
    assert "is damaged at step 1" in capsys.readouterr().err
    assert invoke([*command, "--force", "--store", str(path)]) == 0
    assert capsys.readouterr().err == ""
