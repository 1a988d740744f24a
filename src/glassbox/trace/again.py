"""A recorded run under its model once more: the logits, distributions and inner values of any step, exactly.

In: a run and the model it was made with. Out: values equal in every bit to those of the run, since a value is computed
one way however the work is cut; the hash of each step's logits proves it.
But: it compares nothing and chooses nothing; replay.py, whatif.py, diff.py and explain.py do.

All ids go through the model once, in one prefill, and the pages stay: every later question costs a pass of one token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from glassbox.cache.pages import Cache
from glassbox.engine import Engine
from glassbox.errors import ParameterError, PromptError
from glassbox.model.execute import CHUNK
from glassbox.model.model import AnyModel, check_ids, forward
from glassbox.policy.policy import Policy, Shaped
from glassbox.policy.step import whole
from glassbox.text.tokenizer import Tokenizer
from glassbox.trace.record import Run
from glassbox.types import F32

if TYPE_CHECKING:
    from glassbox.stream import Stream


class Opened(Protocol):
    """What is needed of a model that is open; glassbox.Model has it."""

    @property
    def model(self) -> AnyModel: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def sha256(self) -> str: ...
    @property
    def stream(self) -> Callable[..., Stream]: ...
    @property
    def resume(self) -> Callable[..., Stream]: ...


def check_model(run: Run, opened: Opened) -> None:
    """Raises PromptError where the model that is open is not the one that made the run."""
    made, found = run.provenance.model_sha256, opened.sha256
    if made != found:
        raise PromptError(f"run {run.run_id} was made by another model: sha256 {made[:12]}…, not {found[:12]}…")


class Again:
    """Close it, or use it as a context manager: it holds pages of the cache."""

    def __init__(self, run: Run, opened: Opened) -> None:
        if run.retain == "none" or not run.prompt_ids:
            raise PromptError(f"run {run.run_id} was recorded without its ids: nothing of it can be computed again")
        self.run, self.opened = run, opened
        self.ids = (*run.prompt_ids, *run.ids)
        check_ids(opened.model, self.ids, 0)
        self._cache: Cache = opened.model.new_cache()

    def __enter__(self) -> Again:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self.opened.engine.lock:
            self._cache.release()

    def position(self, step: int) -> int:
        """Of the id whose row of logits chose the token of this step: the one before it. Raises ParameterError."""
        last = len(self.run.steps) - 1
        if last < 0:
            raise ParameterError("step", step, "left out: the run generated no token")
        return len(self.run.prompt_ids) - 1 + whole("step", step, 0, last, f"a step of the run, from 0 to {last}")

    def logits(self, first: int = 0, last: int | None = None) -> F32:
        """float32 [n, V]: the rows that chose the tokens of steps first … last (default: the run's last)."""
        begin = self.position(first)
        end = self.position(len(self.run.steps) - 1 if last is None else last)
        ids = self.ids[begin : end + 1]
        with self.opened.engine.lock:
            self._reach(begin)
            if self._cache.length == begin:  # then what is computed stays
                return self._forward(ids, self._cache, rows="all")[0]
            with self._fork(begin) as cache:
                return self._forward(ids, cache, rows="all")[0]

    def rows(self) -> Iterator[F32]:
        """The row of logits [V] of each step, in turn; no more of them are in memory than a pass makes."""
        n = len(self.run.steps)
        for first in range(0, n, CHUNK):
            yield from self.logits(first, min(first + CHUNK, n) - 1)

    def observe(self, step: int, points: Iterable[str]) -> dict[str, F32]:
        """The inner values at the position of this step, each [1, …] as in points.py. Raises UnknownPoint."""
        at = self.position(step)
        with self.opened.engine.lock, self._fork(at) as cache:
            return self._forward(self.ids[at : at + 1], cache, observe=points)[1]

    def shaped(self, step: int, logits: F32, policy: Policy | None = None) -> Shaped:
        """What the run's policy, or another, makes of the row of logits [V] of this step, with the run's history."""
        r = self.run.request
        own, seed = r.under(step)
        prompt, output = self.run.prompt_ids, self.run.ids[:step]
        return (policy or own).shape(logits, prompt, output, seed=seed, sequence=r.sequence)

    def _fork(self, length: int) -> _Forked:
        """A cache of the first `length` ids, computed where they are not yet. Windowed pages are never given back."""
        self._reach(length)
        fork = self._cache.fork()
        fork.truncate(length)
        return _Forked(fork)

    def _reach(self, length: int) -> None:
        if self._cache.length < length:
            self._forward(self.ids[self._cache.length : length], self._cache)

    def _forward(self, ids: Sequence[int], cache: Cache, **how: Any) -> tuple[F32, dict[str, F32]]:
        """With what the run did to inner values."""
        return forward(self.opened.model, ids, cache, interventions=self.run.request.interventions, **how)


class _Forked:
    """A cache for the length of a `with`."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def __enter__(self) -> Cache:
        return self._cache

    def __exit__(self, *_: object) -> None:
        self._cache.release()
