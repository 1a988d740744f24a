"""The recorder that collects a run while it happens.

In: what a generation passes on: request, prompt tokens, steps, outcome. Out: a `Run`, in memory at once and
in a store a moment later. Recording only appends to a queue; a store that fails never stops or delays the
generation (`Recorder.problem` says why). But: it computes nothing. Ids, draws and hashes come from the
stages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassbox.beam import BeamRow
from glassbox.events import PromptToken, Step
from glassbox.outcome import Outcome
from glassbox.request import Provenance, Request
from glassbox.trace.alive import owner
from glassbox.trace.journal import Begin, End, Item, Journal, Tried
from glassbox.trace.rows import Level, Retain
from glassbox.trace.run import Run
from glassbox.trace.runid import new_run_id

if TYPE_CHECKING:
    from glassbox.trace.store import Store

__all__ = ["Recorder", "Run"]


class Recorder:
    """Collects one run. What it is given is in the store within 100 ms; without a store, in memory only.

    Call begin, then prompt and step as things happen, then end or fail, then close. None of them raises
    because of the store.
    """

    def __init__(self, store: Store | None, *, level: Level = "look", retain: Retain = "text") -> None:
        self.level, self.retain = level, retain
        self._writer = None if store is None else store.writer
        self._journal: Journal | None = None
        self._begin: Begin | None = None
        self._prompt: dict[int, PromptToken] = {}
        self._steps: list[Step] = []
        self._tried: list[BeamRow] = []
        self._end: End | None = None
        self._closed = False
        self.run_id = ""

    def begin(self, request: Request, provenance: Provenance, prompt_tokens: Sequence[PromptToken] = ()) -> str:
        """Start the run and give it its id. Committed at once, so that one that dies in prefill is known."""
        if self._begin is not None:
            raise RuntimeError("a recorder records one run: it has begun already")
        self.run_id = new_run_id()
        now = time.time_ns() // 1_000_000
        self._begin = Begin(now, owner(), request, provenance, tuple(prompt_tokens))
        self._prompt.update((token.position, token) for token in prompt_tokens)
        self._journal = Journal(self.run_id, self.level, self.retain)
        self._put(self._begin)
        return self.run_id

    def prompt(self, tokens: Sequence[PromptToken]) -> None:
        """Prompt positions the model has been through; a later call may replace what an earlier one said."""
        self._prompt.update((token.position, token) for token in tokens)
        self._put(tuple(tokens))

    def step(self, step: Step) -> None:
        self._steps.append(step)
        self._put(step)

    def beams(self, rows: tuple[BeamRow, ...]) -> None:
        """The candidates of one step of a beam search."""
        self._tried += rows
        self._put(Tried(rows))

    def end(self, outcome: Outcome) -> None:
        self._finish(End(outcome, outcome.ending.finish_reason))

    def fail(self, exc: BaseException) -> None:
        """It ended by an exception: Ctrl-C counts as cancelled, anything else as an error."""
        cancelled = isinstance(exc, KeyboardInterrupt)
        # An error's words may quote the prompt.
        words = f"{type(exc).__name__}: {exc}" if self.retain == "text" else type(exc).__name__
        ledger = getattr(exc, "ledger", ()) if self.level == "look" else ()
        self._finish(End(None, "cancelled" if cancelled else "error", None if cancelled else words, tuple(ledger)))

    def close(self) -> None:
        """Mark a run that has not ended as interrupted, and wait until the store has what it can have."""
        if self._begin is not None and self._end is None:
            self._finish(End(None, "interrupted"))
        if self._closed or self._writer is None or self._journal is None:
            return
        self._closed = True
        if not self._writer.flush():
            self._journal.problem = self._journal.problem or "incomplete: the store did not answer in time"

    @property
    def problem(self) -> str | None:
        """Why the store holds less than happened, or None. Settled once `close` has returned."""
        return self._journal.problem if self._journal else None

    @property
    def run(self) -> Run:
        """The run so far, with everything that was given, whatever the store keeps of it."""
        if self._begin is None:
            raise RuntimeError("the run has not begun")
        end = self._end
        status = "running" if end is None else "done" if end.outcome else end.finish_reason
        prompt = [self._prompt[position] for position in sorted(self._prompt)]
        return Run.from_parts(
            self.run_id,
            self._begin.request,
            self._begin.provenance,
            prompt,
            self._steps,
            end.outcome if end else None,
            created_ms=self._begin.created_ms,
            status=status,
            error=end.error if end else None,
            failed=end.failed if end else (),
            level=self.level,
            tried=tuple(self._tried),
            problem=self.problem,
            owner=self._begin.owner,
            recorded=self._journal is not None and self._writer is not None and self._journal.kept,
        )

    def _finish(self, end: End) -> None:
        if self._end is None:  # the first ending is the true one
            self._end = end
            self._put(end)

    def _put(self, item: Item) -> None:
        if self._writer is not None and self._journal is not None:
            self._writer.put(self._journal, item)
