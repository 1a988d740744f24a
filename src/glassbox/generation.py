"""One sequence: ids → logits → policy → choose → detokenise → stop. The only file that sees every stage.

The dataclasses are what a generation passes on and a trace records; `Generation` is the state machine. It does not run
the model: engine.py asks it which ids it needs computed, and hands it the logits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from glassbox.cache.pages import Cache
from glassbox.cache.prefix import Reuse
from glassbox.choose import Choice, choose
from glassbox.draft import PromptLookup
from glassbox.errors import GlassboxError
from glassbox.model.intervene import Intervention
from glassbox.model.kernels.build import load
from glassbox.policy.policy import Candidate, LedgerRow, Policy
from glassbox.stop import Ending, Kind, Limits, StopWatcher
from glassbox.text.tokenizer import Encoding, Tokenizer
from glassbox.types import F32, Sums

CANDIDATES = 8  # tokens a step lists, likeliest first, beside the chosen one


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a run comes from, if it goes another way from some step of another run, its parent."""

    parent: str  # its id
    step: int | None  # the first that is its own; those before are the parent's. None: its prompt is another one
    made: tuple[tuple[int, Policy, int], ...] = ()  # (end, policy, seed): what chose the steps before `end`
    forced: tuple[int, ...] = ()  # steps whose id was put there, whatever the draw said


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked: everything that, with the weights, decides the run."""

    model: str  # the name or path that was given
    encoding: Encoding  # ids with their spans and segments
    policy: Policy
    seed: int
    max_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_ids: tuple[int, ...] = ()
    sequence: int = 0
    reuse: bool = True  # whether keys and values of earlier prompts may be used, and its own kept for later ones
    salt: str = ""  # reuse only among requests with the same salt
    speculate: bool = False  # check guessed ids in one pass; changes no id and no bit
    time_limit: float | None = None  # seconds from arrival
    messages: tuple[Mapping[str, Any], ...] | None = None
    chat: Mapping[str, Any] | None = None  # with messages: the template's name, and what it was given beside them
    sources: Mapping[str, str] = field(default_factory=dict)  # parameter -> "flag" | "model file" | "default"
    branch: Branch | None = None
    interventions: tuple[Intervention, ...] = ()  # what is done to inner values on the way

    def under(self, step: int) -> tuple[Policy, int]:
        """The policy and the seed that chose at a step: of what a branch has from its parent, the parent's."""
        made = self.branch.made if self.branch else ()
        return next(((policy, seed) for end, policy, seed in made if step < end), (self.policy, self.seed))

    def forced(self, step: int) -> bool:
        """Whether the id of this step was put there rather than drawn."""
        return self.branch is not None and step in self.branch.forced


