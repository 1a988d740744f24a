"""One sequence: ids → logits → policy → choose → detokenise → stop. The only file that sees every stage.

The dataclasses are what a generation passes on and a trace records; `Generation` is the state machine. It does not run
the model: engine.py asks it which ids it needs computed, and hands it the logits.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glassbox.beam import Beam, BeamRow
from glassbox.cache.pages import Cache
from glassbox.cache.prefix import Reuse
from glassbox.choose import Choice, choose
from glassbox.draft import PromptLookup
from glassbox.model.kernels.build import load
from glassbox.passes import Passes
from glassbox.policy.guide import compiled
from glassbox.policy.judge import judge
from glassbox.policy.policy import Candidate, LedgerRow, Policy, Shaped
from glassbox.stop import Ending, Kind, Limits, StopWatcher
from glassbox.text.tokenizer import Encoding, Tokenizer
from glassbox.types import F32, Sums

CANDIDATES = 8  # tokens a step lists, likeliest first, beside the chosen one


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
    include_stop: bool = False  # the text keeps the stop string, or the text of the stop id, that ended it
    sequence: int = 0
    group: str | None = None  # what runs have in common that were asked for together
    beam: Beam | None = None  # search instead of drawing
    reuse: bool = True  # whether keys and values of earlier prompts may be used, and its own kept for later ones
    salt: str = ""  # reuse only among requests with the same salt
    speculate: bool = False  # check guessed ids in one pass; changes no id and no bit
    prompt_logprobs: bool = False  # how likely each id of the prompt was; all of it is computed for that
    time_limit: float | None = None  # seconds from arrival
    messages: tuple[Mapping[str, Any], ...] | None = None
    chat: Mapping[str, Any] | None = None  # with messages: the template's name, and what it was given beside them
    sources: Mapping[str, str] = field(default_factory=dict)  # parameter -> "flag" | "model file" | "default"

    @property
    def width(self) -> int:
        """How many sequences it may come to be at a time."""
        return self.beam.width if self.beam else 1


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
    kv: str = "f32"  # how keys and values were kept: a key of cache/pages.py's KINDS


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
    text_offset: int | None = None  # characters of prompt and output before its own; bytes of one character share it


Event = Step | tuple[BeamRow, ...]  # a token; or all candidates of one step of a beam search


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def evaluated_tokens(self) -> int:
        """Of the prompt, those that were computed; the last one always is."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Nanoseconds on a monotonic clock, from the arrival of the request. What follows from them is in speed.py."""

    queue_ns: int  # until the engine turned to it
    first_token_ns: int | None  # until the first token was chosen
    total_ns: int
    last_token_ns: int | None = None  # until the last one was chosen


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended."""

    ending: Ending
    text: str
    usage: Usage
    timings: Timings
    reuse: str | None = None  # why no more of the prompt came out of the cache; None where none was looked for


class Generation:
    """One sequence on its way: which ids wait to be computed, and what each row of logits turns into."""

    def __init__(
        self, request: Request, tokenizer: Tokenizer, cache: Cache, context: int, passes: Passes | None = None
    ) -> None:
        """passes: what its policy needs beside one row of logits (policy.needs). Then nothing is guessed."""
        prompt = request.encoding.ids
        self.request, self.cache, self.passes = request, cache, passes
        self._context = context - (passes.longer if passes else 0)
        self.ids = list(prompt)  # prompt and output
        self._prompt = np.array(prompt, np.int64)  # made once: steps that look back read it for every token
        self.steps = 0
        self.reused: Reuse | None = None
        self.inbox: deque[Event | Exception] = deque()  # made, but not yet asked for
        self.outcome: Outcome | None = None
        self._vocab = tokenizer.vocab
        self.prompt_logprobs: list[float | None] = [None]  # as far as they are known; nothing comes before the first
        self._detokenizer = tokenizer.detokenizer(prompt)
        self._begin = len(request.encoding.text) - bool(self._detokenizer.held)  # a character it only began is output's
        self._stops = StopWatcher(request.stop, include_stop=request.include_stop)
        self._limits = Limits(
            eos_ids=tokenizer.eos_ids, stop_ids=request.stop_ids, max_tokens=request.max_tokens,
            context=self._context, ignore_eos=request.ignore_eos, min_tokens=request.policy.min_tokens,
        )  # fmt: skip
        grammar = request.policy.grammar  # a bad one is an error here, before anything runs
        self._guide = None if grammar is None else compiled(grammar, tokenizer.vocab, tokenizer.eos_ids)
        self._text: list[str] = []
        self._arrived = time.perf_counter_ns()
        self._started: int | None = None
        self._first_token: int | None = None
        self._last_token: int | None = None
        self._draft: list[int] = []
        self._logprobs: list[float] = []  # of each output id, as it was drawn
        self._lookup = PromptLookup() if request.speculate and passes is None else None

    @property
    def lanes(self) -> Sequence[Generation]:
        """The sequences that want a place in the next pass, each with a cache of its own."""
        return (self,)

    @property
    def pending(self) -> list[int]:
        """The ids that are not in the cache yet: of the prompt at first, then the one just chosen and those guessed."""
        return self.ids[self.cache.length :] + self._draft

    @property
    def decoding(self) -> bool:
        """Whether its prompt is in the cache."""
        return self.cache.length >= len(self.request.encoding.ids)

    @property
    def cached(self) -> int:
        """How many of the prompt's positions came out of an earlier one's pages."""
        return self.reused.length if self.reused else 0

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

    def read(self, rows: F32, sums: Sequence[Sums]) -> int:
        """Rows of logits of the prompt's next ids [n, V] -> how likely the ids after them were. Returns how many rows
        it took: what is left is about the first new token. Raises NonFiniteLogits."""
        ids, known = self.request.encoding.ids, len(self.prompt_logprobs)
        after = ids[known : known + len(rows)]
        self.prompt_logprobs += [judge(r, i, s).logprob for r, i, s in zip(rows, after, sums, strict=False)]
        return len(after)

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
        shaped = self.shape(logits, sums)
        r = self.request
        choice = choose(shaped, seed=r.seed, sequence=r.sequence, position=len(self.ids))
        return self.take(choice, shaped, model_ns, begin, drafted)

    def shape(self, logits: F32, sums: Sums | None = None) -> Shaped:
        """What the policy makes of a row of logits [V] about the next id."""
        r, n = self.request, len(self.request.encoding.ids)
        views = self.passes.views(self.ids, self.cache) if self.passes else None
        return r.policy.shape(
            logits, self._prompt, self.ids[n:], sums=sums, seed=r.seed, sequence=r.sequence, guide=self._guide,
            logprobs=self._logprobs, views=views,
        )  # fmt: skip

    def take(self, choice: Choice, shaped: Shaped, model_ns: int, begin: int, drafted: bool = False) -> Step:
        """Go on by the id that was chosen. begin: when the work on these logits began."""
        chosen, position = time.perf_counter_ns(), len(self.ids)
        self.ids.append(choice.id)
        self._logprobs.append(choice.logprob_final)
        self.steps += 1
        text, ending, offset = self._show(choice.id)
        self._text.append(text)
        if self._first_token is None:
            self._first_token = chosen
        self._last_token = chosen
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
            logits_hash=logits_hash(shaped.logits),
            model_ns=model_ns,
            policy_ns=chosen - begin,
            drafted=drafted,
            text_offset=offset,
        )

    def _show(self, token: int) -> tuple[str, Ending | None, int]:
        """What becomes visible with a token, whether it ends the run, and where its text begins."""
        armed = self._limits.armed(self.steps)
        piece = self._detokenizer.feed(token)
        offset = self._begin + self._detokenizer.offset
        if token in self.request.stop_ids and armed and not self.request.include_stop:
            piece = ""
        shown = self._stops.feed(piece, armed=armed)
        ending = self._limits.check(
            token, generated=self.steps, length=len(self.ids), matched=shown.matched, complete=self._complete
        )  # fmt: skip
        text, matched = shown.text, shown.matched
        if ending is not None and matched is None:
            rest, matched = self._rest()
            text += rest
            if matched is not None:  # an unfinished character shows as U+FFFD, which may complete a stop
                ending = Ending("stop_string", matched)
        return text, ending, offset

    @property
    def _complete(self) -> bool:
        """Whether the grammar allows no more. One that min_tokens forbids to end goes on, into an EmptySupport."""
        if self._guide is None or self.steps < self.request.policy.min_tokens:
            return False
        return self._guide.finished(self.ids[len(self.request.encoding.ids) :])

    def fork(self) -> Generation:
        """Another sequence with the same past. Only the cache is still this one's."""
        twin = copy.copy(self)
        twin.ids, twin._text, twin._logprobs = list(self.ids), list(self._text), list(self._logprobs)
        twin._detokenizer, twin._stops = self._detokenizer.fork(), copy.copy(self._stops)
        return twin

    def release(self) -> None:
        """Give back what it holds of the cache."""
        self.cache.release()
        if self.passes is not None:
            self.passes.release()

    def stop(self, kind: Kind, detail: str | None = None) -> None:
        """End it from outside (cancelled, error). What was held back is text after all."""
        if self.outcome is None:
            self._text.append(self._rest()[0])
            self._end(Ending(kind, detail))

    def _rest(self) -> tuple[str, str | None]:
        """What the stop watcher and the detokenizer still hold, in that order, and the stop that this completes."""
        shown = self._stops.feed(self._detokenizer.flush(), armed=self._limits.armed(self.steps))
        return shown.text + self._stops.flush(), shown.matched

    def _end(self, ending: Ending) -> None:
        now = time.perf_counter_ns()
        arrived, started = self._arrived, self._started if self._started is not None else now
        first, last = (None if t is None else t - arrived for t in (self._first_token, self._last_token))
        usage = Usage(len(self.request.encoding.ids), self.cached, self.steps)
        timings = Timings(started - arrived, first, now - arrived, last)
        self.outcome = Outcome(ending, "".join(self._text), usage, timings, self._reuse_told())

    def _reuse_told(self) -> str | None:
        """Why no more of the prompt came out of the cache, with the tokens that differ and whose text it is."""
        r, encoding = self.reused, self.request.encoding
        if self.request.prompt_logprobs:
            return "every id was computed: the prompt's logprobs were asked for"
        if r is None or r.had is None:
            return r.why if r else None
        had, now = self._vocab.text_of(r.had), self._vocab.text_of(encoding.ids[r.matched])
        origin = encoding.segment_list[encoding.segments[r.matched]].origin
        return f"{r.why} ({had!r} against {now!r}, {origin})"


def logits_hash(logits: F32) -> str:
    """XXH64 over the bytes of one row of float32 logits, as 16 hex digits: equal hashes, equal bits."""
    row = np.ascontiguousarray(logits)
    return f"{load().xxh64(row.ctypes.data, row.nbytes) & 0xFFFFFFFFFFFFFFFF:016x}"
