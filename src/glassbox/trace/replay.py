"""A recorded run made again from its trace alone, and compared.

In: a run and its model. Out: a `Replayed`: that every step came again, or the first that did not, by how much, and the
likely cause. The recorded ids go through the model in one prefill, since that gives each step the logits that a pass of
its own would; every row then goes through the run's own state machine (generation.py), with its policy, draw,
detokenizer, stops and limits. Nothing of what earlier prompts left in the cache is used.
But: threads, speculation, reuse and company are left out, for they change no bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassbox.errors import GlassboxError
from glassbox.events import Step
from glassbox.generation import Generation
from glassbox.trace.again import Again, Opened
from glassbox.trace.jsonable import step_to_dict
from glassbox.trace.mismatch import HARMLESS, Mismatch, mismatches, prompt_mismatches, refusal
from glassbox.trace.record import Run
from glassbox.types import F32, Sums

ROWS = 64  # of logits held at once
# What is compared of a step, in the order it comes about, and what it hints at where nothing else is known.
COMPARED: Mapping[str, str] = {
    "logits_hash": "the arithmetic, or the weights", "entropy": "the policy's sums", "ledger": "the policy",
    "u": "the seed, the sequence or the position", "id": "the policy, or the draw", "cdf_lo": "the policy",
    "cdf_hi": "the policy", "logprob_raw": "the policy's sums", "logprob_final": "the policy",
    "rank_raw": "the policy's sums", "ties": "the policy", "candidates": "the policy", "bytes": "the tokenizer",
    "text": "the tokenizer, or the stop strings",
}  # fmt: skip
OUTSIDE = ("time", "cancelled")  # endings that come from without: up to there is compared


@dataclass(frozen=True)
class Difference:
    """The first thing that did not come again. `step` is None for the ending, which has finish reason and text."""

    step: int | None
    field: str  # a key of COMPARED; of the ending "stop_reason", "text"
    recorded: Any
    replayed: Any
    hint: str

    def __str__(self) -> str:
        where = "the ending" if self.step is None else f"step {self.step}"
        return f"{where}: {self.field} was {_short(self.recorded)}, and is {_short(self.replayed)}"


@dataclass(frozen=True)
class Replayed:
    """What a replay found."""

    run: Run
    compared: int  # steps
    mismatches: tuple[Mismatch, ...]  # of what it was made with; none, or the replay was forced
    difference: Difference | None
    diverged: int | None  # the first step with another id; nothing behind it is compared
    logprob_delta: float  # the largest |Δ| of the logprobs that were recorded, in nats; inf: of one that is not finite
    logit_delta: float  # the same of the recorded candidates' logits; 0 at level ids

    @property
    def equal(self) -> bool:
        """Whether it is the same run: every step, the ending, and the prompt that its text gives."""
        return self.difference is None and all(m.field != "prompt" for m in self.mismatches)

    @property
    def causes(self) -> tuple[str, ...]:
        """Why it is not equal: what it was made with and is not here; else what the field that differs hints at."""
        if self.equal:
            return ()
        known = tuple(map(str, self.mismatches))
        return known or ((self.difference.hint,) if self.difference else ())

    def to_dict(self) -> dict[str, Any]:
        """What `glassbox replay --json` prints."""
        d = self.difference
        first = d and {"step": d.step, "field": d.field, "recorded": d.recorded, "replayed": d.replayed}
        return {
            "run_id": self.run.run_id,
            "equal": self.equal,
            "steps": len(self.run.steps),
            "compared": self.compared,
            "difference": first,
            "causes": list(self.causes),
            "mismatches": [{"field": m.field, "recorded": m.recorded, "found": m.found} for m in self.mismatches],
            "diverged": self.diverged,
            "logprob_delta": _finite(self.logprob_delta),
            "logit_delta": _finite(self.logit_delta),
        }


def replay(run: Run, opened: Opened, *, force: bool = False) -> Replayed:
    """Make the run again and compare every step: hash, distribution, draw, id, text, and how it ended.

    An unfinished run is compared as far as it came. Raises NotReproduced where something it was made with is known to
    be another here, unless `force`; PromptError where its ids were not kept, or are none of the model's.
    """
    found = (*mismatches(run, opened), *prompt_mismatches(run, opened))
    grave = [m for m in found if m.field not in HARMLESS]
    if grave and not force:
        raise refusal(run, grave[0])
    r = run.request
    r.policy.for_model(opened.model.vocab_size, opened.tokenizer.eos_ids)
    with Again(run, opened) as again:
        generation = Generation(r, opened.tokenizer, opened.model.new_cache(), opened.model.context)
        return _Comparison(run, generation).made(_rows(again, run), found)


def _rows(again: Again, run: Run) -> Iterator[tuple[F32, Sums]]:
    """The logits [V] of each step, with the sums the engine takes of them."""
    model = again.opened.model
    for first in range(0, len(run.steps), ROWS):
        rows = again.logits(first, min(first + ROWS, len(run.steps)) - 1)
        with again.opened.engine.lock:
            sums = model.sum_rows(rows, [run.request.under(first + i)[0].betas for i in range(len(rows))])
        yield from zip(rows, sums, strict=True)


class _Comparison:
    """A run beside its generation, made again step by step."""

    def __init__(self, run: Run, generation: Generation) -> None:
        self.run, self.generation = run, generation
        self.first: Difference | None = None
        self.diverged: int | None = None
        self.logprob_delta = self.logit_delta = 0.0

    def made(self, rows: Iterator[tuple[F32, Sums]], found: tuple[Mismatch, ...]) -> Replayed:
        compared = 0
        for recorded, (row, sums) in zip(self.run.steps, rows, strict=False):
            if self.generation.done or self.diverged is not None:
                break
            self._step(recorded, row, sums)
            compared += 1
        if self.diverged is None and self.first is None:
            self._ending(compared)
        return Replayed(self.run, compared, found, self.first, self.diverged, self.logprob_delta, self.logit_delta)

    def _step(self, recorded: Step, row: F32, sums: Sums) -> None:
        self.generation.force = recorded.id if self.run.request.forced(recorded.step) else None
        try:
            step = self.generation.advance(row, 0, sums=sums)
        except GlassboxError as e:  # a policy that leaves no token, logits that are no numbers
            self._differs(recorded.step, "id", recorded.id, f"{type(e).__name__}: {e}", "the policy, or the weights")
            self.diverged = recorded.step
            return
        if step.logits_hash != recorded.logits_hash:
            self._measure(recorded, row)
        was, now = step_to_dict(self.run, recorded), step_to_dict(self.run, step)
        for name, hint in COMPARED.items():
            kept = self.run.level == "look" or name not in ("ledger", "candidates")
            if kept and was[name] != now[name]:
                self._differs(recorded.step, name, *_narrowed(name, was[name], now[name]), hint)
        if step.id != recorded.id:
            self.diverged = recorded.step

    def _measure(self, recorded: Step, row: F32) -> None:
        """By how much the recorded logits and logprobs differ from this row's [V]."""
        high = float(row.max())
        norm = high + math.log(float(np.exp(row.astype(np.float64) - high).sum()))
        pairs = [(recorded.choice.logprob_raw, float(row[recorded.id]) - norm)]
        for c in recorded.candidates:
            if 0 <= c.id < len(row) and c.p_raw > 0:
                pairs.append((math.log(c.p_raw), float(row[c.id]) - norm))
                self.logit_delta = max(self.logit_delta, _apart(c.logit, float(row[c.id])))
        self.logprob_delta = max(self.logprob_delta, *(_apart(a, b) for a, b in pairs))

    def _ending(self, compared: int) -> None:
        run, generation = self.run, self.generation
        if compared < len(run.steps):
            assert generation.outcome is not None
            stop = generation.outcome.ending.stop_reason
            hint = "stops, limits, or the tokenizer"
            return self._differs(compared, "id", run.steps[compared].id, f"nothing: it ended by {stop}", hint)
        if run.outcome is None or run.outcome.usage.completion_tokens != compared:  # not ended, or rows were lost
            return None
        if run.outcome.ending.kind in OUTSIDE:
            generation.stop(run.outcome.ending.kind)
        made = generation.outcome
        ended = made.ending.stop_reason if made else None
        if ended != run.stop_reason:
            self._differs(None, "stop_reason", run.stop_reason, ended, "stops, limits, or the tokenizer")
        elif made and run.retain == "text" and made.text != run.text:
            self._differs(None, "text", run.text, made.text, COMPARED["text"])
        return None

    def _differs(self, step: int | None, field: str, recorded: Any, replayed: Any, hint: str) -> None:
        self.first = self.first or Difference(step, field, recorded, replayed, hint)


def _narrowed(name: str, was: Any, now: Any) -> tuple[Any, Any]:
    """Of lists of rows the first that differs, and of that what differs."""
    if name not in ("ledger", "candidates"):
        return was, now
    for a, b in zip(was, now, strict=False):
        if a != b:
            shown = [k for k in a if k in ("name", "id") or a[k] != b[k]]
            return {k: a[k] for k in shown}, {k: b[k] for k in shown}
    return f"{len(was)} rows", f"{len(now)} rows"


def _apart(a: float | None, b: float) -> float:
    """|a - b|; infinite where one of them is."""
    if a is None or math.isnan(a) or math.isnan(b):
        return math.inf
    return 0.0 if a == b else abs(a - b)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:119] + "…"
