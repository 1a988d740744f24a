"""A recorded run under its model once more: the logits, distributions and inner values of any step, exactly.

In: a run and the model it was made with. Out: values equal in every bit to those of the run, since a value is computed
one way however the work is cut; the hash of each step's logits proves it.
But: it compares nothing and chooses nothing; replay.py, whatif.py, diff.py and explain.py do.

All ids go through the model once, in one prefill, and the pages stay: every later question costs a pass of one token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from glassbox.cache.pages import Cache
from glassbox.engine import Engine
from glassbox.errors import ParameterError, PromptError
from glassbox.model.execute import CHUNK
from glassbox.model.intervene import digest
from glassbox.model.model import AnyModel, check_ids, forward
from glassbox.passes import Passes, passes_for
from glassbox.policy.grammar import Grammar
from glassbox.policy.guide import Guide, compiled
from glassbox.policy.policy import Policy, Shaped
from glassbox.policy.step import Views, whole
from glassbox.text.tokenizer import Tokenizer
from glassbox.trace.run import Run
from glassbox.types import F32

if TYPE_CHECKING:
    from glassbox.stream import Stream

# Apart from prompts: what is looked at later must not change what is reused meanwhile. And what a prompt left has gaps,
# where windowed layers gave pages back: earlier steps could not be asked for (Cache.reserve would raise RuntimeError).
SALT = "glassbox.again"


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
    def tokenizer_sha256(self) -> str: ...
    @property
    def stream(self) -> Callable[..., Stream]: ...
    @property
    def resume(self) -> Callable[..., Stream]: ...
    @property
    def fitted(self) -> Callable[..., Policy]: ...


def check_model(run: Run, opened: Opened) -> None:
    """Raises PromptError where the model that is open is not the one that made the run."""
    made, found = run.provenance.model_sha256, opened.sha256
    if made != found:
        raise PromptError(f"run {run.run_id} was made by another model: sha256 {made[:12]}…, not {found[:12]}…")


def check_kv(run: Run, opened: Opened) -> None:
    """Raises PromptError where keys and values are kept in another way than the run kept them: the logits are others,
    and what differs would look like the work of a policy or a draw."""
    kept, keeps = run.provenance.kv, opened.model.new_cache().pool.shape.kind
    if kept != keeps:
        why = f"run {run.run_id} was made with keys and values as {kept}, not {keeps}: load it so"
        raise PromptError(why, param="kv")


class Again:
    """Close it, or use it as a context manager: it holds pages of the cache.

    keep: pages are taken from the model's store of prefixes and left there, for the next question about the run.
    """

    def __init__(self, run: Run, opened: Opened, *, keep: bool = False) -> None:
        if run.retain == "none" or not run.prompt_ids:
            raise PromptError(f"run {run.run_id} was recorded without its ids: nothing of it can be computed again")
        self.run, self.opened = run, opened
        self.ids = (*run.prompt_ids, *run.ids)
        check_ids(opened.model, self.ids, 0)
        self._cache: Cache = opened.model.new_cache()
        self._guides: dict[Grammar, Guide] = {}
        self._passes: tuple[Policy, int, Passes] | None = None  # and the step they were last asked at
        self._prefixes = opened.engine.prefixes if keep else None
        self._key = SALT, digest(run.request.interventions)
        if self._prefixes is not None:
            with opened.engine.lock:
                self._prefixes.attach(self._cache, self.ids, *self._key)

    def __enter__(self) -> Again:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self.opened.engine.lock:
            if self._prefixes is not None:
                self._prefixes.insert(self._cache, self.ids, *self._key)
            self._cache.release()
            self._forget()

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
        with self.opened.engine.lock, self._fork(begin) as cache:
            return self._forward(self.ids[begin : end + 1], cache, rows="all")[0]

    def rows(self) -> Iterator[F32]:
        """The row of logits [V] of each step, in turn; no more of them are in memory than a pass makes."""
        n = len(self.run.steps)
        for first in range(0, n, CHUNK):
            yield from self.logits(first, min(first + CHUNK, n) - 1)

    def prompt_logits(self, first: int, end: int) -> F32:
        """float32 [n, V]: the rows of the prompt's positions first … end - 1, each about the id behind it."""
        with self.opened.engine.lock, self._fork(first) as cache:
            return self._forward(self.ids[first:end], cache, rows="all")[0]

    def observe(self, step: int, points: Iterable[str]) -> dict[str, F32]:
        """The inner values at the position of this step, each [1, …] as in points.py. Raises UnknownPoint."""
        return self.inside(step, points)[1]

    def inside(self, step: int, points: Iterable[str], *, all_positions: bool = False) -> tuple[F32, dict[str, F32]]:
        """The logits [1, V] that chose the token of this step, and, of the same pass, the inner values at its position,
        each [1, …], or at all positions up to it, each [T, …]. Raises UnknownPoint."""
        at = self.position(step)
        begin = 0 if all_positions else at
        with self.opened.engine.lock, self._fork(begin) as cache:
            return self._forward(self.ids[begin : at + 1], cache, observe=points)

    def after(self) -> F32:
        """float32 [V]: the row behind all ids, of which no token came; what a run that failed met."""
        with self.opened.engine.lock, self._fork(len(self.ids) - 1) as cache:
            row: F32 = self._forward(self.ids[-1:], cache)[0][0]
            return row

    @contextmanager
    def before(self, step: int) -> Iterator[Cache]:
        """A cache of the ids before the token of this step (one more than there are: of all), while the engine is held.
        It may be forked; nothing is to be written to it."""
        with self.opened.engine.lock, self._fork(len(self.run.prompt_ids) + step) as cache:
            yield cache

    def shaped(self, step: int, logits: F32, policy: Policy | None = None) -> Shaped:
        """What the run's policy, or another, makes of the row of logits [V] of this step, with the run's history.

        Whatever a policy goes by is there: the parser of its grammar, how likely each token was as it was drawn, and
        further passes of the model. Raises ParameterError, GrammarError where the output so far is not of its grammar.
        """
        self.position(step)
        r = self.run.request
        own, seed = r.under(step)
        used = policy or own
        with self.before(step) if used.needs else nullcontext() as cache:
            return used.shape(
                logits, self.run.prompt_ids, self.run.ids[:step], seed=seed, sequence=r.sequence,
                guide=self._guide(used.grammar), views=None if cache is None else self._views(step, used, cache),
                logprobs=[s.choice.logprob_final for s in self.run.steps[:step]],
            )  # fmt: skip

    def _guide(self, grammar: Grammar | None) -> Guide | None:
        if grammar is not None and grammar not in self._guides:
            self._guides[grammar] = compiled(grammar, self.opened.tokenizer.vocab, self.opened.tokenizer.eos_ids)
        return None if grammar is None else self._guides[grammar]

    def _views(self, step: int, policy: Policy, cache: Cache) -> Views:
        """Passes go forward only: for an earlier step, or another policy, there are new ones."""
        if self._passes is None or self._passes[0] != policy or self._passes[1] >= step:
            self._forget()
            passes = passes_for(self.opened.model, policy, self.run.prompt_ids, self.run.request.interventions)
            assert passes is not None
        else:
            passes = self._passes[2]
        self._passes = policy, step, passes
        return passes.views(self.ids[: cache.length], cache)

    def _forget(self) -> None:
        if self._passes is not None:
            self._passes[2].release()
            self._passes = None

    def _fork(self, length: int) -> AbstractContextManager[Cache]:
        """A cache of the first `length` ids, computed where they are not yet. Windowed pages are never given back.

        What is computed behind them stays, where nothing is there yet: it is of the same ids."""
        if self._cache.length < length:
            self._forward(self.ids[self._cache.length : length], self._cache)
        if self._cache.length == length:
            return nullcontext(self._cache)
        fork = self._cache.fork()
        fork.truncate(length)
        return _Forked(fork)

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
