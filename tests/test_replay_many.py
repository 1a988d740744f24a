"""Runs of every kind, written by a process of one thread, come again in a fresh one of two, every bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import replay_runs

SEED = 20260514


def child(threads: int, *arguments: str) -> Any:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "replay_runs", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "GLASSBOX_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.model
def test_two_hundred_runs_come_again_in_another_process(tmp_path: Path, smollm2_path: Path) -> None:
    print(f"seed {SEED}")
    told = child(1, "write", str(tmp_path), str(SEED))
    print(told)
    assert {f"kind {kind}" for kind in replay_runs.KINDS} | {f"model {m}" for m in replay_runs.MODELS} <= set(told)
    assert told["prefix hits"] > 20 and told["guesses that were right"] > 5 and told["in company"] > 20
    assert {"ended stop", "ended length", "ended cancelled", "ended error"} <= set(told)
    found = child(2, "replay", str(tmp_path))
    assert found["wrong"] == []
    assert found["compared"] == told["steps"] > 2000
    assert found["rows"] == told["candidates of beams"] > 1000
    assert found["threads"] == ["1 -> 1", "1 -> 2"]  # the first is the table of the bigram
