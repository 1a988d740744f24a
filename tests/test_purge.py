"""Retention: what is not to be kept is in no byte of the store's files; who writes beside a purge loses nothing."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_record import PROVENANCE, SECRET, make_outcome, make_prompt, make_request, make_step, record

import glassbox
from glassbox.cli.main import run as cli
from glassbox.errors import StoreError
from glassbox.trace import purge as purge_module
from glassbox.trace import sqlite
from glassbox.trace.purge import purge
from glassbox.trace.record import Recorder, Run
from glassbox.trace.store import open_store

DAY_MS = 86_400_000
PROMPT, OUTPUT = "Zürich’s heron 😀 says", "an öutput with\nlines"


def spellings(text: str) -> list[bytes]:
    """How a text may stand in a file."""
    escaped = json.dumps(text)[1:-1]
    kept = json.dumps(text, ensure_ascii=False)[1:-1]
    return [
        text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be"), escaped.encode(), kept.encode(),
        escaped.upper().encode(), json.dumps(escaped)[1:-1].encode(), text.encode("utf-8").hex().encode(),
    ]  # fmt: skip


def told(folder: Path, *texts: str) -> list[str]:
    """Files that hold one of the texts, or a longer piece of it, in whatever spelling."""
    pieces = {text[i : i + 8] for text in texts for i in range(0, max(1, len(text) - 8), 4)}
    found = []
    for file in sorted(folder.rglob("*")):
        data = file.read_bytes() if file.is_file() else b""
        found += [f"{file.name}: {piece!r}" for piece in pieces if any(s in data for s in spellings(piece))]
    return found


def written(path: Path, retain: str = "text", **how: Any) -> Run:
    """A run whose prompt and output are easy to search for."""
    request = make_request()
    encoding = replace(
        request.encoding, text=PROMPT, lossy=(PROMPT,), notes=(PROMPT,),
        segment_list=tuple(replace(s, text=PROMPT) for s in request.encoding.segment_list),
    )  # fmt: skip
    messages = ({"role": "user", "content": PROMPT},)
    request = replace(request, encoding=encoding, messages=messages, stop=(OUTPUT,), chat={"tools": [PROMPT]})
    with open_store(path) as store:
        recorder = Recorder(store, retain=retain)  # type: ignore[arg-type]
        recorder.begin(request, PROVENANCE, tuple(replace(t, bytes=PROMPT.encode()) for t in make_prompt(request)))
        for n in range(how.get("steps", 4)):
            recorder.step(replace(make_step(n, request), text=OUTPUT, bytes=OUTPUT.encode()))
        recorder.end(replace(make_outcome(4, request), text=OUTPUT))
        recorder.close()
        return recorder.run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "runs.db"


def test_the_search_finds_what_is_there(path: Path) -> None:
    with open_store(path):
        written(path)
        assert {line.partition(":")[0] for line in told(path.parent, PROMPT)} >= {"runs.db-wal"}
        assert told(path.parent, OUTPUT)
    assert told(path.parent, PROMPT) and told(path.parent, OUTPUT)


def test_with_retain_none_nothing_is_ever_written(path: Path) -> None:
    with open_store(path) as store:
        written(path, "none")
        recorder = Recorder(store, retain="none")
        recorder.begin(make_request(), PROVENANCE)
        recorder.fail(ValueError(PROMPT))
        recorder.close()
        assert told(path.parent, PROMPT, OUTPUT, SECRET) == []  # also with its -wal
    assert told(path.parent, PROMPT, OUTPUT, SECRET) == []


def test_the_flag_reaches_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.db"
    words = ["--model", "bigram", "--max-tokens", "9", "--seed", "3", "--store", str(path)]
    for retain in ("text", "ids", "none"):
        assert cli(["trace", "a b c a b c", "--retain", retain, *words]) == 0
        with open_store(path, readonly=True) as store:
            run = store.load()
        assert run.retain == retain and bool(run.prompt_text) == (retain == "text")
        assert bool(run.prompt_ids) == bool(run.ids) == (retain != "none")
    capsys.readouterr()
    assert cli(["trace", "a", "--retain", "all", *words]) == 2
    assert capsys.readouterr().err == "glassbox: retain is 'all', but must be one of text, ids, none\n"
    alone = tmp_path / "none" / "s.db"
    words[-1] = str(alone)
    assert cli(["trace", "a b c a b c", "--retain", "none", *words]) == 0
    text = capsys.readouterr().out
    assert "a b c a b c" in text  # it is shown all the same
    assert told(alone.parent, "a b c a b c") == []


def test_after_a_purge_no_byte_is_left(path: Path) -> None:
    """With a store open beside it that has read and written the run."""
    with open_store(path) as other:
        gone = written(path, steps=300)
        kept = record(Recorder(other))
        assert other.load(gone.run_id).text == OUTPUT
        big = sum(f.stat().st_size for f in path.parent.iterdir())
        done = purge(path, ids=[gone.run_id])
        assert done.gone == (gone.run_id,) and done.running == ()
        assert told(path.parent, PROMPT, OUTPUT) == []
        assert other.load() == other.load(kept.run_id) and other.verify() is None
        small = sum(f.stat().st_size for f in path.parent.iterdir())
        assert small < big / 3 and done.freed > big / 2
        again = record(Recorder(other))  # the store that was open goes on, though its file has become smaller
        assert again.problem is None and again.recorded
    with open_store(path, readonly=True) as store:
        assert [r.id for r in store.runs()] == [again.run_id, kept.run_id]
        assert store.verify(again.run_id) is None
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert told(path.parent, PROMPT, OUTPUT) == [] and told(path.parent, SECRET)


def test_by_age(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() // 1_000_000
    runs = []
    for age in (40, 31, 29, 0):
        monkeypatch.setattr(time, "time_ns", lambda age=age: (now - age * DAY_MS) * 1_000_000)
        runs.append(written(path).run_id)
    monkeypatch.undo()
    assert purge(path, before_ms=now - 30 * DAY_MS, dry_run=True).gone == tuple(runs[:2])
    with open_store(path, readonly=True) as store:
        assert len(store.runs()) == 4
    assert purge(path, before_ms=now - 30 * DAY_MS).gone == tuple(runs[:2])
    with open_store(path, readonly=True) as store:
        assert [r.id for r in store.runs()] == runs[:1:-1]


def test_what_is_being_written_stays(path: Path) -> None:
    with open_store(path) as store:
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE)
        recorder.step(make_step(0, make_request()))
        store.flush()
        done = purge(path, before_ms=2**60)
        assert done.gone == () and done.running == (recorder.run_id,)
        recorder.step(make_step(1, make_request()))
        recorder.end(make_outcome(2, make_request()))
        recorder.close()
        assert recorder.problem is None
        assert store.load(recorder.run_id) == recorder.run


WRITER = """
import sys, time
from pathlib import Path
from test_record import PROVENANCE, make_outcome, make_request, make_step
from glassbox.trace.record import Recorder
from glassbox.trace.store import open_store
request = make_request()
with open_store(Path(sys.argv[1])) as store:
    for _ in range(4):
        recorder = Recorder(store)
        print(recorder.begin(request, PROVENANCE), flush=True)
        for n in range(60):
            recorder.step(make_step(n, request))
            time.sleep(0.01)
        recorder.end(make_outcome(60, request))
        recorder.close()
        print(recorder.problem, flush=True)
