"""A store made before a column was added: brought up to date by whoever writes next, refused in words until then."""

from __future__ import annotations

import re
import sqlite3
from importlib import resources
from pathlib import Path

import pytest

import glassbox
from glassbox.errors import StoreError
from glassbox.trace.sqlite import APPLICATION_ID, VERSION

ADDED = ("options", "drafted", "reuse_why")


def test_missing_columns_are_added(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    schema = resources.files("glassbox.trace").joinpath("schema.sql").read_text(encoding="utf-8")
    old = re.sub(rf"^  ({'|'.join(ADDED)}) .*\n", "", schema, flags=re.MULTILINE)
    old = re.sub(r",(\s*--[^\n]*)?\n\) WITHOUT", r"\n) WITHOUT", old)
    assert all(f"  {name} " not in old for name in ADDED)
    with sqlite3.connect(path) as conn:
        conn.executescript(old + f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION};")
    conn.close()
    with pytest.raises(StoreError, match="made by an older Glassbox"):
        glassbox.open_store(path, readonly=True)
    with glassbox.open_store(path) as store:
        run = glassbox.load("bigram").generate("ab", seed=1, max_tokens=3, store=store)
        assert run.problem is None and store.load(run.run_id) == run
    with glassbox.open_store(path, readonly=True) as store:
        assert len(store.runs()) == 1
