"""One stream, several threads: one takes its steps, the others are told."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

import glassbox
from glassbox.errors import StreamBusy
from glassbox.events import Step
from glassbox.stream import Stream


def test_only_one_thread_at_a_time_takes_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()
    took: list[Step] = []

    def held_up(steps: Generator[Step]) -> Generator[Step]:
        inside.set()
        assert go_on.wait(60)
        yield from steps

    with glassbox.load("bigram").stream("ab", seed=1, max_tokens=4) as stream:
        monkeypatch.setattr(stream, "_steps", held_up(stream._steps))
        reader = threading.Thread(target=lambda: took.append(next(stream)))
        reader.start()
        assert inside.wait(60)
        for asked in (next, Stream.close):
            with pytest.raises(StreamBusy, match=r"^this stream is being read by another thread"):
                asked(stream)
        go_on.set()
        reader.join(60)
        rest = list(stream)  # another thread may go on afterwards
    assert [*took, *rest] == list(stream.run.steps) and len(rest) == 3
    assert stream.run.finish_reason == "length"