@dataclass(frozen=True, slots=True)
class Provenance:
    """With what it was done: what a replay must find again."""

    model_sha256: str
    tokenizer_sha256: str
    template_sha256: str | None
    engine: str  # fingerprint of kernels, target and compiler
    glassbox: str  # version
    threads: int
    clock: str | None = None  # the time a template saw, ISO 8601


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One prompt position after it was computed or reused."""

    position: int
    id: int
    bytes: bytes
    segment: int
    kv: str  # "computed" | "reused"
    logprob: float | None  # of this id given the ones before it; None when not measured


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token and how it came about."""

    step: int
    position: int  # in the whole sequence, prompt included
    id: int
    bytes: bytes
    text: str  # what became visible with this token
    choice: Choice
    ledger: tuple[LedgerRow, ...]
    candidates: tuple[Candidate, ...]
    entropy: float  # nats, of the model's own distribution
    logits_hash: str  # 16 hex digits over the bytes of the float32 logits
    model_ns: int  # time in the forward pass that gave these logits
    policy_ns: int  # time from logits to the chosen id
    drafted: bool = False  # guessed beforehand and found right


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Nanoseconds on a monotonic clock. Per-token time excludes the first token, which is prefill's."""

    queue_ns: int
    first_token_ns: int | None  # from arrival to the first token
    total_ns: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended."""

    ending: Ending
    text: str
    usage: Usage
    timings: Timings
    reuse: str | None = None  # why no more of the prompt came out of the cache; None where none was looked for


class Generation:
    """One sequence on its way: which ids wait to be computed, and what each row of logits turns into.

    steps: what a branch has from its parent, in order. force: the id to put at the step after these.
    """

    def __init__(
        self, request: Request, tokenizer: Tokenizer, cache: Cache, context: int, steps: Sequence[Step] = (),
        force: int | None = None,
    ) -> None:  # fmt: skip
        prompt = request.encoding.ids
        self.request, self.cache, self._context = request, cache, context
        self.ids = [*prompt, *(step.id for step in steps)]  # prompt and output
        self.given = len(self.ids)  # of them were there before anything is chosen
        self.steps = len(steps)
        self.reused: Reuse | None = None
        self.inbox: deque[Step | GlassboxError] = deque()  # made, but not yet asked for
        self.outcome: Outcome | None = None
        self._vocab = tokenizer.vocab
        self._detokenizer = tokenizer.detokenizer(prompt)
        self._stops = StopWatcher(request.stop)
        self._limits = Limits(
            eos_ids=tokenizer.eos_ids, stop_ids=request.stop_ids, max_tokens=request.max_tokens, context=context,
            ignore_eos=request.ignore_eos,
        )  # fmt: skip
        self._text: list[str] = []
        self._arrived = time.perf_counter_ns()
        self._started: int | None = None
        self._first_token: int | None = None
        self._draft: list[int] = []
        self._lookup = PromptLookup() if request.speculate else None
        self._force = force
        self.inherited = tuple(map(self._inherit, steps))

    @property
    def pending(self) -> list[int]:
        """The ids that are not in the cache yet: of the prompt at first, then the one just chosen and those guessed."""
        return self.ids[self.cache.length :] + self._draft

    @property
    def decoding(self) -> bool:
        """Whether all that was given is in the cache."""
        return self.cache.length >= self.given

    @property
    def cached(self) -> int:
        """How many of the prompt's positions came out of an earlier one's pages."""
        return min(self.reused.length, len(self.request.encoding.ids)) if self.reused else 0

    @property
    def late(self) -> bool:
        limit = self.request.time_limit
        return limit is not None and time.perf_counter_ns() - self._arrived > limit * 1e9

    @property
    def done(self) -> bool:
        return self.outcome is not None

    def start(self) -> None:
        """The engine turns to this sequence: until now it waited."""
        if self._started is None:
            self._started = time.perf_counter_ns()

    def accept(self, rows: F32, model_ns: int, sums: Sequence[Sums] = ()) -> None:
        """Rows of logits for the last id and each guessed one [n, V] -> tokens, as far as the guesses were right."""
        draft, self._draft = self._draft, []
        for i, row in enumerate(rows):
            step = self.advance(row, model_ns // len(rows), drafted=i > 0, sums=sums[i] if sums else None)
            self.inbox.append(step)
            if self.done or i == len(draft) or step.id != draft[i]:
                break
        self.cache.truncate(len(self.ids) - 1)  # positions of guesses that were wrong
        if self._lookup is not None and not self.done:
            self._draft = self._lookup.guess(self.ids)[: self._room]

    @property
    def _room(self) -> int:
        """How many guesses can be of use before a limit ends it."""
        return max(0, min(self.request.max_tokens - self.steps, self._context - len(self.ids)) - 1)

    def advance(self, logits: F32, model_ns: int, drafted: bool = False, sums: Sums | None = None) -> Step:
        """One row of logits [V] -> one token. Raises NonFiniteLogits and EmptySupport."""
        begin = time.perf_counter_ns()
        r, position = self.request, len(self.ids)
        n = len(r.encoding.ids)
        past = {"prompt_ids": self.ids[:n], "output_ids": self.ids[n:]}
        shaped = r.policy.shape(logits, **past, sums=sums, seed=r.seed, sequence=r.sequence)
        choice = choose(shaped, seed=r.seed, sequence=r.sequence, position=position, force=self._force)
        self._force = None
        chosen = time.perf_counter_ns()
        self.ids.append(choice.id)
        self.steps += 1
        shown = self._stops.feed(self._detokenizer.feed(choice.id))
        ending = self._limits.check(choice.id, generated=self.steps, length=len(self.ids), matched=shown.matched)
        text = shown.text
        if ending is not None and ending.kind != "stop_string":
            text += self._rest()
        self._text.append(text)
        if self._first_token is None:
            self._first_token = chosen
        if ending is not None:
            self._end(ending)
        return Step(
            step=self.steps - 1,
            position=position,
            id=choice.id,
            bytes=self._vocab.bytes_of(choice.id),
            text=text,
            choice=choice,
            ledger=shaped.ledger,
            candidates=shaped.candidates(CANDIDATES, include=(choice.id,)),
            entropy=shaped.ledger[0].entropy,
            logits_hash=logits_hash(logits),
            model_ns=model_ns,
            policy_ns=chosen - begin,
            drafted=drafted,
        )

    def _inherit(self, step: Step) -> Step:
        """A step that was made before, with its text as it becomes visible here: more may follow than did there."""
        text = self._stops.feed(self._detokenizer.feed(step.id)).text
        self._text.append(text)
        return replace(step, text=text, bytes=self._vocab.bytes_of(step.id))

    def stop(self, kind: Kind, detail: str | None = None) -> None:
        """End it from outside (cancelled, error). What was held back is text after all."""
        if self.outcome is None:
            self._text.append(self._rest())
            self._end(Ending(kind, detail))

    def _rest(self) -> str:
        """What the stop watcher and the detokenizer still hold, in that order."""
        shown = self._stops.feed(self._detokenizer.flush())
        return shown.text + self._stops.flush()

    def _end(self, ending: Ending) -> None:
        now = time.perf_counter_ns()
        arrived, started = self._arrived, self._started if self._started is not None else now
        first = None if self._first_token is None else self._first_token - arrived
        usage = Usage(len(self.request.encoding.ids), self.cached, self.steps)
        timings = Timings(queue_ns=started - arrived, first_token_ns=first, total_ns=now - arrived)
        self.outcome = Outcome(ending, "".join(self._text), usage, timings, self._reuse_told())

    def _reuse_told(self) -> str | None:
        """Why no more of the prompt came out of the cache, with the tokens that differ and whose text it is."""
        r, encoding = self.reused, self.request.encoding
        if r is None or r.had is None:
            return r.why if r else None
        had, now = self._vocab.text_of(r.had), self._vocab.text_of(self.ids[r.matched])
        if r.matched >= len(encoding.ids):
            return f"{r.why} ({had!r} against {now!r}, output)"
        origin = encoding.segment_list[encoding.segments[r.matched]].origin
        return f"{r.why} ({had!r} against {now!r}, {origin})"


def logits_hash(logits: F32) -> str:
    """XXH64 over the bytes of one row of float32 logits, as 16 hex digits: equal hashes, equal bits."""
    row = np.ascontiguousarray(logits)
    return f"{load().xxh64(row.ctypes.data, row.nbytes) & 0xFFFFFFFFFFFFFFFF:016x}"