"""


def python(code: str, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, env=env)


@pytest.mark.slow
def test_another_process_loses_nothing(path: Path) -> None:
    """Purges without a pause while it writes four runs."""
    gone = {written(path, steps=60).run_id for _ in range(6)}
    writer = python(WRITER, str(path))
    try:
        while writer.poll() is None:
            for run_id in sorted(gone):
                purge(path, ids=[run_id])
                record_one = written(path, steps=60)
                gone = (gone - {run_id}) | {record_one.run_id}
        out = writer.communicate()[0].split()
    finally:
        writer.kill()
    assert len(out) == 8 and out[1::2] == ["None"] * 4
    purge(path, ids=list(gone))
    with open_store(path, readonly=True) as store:
        assert {r.id for r in store.runs(None)} == set(out[::2])
        for run_id in out[::2]:
            assert store.verify(run_id) is None and len(store.load(run_id).steps) == 60
    assert told(path.parent, PROMPT, OUTPUT) == []


PURGER = """
import sys
from pathlib import Path
from glassbox.trace.purge import purge
print("go", flush=True)
purge(Path(sys.argv[1]), before_ms=2**60)
"""


@pytest.mark.parametrize("after_ms", [0, 1, 2, 4, 7, 12, 20, 35])
@pytest.mark.slow
def test_a_purge_that_is_killed_leaves_a_sound_store(path: Path, after_ms: int) -> None:
    runs = {written(path, steps=150).run_id for _ in range(5)}
    purger = python(PURGER, str(path))
    assert purger.stdout is not None and purger.stdout.readline() == "go\n"
    time.sleep(after_ms / 1000)
    purger.send_signal(signal.SIGKILL)
    purger.communicate()
    with open_store(path, readonly=True) as store:
        left = {r.id for r in store.runs()}
        assert left in (runs, set())
        assert all(store.verify(run_id) is None for run_id in left)
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    purge(path, before_ms=2**60)  # ends the work, whether or not a run is left
    assert told(path.parent, PROMPT, OUTPUT) == []


def test_who_reads_holds_it_up_and_is_told_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = written(path)
    monkeypatch.setattr(purge_module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)  # how long each try waits
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM run").fetchone()
        with pytest.raises(StoreError, match=r"while another process reads: purge again$"):
            purge(path, ids=[gone.run_id])
    purge(path)
    assert told(path.parent, PROMPT, OUTPUT) == []


def test_who_records_goes_on_in_the_smaller_file(path: Path) -> None:
    gone = [written(path, steps=200).run_id for _ in range(3)]
    with open_store(path) as store:
        first = record(Recorder(store))
        store.flush()
        before = path.stat().st_size
        purge(path, ids=gone)
        assert path.stat().st_size < before
        second = Recorder(store)
        run = record(second)
        store.flush()
        assert second.problem is None and {r.id for r in store.runs()} == {first.run_id, run.run_id}


def test_keys_are_given_again_without_harm(path: Path) -> None:
    first = written(path)
    purge(path, ids=[first.run_id])
    with open_store(path) as store:
        second = record(Recorder(store))
        assert store.load() == second
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("SELECT count(*), max(n) FROM run").fetchone() == (1, 1)


def test_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", str(path)]
    runs = [written(path).run_id for _ in range(3)]
    assert cli(["purge", "--older-than", "1d", *store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"purged": [], "running": [], "freed_bytes": 0, "dry_run": False}
    assert cli(["purge", "--run", runs[0], "--dry-run", *store]) == 0
    assert runs[0] in capsys.readouterr().out
    assert cli(["purge", "--run", runs[0], "--run", "last", *store]) == 0
    assert capsys.readouterr().out.startswith("purged   2 runs, ")
    with open_store(path, readonly=True) as opened:
        assert [r.id for r in opened.runs()] == [runs[1]]
    for words in ([], ["--older-than", "30"], ["--older-than", "-1d"], ["--older-than", "9" * 30 + "d"],
                  ["--older-than", "1y"], ["--run", "zzz"], ["--older-than", "999999999w"]):  # fmt: skip
        assert cli(["purge", *words, *store]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "Traceback" not in err
    nowhere = path.parent / "no.db"
    assert cli(["purge", "--older-than", "1d", "--store", str(nowhere)]) == 2 and not nowhere.exists()
    assert "there is no such file" in capsys.readouterr().err
    with open_store(path, readonly=True) as opened:
        assert len(opened.runs()) == 1


def test_a_model_run_can_be_forgotten(path: Path) -> None:
    with open_store(path) as store:
        run = glassbox.load("bigram").generate("abcabc abc", seed=1, max_tokens=20, store=store)
    purge(path, ids=[run.run_id])
    assert told(path.parent, "abcabc abc", run.text) == []
