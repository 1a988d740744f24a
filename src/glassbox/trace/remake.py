"""A recorded run made again: its state machine (generation.py, search.py) once more, along the recorded ids.

In: a run and its model. Out: the events it gives: the tokens, the candidates of a beam search, the error that ends it.
One sequence takes its rows of logits from one prefill of the recorded ids, since that gives each step the logits that a
pass of its own would; further passes of a policy go step by step. A beam search has many sequences, of which one was
kept, so it is searched again, alone.
But: nothing is compared here, and nothing of what earlier prompts left in the cache is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from glassbox.engine import Engine
from glassbox.errors import NonFiniteLogits
from glassbox.events import Event, Step
from glassbox.generation import Generation
from glassbox.model.finite import located
from glassbox.passes import passes_for
from glassbox.policy.policy import Policy
from glassbox.policy.shaped import FORWARD
from glassbox.search import BeamSearch
from glassbox.trace.again import Again
from glassbox.trace.run import Run
from glassbox.types import F32, Sums

ROWS = 64  # of logits held at once
OUTSIDE = ("time", "cancelled")  # endings that come from without: up to there it is made again
Made = Event | list[float | None]  # the last: how likely each id of the prompt was
FAILING = ("EmptySupport", "GrammarError", "NonFiniteLogits")  # errors that the same ids bring about again


def failed(run: Run) -> bool:
    """Whether it ended by an error that comes again, and all before it is known; one of memory, say, does not."""
    return run.status == "error" and not run.problem and (run.error or "").partition(":")[0] in FAILING


class Sequence:
    """One sequence. `events` goes on as long as it is asked; the ids it makes must be the recorded ones till then."""

    def __init__(self, again: Again) -> None:
        r, opened = again.run.request, again.opened
        self.again, self.run = again, again.run
        passes = passes_for(opened.model, r.policy, r.encoding.ids, r.interventions)
        self.generation = Generation(r, opened.tokenizer, opened.model.new_cache(), opened.model.context, passes)
        self._passes_of = r.policy  # whose further passes the generation has

    def events(self) -> Generator[Made]:
        """A step for each recorded one; where the run failed, what came instead of the next. Raises what the run did,
        or what this policy and model do."""
        try:
            if self.run.request.prompt_logprobs:
                yield self._read()
            for number, (row, sums) in enumerate(self._rows()):
                yield self._advance(number, row, sums)
                if self.generation.done:
                    return
            if failed(self.run):
                row = self.again.after()
                number = len(self.run.steps)
                yield self._advance(number, row, self._sums(row[None], number)[0])
        except NonFiniteLogits as e:
            model = self.again.opened.model
            raise (
                located(e, model, self.generation.ids, self.run.request.interventions) if e.where == FORWARD else e
            ) from None
        finally:
            self._release()

    def _release(self) -> None:
        if self.generation.passes is not None:
            self.generation.passes.release()

    def _advance(self, number: int, row: F32, sums: Sums) -> Step:
        r = self.run.request
        self.generation.force = self.run.ids[number] if r.forced(number) else None
        self._under(r.under(number)[0])
        if self.generation.passes is None:
            return self.generation.advance(row, 0, sums=sums)
        with self.again.before(number) as cache:
            self.generation.cache = cache
            return self.generation.advance(row, 0, sums=sums)

    def _under(self, policy: Policy) -> None:
        """Of what a branch has from its parent, the parent's policy may need other passes."""
        if policy != self._passes_of:
            self._release()
            r = self.run.request
            self.generation.passes = passes_for(self.again.opened.model, policy, r.encoding.ids, r.interventions)
            self._passes_of = policy

    def _read(self) -> list[float | None]:
        for first in range(0, len(self.run.prompt_ids) - 1, ROWS):
            rows = self.again.prompt_logits(first, min(first + ROWS, len(self.run.prompt_ids) - 1))
            self.generation.read(rows, self._sums(rows, 0))
        return self.generation.prompt_logprobs

    def _rows(self) -> Iterator[tuple[F32, Sums]]:
        """The logits [V] of each step, with the sums the engine takes of them."""
        for first in range(0, len(self.run.steps), ROWS):
            rows = self.again.logits(first, min(first + ROWS, len(self.run.steps)) - 1)
            yield from zip(rows, self._sums(rows, first), strict=True)

    def _sums(self, rows: F32, first: int) -> list[Sums]:
        """Of the rows of steps from `first` on."""
        betas = [self.run.request.under(first + i)[0].betas for i in range(len(rows))]
        with self.again.opened.engine.lock:
            return self.again.opened.model.sum_rows(rows, betas)


class Search:
    """A beam search: its candidates step by step, then the steps of the best hypothesis."""

    def __init__(self, again: Again) -> None:
        r, opened = replace(again.run.request, time_limit=None, reuse=False), again.opened
        self.again, self.run = again, again.run
        self.generation = BeamSearch(r, opened.tokenizer, opened.model.new_cache(), opened.model.context)

    def events(self) -> Generator[Made]:
        """Of a search that was ended from without, or broke off, as far as it came. Raises what the search does."""
        lock, run, made = self.again.opened.engine.lock, self.run, 0
        alone = failed(run) or (run.outcome is not None and run.outcome.ending.kind not in OUTSIDE)
        limit = None if alone or run.beams is None else run.beams.steps
        stream = Engine(self.again.opened.model).stream(self.generation)
        try:
            while limit is None or made < limit or self.generation.done:
                with lock:
                    event = next(stream, None)
                if event is None:
                    return
                if made == 0 and run.request.prompt_logprobs:
                    yield self.generation.prompt_logprobs
                made += isinstance(event, tuple)
                yield event
            with lock:
                self.generation.stop(run.outcome.ending.kind if run.outcome else "error")
            yield from (e for e in self.generation.inbox if isinstance(e, Step))
        finally:
            with lock:
                stream.close()
