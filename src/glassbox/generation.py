"""One sequence: ids → logits → policy → choose → detokenise → stop. The only file that sees every stage.

`Generation` is the state machine between a request (request.py) and what it passes on (events.py, outcome.py). It does
not run the model: engine.py asks it which ids it needs computed, and hands it the logits.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassbox.cache.pages import Cache
from glassbox.cache.prefix import Reuse
from glassbox.choose import Choice, choose
from glassbox.draft import PromptLookup
from glassbox.events import Event, Step
from glassbox.model.kernels.build import load
from glassbox.outcome import Outcome, Timings, Usage
from glassbox.passes import Passes
from glassbox.policy.guide import Guide, compiled
from glassbox.policy.judge import judge
from glassbox.policy.policy import Policy, Shaped
from glassbox.request import Request
from glassbox.stop import Ending, Kind, Limits, Shown, StopWatcher
from glassbox.text.tokenizer import Tokenizer
from glassbox.types import F32, Sums

CANDIDATES = 8  # tokens a step lists, likeliest first, beside the chosen one


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds at a step: of those that a branch has from its parent, what held there."""

    policy: Policy
    seed: int
    guide: Guide | None
    limits: Limits


class Generation:
    """One sequence on its way: which ids wait to be computed, and what each row of logits turns into.

    passes: what its policy needs beside one row of logits (policy.needs); then nothing is guessed. steps: what a branch
    has from its parent, in order. force: the id to put at the step after these.
    """

    def __init__(
        self, request: Request, tokenizer: Tokenizer, cache: Cache, context: int, passes: Passes | None = None,
        steps: Sequence[Step] = (), force: int | None = None,
    ) -> None:  # fmt: skip
        prompt = request.encoding.ids
        self.request, self.cache, self.passes = request, cache, passes
        self._context = context - (passes.longer if passes else 0)
        self._output = [step.id for step in steps]
        self.ids = [*prompt, *self._output]  # prompt and output; the latter by itself for the steps that look back
        self.given = len(self.ids)  # of them were there before anything is chosen
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
        made = request.branch.made if request.branch else ()
        # A bad grammar is an error here, before anything runs.
        self._rules = [(end, self._ruled(policy, seed, tokenizer)) for end, policy, seed in made]
        self._own = self._ruled(request.policy, request.seed, tokenizer)
        self._text: list[str] = []
        self._arrived = time.perf_counter_ns()
        self._started: int | None = None
        self._first_token: int | None = None
        self._last_token: int | None = None
        self._draft: list[int] = []
        self._logprobs: list[float] = []  # of each output id, as it was drawn
        self._lookup = PromptLookup() if request.speculate and passes is None else None
        self.force = force  # the next id, whatever the policy says
        self.inherited = tuple(map(self._inherit, steps))

    def _ruled(self, policy: Policy, seed: int, tokenizer: Tokenizer) -> Rules:
        r, grammar = self.request, policy.grammar
        limits = Limits(
            eos_ids=tokenizer.eos_ids, stop_ids=r.stop_ids, max_tokens=r.max_tokens, context=self._context,
            ignore_eos=r.ignore_eos, min_tokens=policy.min_tokens,
        )  # fmt: skip
        guide = None if grammar is None else compiled(grammar, tokenizer.vocab, tokenizer.eos_ids)
        return Rules(policy, seed, guide, limits)

    def _rules_of(self, step: int) -> Rules:
        """As `Request.under`."""
        return next((rules for end, rules in self._rules if step < end), self._own)

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

    def read(self, rows: F32, sums: Sequence[Sums]) -> int:
        """Rows of logits of the next ids that were given [n, V] -> how likely the ids after them were. Returns how many
        rows it took: what is left is about the first new token. Raises NonFiniteLogits."""
        ids, known = self.ids[: self.given], len(self.prompt_logprobs)
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
        seed, sequence = self._rules_of(self.steps).seed, self.request.sequence
        choice = choose(shaped, seed=seed, sequence=sequence, position=len(self.ids), force=self.force)
        self.force = None
        return self.take(choice, shaped, model_ns, begin, drafted)

    def shape(self, logits: F32, sums: Sums | None = None) -> Shaped:
        """What the policy makes of a row of logits [V] about the next id."""
        r, rules = self.request, self._rules_of(self.steps)
        views = self.passes.views(self.ids, self.cache) if self.passes else None
        return rules.policy.shape(
            logits, self._prompt, self._output, sums=sums, seed=rules.seed, sequence=r.sequence, guide=rules.guide,
            logprobs=self._logprobs, views=views,
        )  # fmt: skip

    def take(self, choice: Choice, shaped: Shaped, model_ns: int, begin: int, drafted: bool = False) -> Step:
        """Go on by the id that was chosen. begin: when the work on these logits began."""
        chosen, position = time.perf_counter_ns(), len(self.ids)
        self.ids.append(choice.id)
        self._output.append(choice.id)
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

    def _inherit(self, step: Step) -> Step:
        """A step that was made before, with its text as it becomes visible here: more may follow than did there."""
        self.steps += 1
        self._logprobs.append(step.choice.logprob_final)
        shown, offset = self._feed(step.id)
        self._text.append(shown.text)
        return replace(step, text=shown.text, bytes=self._vocab.bytes_of(step.id), text_offset=offset)

    def _feed(self, token: int) -> tuple[Shown, int]:
        """What the text of its newest token lets be seen, and where that text begins."""
        armed = self._rules_of(self.steps - 1).limits.armed(self.steps)
        piece = self._detokenizer.feed(token)
        offset = self._begin + self._detokenizer.offset
        if token in self.request.stop_ids and armed and not self.request.include_stop:
            piece = ""
        return self._stops.feed(piece, armed=armed), offset

    def _show(self, token: int) -> tuple[str, Ending | None, int]:
        """What becomes visible with a token, whether it ends the run, and where its text begins."""
        shown, offset = self._feed(token)
        ending = self._rules_of(self.steps - 1).limits.check(
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
        rules = self._rules_of(self.steps - 1)
        if rules.guide is None or self.steps < rules.policy.min_tokens:
            return False
        return rules.guide.finished(self._output)

    def fork(self) -> Generation:
        """Another sequence with the same past. Only the cache is still this one's."""
        twin = copy.copy(self)
        twin.ids, twin._output = list(self.ids), list(self._output)
        twin._text, twin._logprobs = list(self._text), list(self._logprobs)
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
        armed = self._rules_of(self.steps - 1).limits.armed(self.steps)
        shown = self._stops.feed(self._detokenizer.flush(), armed=armed)
        return shown.text + self._stops.flush(), shown.matched

    def _end(self, ending: Ending) -> None:
        now = time.perf_counter_ns()
        arrived, started = self._arrived, self._started if self._started is not None else now
        first, last = (None if t is None else t - arrived for t in (self._first_token, self._last_token))
        usage = Usage(len(self.request.encoding.ids), self.cached, self.steps, self.request.dropped)
        timings = Timings(started - arrived, first, now - arrived, last)
        self.outcome = Outcome(ending, "".join(self._text), usage, timings, self._reuse_told())

    def _reuse_told(self) -> str | None:
        """Why no more of the prompt came out of the cache, with the tokens that differ and whose text it is."""
        r, encoding = self.reused, self.request.encoding
        if self.request.prompt_logprobs:
            return "every id was computed: the prompt's logprobs were asked for"
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
