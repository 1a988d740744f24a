"""A generation under way: an iterator of steps that is recorded as it goes, and the run that comes of it."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from glassbox.engine import Engine
from glassbox.errors import StreamBusy
from glassbox.events import Event, PromptToken, Step
from glassbox.generation import Generation
from glassbox.interrupts import Uninterrupted
from glassbox.request import Provenance, Request
from glassbox.trace.again import Opened
from glassbox.trace.record import Recorder
from glassbox.trace.run import Run


class Stream:
    """Iterate for each token's `Step`; `run` is what happened so far, or in the end. Nothing is computed before the
    first step is asked for. Leaving the loop early, or closing, cancels it; what was made stays in the trace."""

    def __init__(self, opened: Opened, generation: Generation, recorder: Recorder, provenance: Provenance) -> None:
        self._generation, self._recorder, self._opened = generation, recorder, opened
        self.provenance = provenance
        recorder.begin(generation.request, provenance)
        for step in generation.inherited:
            recorder.step(step)
        self._steps = self._go(opened.engine)
        self._taken = threading.RLock()  # by the thread that takes a step

    @property
    def request(self) -> Request:
        return self._generation.request

    @property
    def inherited(self) -> tuple[Step, ...]:
        """The steps that a branch has from its parent: they are in the run, and are not iterated over."""
        return self._generation.inherited

    @property
    def run(self) -> Run:
        return replace(self._recorder.run, opened=self._opened)

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        with self._alone():
            return next(self._steps)

    def close(self) -> None:
        """Cancel, if it has not ended."""
        with self._alone():
            self._steps.close()
            self._finish(None)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two threads cannot take steps of one text at once, nor end it meanwhile. Raises StreamBusy."""
        if not self._taken.acquire(blocking=False):
            raise StreamBusy
        try:
            yield
        finally:
            self._taken.release()

    def __reduce__(self) -> Any:
        raise TypeError("a Stream cannot be pickled or copied: it is a generation under way; its run can be")

    def _go(self, engine: Engine) -> Generator[Step]:
        failure: BaseException | None = None
        try:
            for event in engine.stream(self._generation, self._record):
                if isinstance(event, Step):
                    yield event
        except BaseException as e:
            failure = e
            raise
        finally:
            self._finish(failure)

    def _record(self, event: Event) -> None:
        """Of a beam search the first step's candidates say that the prompt was read."""
        first = event[0] if isinstance(event, tuple) else event
        if first.step == len(self.inherited) and (self.request.beam is None or first is not event):
            self._recorder.prompt(self._prompt())
        if isinstance(event, tuple):
            self._recorder.beams(event)
        else:
            self._recorder.step(event)

    def _finish(self, failure: BaseException | None) -> None:
        """Record how it ended: by itself, by whoever left the loop, or by an error."""
        with Uninterrupted():
            cancelled = failure is None or isinstance(failure, GeneratorExit | KeyboardInterrupt)
            if cancelled:
                self._generation.stop("cancelled")
            if not isinstance(failure, Exception):  # what was made, though nobody asked for it yet
                while self._generation.inbox:
                    event = self._generation.inbox.popleft()
                    if not isinstance(event, Exception):
                        self._record(event)
            if self._generation.outcome is not None and cancelled:
                self._recorder.end(self._generation.outcome)
            elif failure is not None:
                self._recorder.fail(failure)
        self._recorder.close()

    def _prompt(self) -> list[PromptToken]:
        """The prompt's positions as a trace has them; the first ones may have come out of a cache."""
        encoding, reused = self.request.encoding, self._generation.cached
        known = dict(enumerate(self._generation.prompt_logprobs))
        return [
            PromptToken(
                position=i, id=token, bytes=self._opened.tokenizer.vocab.bytes_of(token), segment=encoding.segments[i],
                kv="reused" if i < reused else "computed", logprob=known.get(i),
            )
            for i, token in enumerate(encoding.ids)
        ]  # fmt: skip
