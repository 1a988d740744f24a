"""The team outside compiled code: what interrupts it, and how many it may be."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import random_gguf

from glassbox.errors import ParameterError
from glassbox.model.kernels import program as pr
from glassbox.model.kernels.build import load
from glassbox.model.kernels.program import HEADER, Program
from glassbox.model.threads import Job, Team, run_program, thread_count


def test_an_interrupted_job_is_run_to_its_end_first() -> None:
    """Ctrl-C while helpers may be in the job's memory: nobody may free it before they are done."""
    calls = []

    def run(job: int, thread: int) -> None:
        calls.append(thread)
        if len(calls) < 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Team(load()._replace(run=run), 1).run(Job(np.zeros(HEADER, np.int64), ()))
    assert calls == [0, 0, 0]


def test_a_team_may_go_while_its_helpers_look_at_a_finished_job(tmp_path: Path) -> None:
    """More helpers than cores come late to many jobs; what they look at is still there when the model is not."""
    from glassbox.model.model import TransformerModel, forward
    from glassbox.weights.gguf import read_gguf

    file = read_gguf(random_gguf.write(tmp_path / "m.gguf", "llama", "llama", [gguf.GGMLQuantizationType.Q8_0]))
    seen = set()
    for _ in range(150):
        model = TransformerModel(file, threads=6)
        seen.add(forward(model, [1, 2, 3], model.new_cache())[0].tobytes())
        del model
    assert len(seen) == 1


def helpers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("glassbox-")]


def gone(before: int, seconds: float) -> bool:
    """Whether no more helpers than `before` are left within so many seconds."""
    end = time.monotonic() + seconds
    while len(helpers()) > before and time.monotonic() < end:
        time.sleep(0.01)
    return len(helpers()) <= before


def nothing_to_do(team: Team) -> None:
    """Run an empty job, so that the helpers wait in compiled code."""
    run_program(team, Program())


def test_helpers_leave_with_their_team() -> None:
    """However many teams come and go: none waits out its patience, or burns a core."""
    gc.collect()
    before = len(helpers())
    for _ in range(200):
        team = Team(load(), 4)
        nothing_to_do(team)
        del team
    assert gone(before, 10)
    cpu = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - cpu < 0.1


def test_a_helper_in_compiled_code_is_sent_away() -> None:
    """serve returns at once when the slot says that the team is gone, long before its patience ends."""
    slot = np.zeros(8, np.int64)
    slot[1] = 1
    looks = []
    for _ in range(20):
        slot[0] = pr.IDLE
        begin = time.perf_counter()
        load().serve(slot.ctypes.data, 1)
        looks.append(time.perf_counter() - begin)
        assert slot[0] == pr.ASLEEP
    assert min(looks) < 2e-4  # a team's patience is 5000 system calls and more


@pytest.mark.parametrize("late", [0, 1, 2])
def test_an_interrupt_while_a_team_starts_leaves_no_helper(monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    gc.collect()
    before = len(helpers())
    start, started = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread.name)
        if len(started) > late:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            Team(load(), 4)
    assert len(started) == late + 1
    del caught
    gc.collect()
    assert gone(before, 10)


FORKED = """
import os, sys, threading, glassbox
model = glassbox.load(sys.argv[1], threads=3)
right = model.logits([1, 2, 3] * 20)[-1].tobytes()
child = os.fork()
if not child:
    same = all(model.logits([1, 2, 3] * 20)[-1].tobytes() == right for _ in range(20))
    names = sorted(t.name for t in threading.enumerate() if t.name.startswith("glassbox-"))
    os._exit(0 if same and names == ["glassbox-1", "glassbox-2"] and len(model.model.team._late) <= 3 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert model.logits([1, 2, 3] * 20)[-1].tobytes() == right
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_helpers_of_its_own(tmp_path: Path) -> None:
    path = random_gguf.write(tmp_path / "m.gguf", "llama", "llama", [gguf.GGMLQuantizationType.Q8_0])
    done = subprocess.run([sys.executable, "-c", FORKED, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])


INTERRUPTED = """
import signal, sys, glassbox
model = glassbox.load(sys.argv[1], threads=3)
right = model.logits([1, 2, 3] * 20)[-1].tobytes()
hit = 0
def ring(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, ring)
for i in range(400):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + i * 4e-6)
        got = model.logits([1, 2, 3] * 20)[-1].tobytes()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert got == right
    except KeyboardInterrupt:
        hit += 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert model.logits([1, 2, 3] * 20)[-1].tobytes() == right
print(hit)
"""


@pytest.mark.slow
def test_interrupts_at_any_moment_leave_the_model_whole(tmp_path: Path) -> None:
    path = random_gguf.write(tmp_path / "m.gguf", "llama", "llama", [gguf.GGMLQuantizationType.Q8_0])
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    assert int(done.stdout) > 20, "the interrupts came too late to test anything"


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True, 10**4])
def test_thread_counts_are_checked(tmp_path: Path, threads: object) -> None:
    from glassbox.model.model import TransformerModel
    from glassbox.weights.gguf import read_gguf

    path = random_gguf.write(tmp_path / "m.gguf", "llama", "llama", [gguf.GGMLQuantizationType.F32])
    with pytest.raises(ParameterError, match="threads is"):
        TransformerModel(read_gguf(path), threads=threads)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "right"), [("3", 3), ("", None), ("0", 0), ("-1", 0), ("abc", 0), ("1e3", 0)])
def test_glassbox_threads(monkeypatch: pytest.MonkeyPatch, value: str, right: int | None) -> None:
    monkeypatch.setenv("GLASSBOX_THREADS", value)
    if right == 0:
        with pytest.raises(ParameterError, match="GLASSBOX_THREADS"):
            thread_count()
    else:
        assert thread_count() == (right or thread_count())
