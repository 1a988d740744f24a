"""kill -9 at any moment: the store opens, what was recorded 100 ms ago is there, the run is interrupted."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_record import make_request, make_step

from glassbox.trace.store import open_store

SEED = 20250304
STEPS = 30  # of each run; the child makes one after another until it is killed
LATEST_S = 0.1

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here, and the victims are forked")

# Imports once and forks for each trial, so that 200 trials do not mean 200 imports.
NURSERY = """
import os, sys, time
from test_record import PROVENANCE, make_outcome, make_prompt, make_request, make_step
from glassbox.trace.record import Recorder
from glassbox.trace.store import open_store

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def victim(path):
    tell("pid", os.getpid())
    request, steps = make_request(), None
    store = open_store(path)
    while True:
        recorder = Recorder(store)
        tell("begin", recorder.begin(request, PROVENANCE), time.monotonic())
        recorder.prompt(make_prompt(request))
        for n in range({steps}):
            recorder.step(make_step(n, request))
            tell("step", recorder.run_id, time.monotonic())
            time.sleep(0.002)
        recorder.end(make_outcome({steps}, request))
        tell("end", recorder.run_id, time.monotonic())

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        victim(line.strip())
    os.waitpid(pid, 0)
    tell("dead")
"""


@pytest.fixture
def nursery() -> Iterator[subprocess.Popen[str]]:
    script = NURSERY.replace("{steps}", str(STEPS))
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def kill_once(nursery: subprocess.Popen[str], path: Path, delay: float) -> tuple[int, int]:
    """One victim, killed `delay` seconds after its start. Returns how many runs and steps the store holds."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(f"{path}\n")
    nursery.stdin.flush()
    pid = int(nursery.stdout.readline().split()[1])
    time.sleep(delay)
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    begun: dict[str, float] = {}
    stepped: dict[str, list[float]] = defaultdict(list)
    ended: dict[str, float] = {}
    while (words := nursery.stdout.readline().split()) != ["dead"]:
        what, run_id, when = words[0], words[1], float(words[2])
        if what == "begin":
            begun[run_id] = when
        elif what == "step":
            stepped[run_id].append(when)
        else:
            ended[run_id] = when

    request = make_request()
    with open_store(path) as store:
        shown = {r.id: r for r in store.runs(limit=None)}
        due = killed - LATEST_S
        assert {r for r, when in begun.items() if when < due} <= shown.keys() <= begun.keys()
        for run_id, summary in shown.items():
            assert store.verify(run_id) is None
            run = store.load(run_id)
            assert sum(when < due for when in stepped[run_id]) <= len(run.steps) == summary.tokens
            assert run.steps == tuple(make_step(n, request) for n in range(len(run.steps)))
            assert run.prompt_ids == request.encoding.ids
            if ended.get(run_id, killed) < due:
                assert run.finish_reason == "stop"
            if run_id not in ended:
                assert run.finish_reason == summary.finish_reason == "interrupted"
        assert sum(r.finish_reason == "interrupted" for r in shown.values()) <= 1
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()
    return len(shown), sum(r.tokens for r in shown.values())


def kill_often(nursery: subprocess.Popen[str], folder: Path, times: int) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    runs = steps = 0
    for k in range(times):
        # Some die while the store is being made.
        made = kill_once(nursery, folder / f"{k}.db", rng.choice([rng.uniform(0, 0.02), rng.uniform(0, 0.5)]))
        runs, steps = runs + made[0], steps + made[1]
    assert runs > times / 3, "too few runs survived for this test to mean anything"
    assert steps > 10 * times


def test_kill_ten_times(nursery: subprocess.Popen[str], tmp_path: Path) -> None:
    kill_often(nursery, tmp_path, 10)


@pytest.mark.slow
def test_kill_two_hundred_times(nursery: subprocess.Popen[str], tmp_path: Path) -> None:
    kill_often(nursery, tmp_path, 200)
