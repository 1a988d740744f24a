"""Ctrl-C at every line of what makes and records a token: text and steps of the trace agree whatever the moment."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import glassbox
from glassbox import engine, generation, interrupts, stream
from glassbox.interrupts import Uninterrupted
from glassbox.trace import record, writer

HERE = {m.__file__ for m in (engine, generation, interrupts, stream, record, writer)}
ASKED: dict[str, Any] = dict(seed=3, max_tokens=3, ignore_eos=True)


def interrupted_at(line: int, made: glassbox.stream.Stream) -> bool:
    """Take all steps, pressing Ctrl-C at that line of this thread in the files above; False: there are not so many."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in HERE:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    try:
        sys.settrace(trace)
        for _ in made:
            pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
        made.close()
    return left <= 0


@pytest.mark.parametrize("how", [{}, {"speculate": True}, {"beam": glassbox.Beam(2)}])
def test_an_interrupt_at_any_line(tmp_path: Path, how: dict[str, Any]) -> None:
    model = glassbox.load("bigram")
    line, step = 1, 7 if how else 1
    seen = set[tuple[int, str]]()
    with glassbox.open_store(tmp_path / "runs.db") as store:
        while interrupted_at(line, made := model.stream("ab", store=store, **ASKED, **how)):
            for run in (made.run, store.load(made.run.run_id)):
                assert run.text == "".join(s.text for s in run.steps), line
                assert run.usage.completion_tokens == len(run.steps) == len(run.text), line  # a character each
                assert [s.step for s in run.steps] == list(range(len(run.steps))), line
                seen.add((len(run.steps), run.finish_reason))
            assert not model.engine.running and not model.engine.waiting, line
            line += step
    assert line > 300 and {(0, "cancelled"), (3, "length")} <= seen
    assert how or {(1, "cancelled"), (2, "cancelled")} <= seen


def test_what_an_interrupt_waits_for() -> None:
    said = []
    with pytest.raises(KeyboardInterrupt), Uninterrupted():
        with Uninterrupted():
            signal.raise_signal(signal.SIGINT)
            said.append("inner")
        said.append("outer")
    assert said == ["inner", "outer"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_only_the_main_thread_hears_of_interrupts() -> None:
    def work() -> None:
        with Uninterrupted():
            done.append(signal.getsignal(signal.SIGINT))

    done = list[Any]()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]


def test_a_program_that_ignores_interrupts_goes_on_to() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Uninterrupted():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
