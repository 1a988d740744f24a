"""A recorded run made again from its trace alone, and compared.

In: a run and its model. Out: a `Replayed`: that every step came again, or the first that did not, by how much, and the
likely cause. What is made again comes from the run's own state machine (remake.py), with its policy, draw or beam
search, detokenizer, stops and limits; and where it failed, the same error.
But: threads, speculation, reuse and company are left out, for they change no bit.
"""

from __future__ import annotations

import math
from contextlib import closing
from itertools import groupby, zip_longest
from typing import Any

import numpy as np

from glassbox.beam import BeamRow
from glassbox.errors import GlassboxError, OutOfMemory
from glassbox.events import Step
from glassbox.trace.again import Again, Opened
from glassbox.trace.jsonable import finite, step_to_dict
from glassbox.trace.mismatch import HARMLESS, Mismatch, mismatches, prompt_mismatches, refusal
from glassbox.trace.remake import OUTSIDE, Search, Sequence, failed
from glassbox.trace.replayed import COMPARED, Difference, Replayed
from glassbox.trace.run import Run
from glassbox.types import F32


def replay(run: Run, opened: Opened, *, force: bool = False) -> Replayed:
    """Make the run again and compare every step: hash, distribution, draw, id, text, and how it ended.

    An unfinished run is compared as far as it came. Raises NotReproduced where something it was made with is known to
    be another here, unless `force`; PromptError where its ids were not kept, or are none of the model's.
    """
    found = (*mismatches(run, opened), *prompt_mismatches(run, opened))
    grave = [m for m in found if m.field not in HARMLESS]
    if grave and not force:
        raise refusal(run, grave[0])
    run.request.policy.for_model(opened.model.vocab_size, opened.tokenizer.eos_ids)
    with Again(run, opened) as again:
        made = Search(again) if run.request.beam else Sequence(again)
        return _Comparison(again, made).made(found)


class _Comparison:
    """A run beside what is made of it again."""

    def __init__(self, again: Again, remade: Search | Sequence) -> None:
        self.again, self.run, self.remade = again, again.run, remade
        self.tried = {step: tuple(rows) for step, rows in groupby(self.run.tried, key=lambda row: row.step)}
        self.compared = self.rows = 0
        self.first: Difference | None = None
        self.diverged: int | None = None
        self.failed = False
        self.logprob_delta = self.logit_delta = 0.0

    def made(self, found: tuple[Mismatch, ...]) -> Replayed:
        try:
            with closing(self.remade.events()) as events:
                for event in events:
                    if isinstance(event, list):
                        self._prompt(event)
                    elif isinstance(event, tuple):
                        self._candidates(event)
                    else:
                        self._step(event)
                    if self.diverged is not None:
                        break
                else:
                    self._ending()
        except OutOfMemory:
            raise
        except GlassboxError as e:  # a policy that leaves no token, logits that are no numbers
            self._error(e)
        return Replayed(
            self.run, self.compared, found, self.first, self.diverged, self.logprob_delta, self.logit_delta, self.rows,
            self.failed,
        )  # fmt: skip

    def _prompt(self, made: list[float | None]) -> None:
        for token in self.run.prompt:
            if token.logprob != made[token.position]:
                was, now = ({"position": token.position, "logprob": p} for p in (token.logprob, made[token.position]))
                return self._differs(None, "prompt_logprobs", was, now, "the arithmetic, or the weights")
        return None

    def _candidates(self, made: tuple[BeamRow, ...]) -> None:
        """One step of a beam search: each candidate, whom it continues, its score, and what became of it."""
        step, was = made[0].step, self.tried.pop(made[0].step, ())
        if not was and self.run.problem:  # rows were lost
            return
        for a, b in zip_longest(*([_candidate(self.run, row) for row in rows] for rows in (was, made))):
            self.rows += a is not None
            if a == b:
                continue
            x, y = ({k: d[k] for k in d if k == "rank" or not a or not b or a[k] != b[k]} for d in (a or {}, b or {}))
            self._differs(step, "beam", x or None, y or None, "the policy, or the sums")
            if not a or not b or any(a[k] != b[k] for k in ("id", "parent", "beam")):
                self.diverged = step
                return

    def _step(self, made: Step) -> None:
        if self.compared == len(self.run.steps):
            if not self.run.problem and (self.run.outcome is not None or failed(self.run)):
                ended = self.run.error or f"nothing: it ended by {self.run.stop_reason}"
                self._differs(made.step, "id", ended, made.id, "the policy, or the weights")
                self.diverged = made.step
            return
        recorded = self.run.steps[self.compared]
        self.compared += 1
        if made.logits_hash != recorded.logits_hash:
            self._measure(recorded, self.again.logits(recorded.step, recorded.step)[0])
        was, now = step_to_dict(self.run, recorded), step_to_dict(self.run, made)
        for name, hint in COMPARED.items():
            kept = self.run.level == "look" or name not in ("ledger", "candidates")
            kept &= name != "text_offset" or was[name] is not None  # older runs have none
            if kept and was[name] != now[name]:
                self._differs(recorded.step, name, *_narrowed(name, was[name], now[name]), hint)
        if made.id != recorded.id:
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

    def _error(self, e: GlassboxError) -> None:
        """Of a run that failed the same is right: at the same step, in the same words, behind the same ledger."""
        run, at, name = self.run, self.compared, type(e).__name__
        if at < len(run.steps) or not failed(run):
            was = run.steps[at].id if at < len(run.steps) else f"nothing: it ended by {run.stop_reason}"
            self._differs(at, "id", was, f"{name}: {e}", "the policy, or the weights")
            self.diverged = at
            return
        was, now = (finite([r.to_dict() for r in rows]) for rows in (run.failed, getattr(e, "ledger", ())))
        if run.error not in (name, f"{name}: {e}"):
            self._differs(at, "error", run.error, f"{name}: {e}", "the policy, or the weights")
        elif run.level == "look" and was != now:
            self._differs(at, "ledger", *_narrowed("ledger", was, now), COMPARED["ledger"])
        else:
            self.failed = True

    def _ending(self) -> None:
        run, generation, compared = self.run, self.remade.generation, self.compared
        hint = "stops, limits, or the tokenizer"
        if compared < len(run.steps) or failed(run):
            was = run.steps[compared].id if compared < len(run.steps) else run.error
            stop = generation.outcome.ending.stop_reason if generation.outcome else None
            return self._differs(compared, "id", was, f"nothing: it ended by {stop}", hint)
        if self.tried:
            step, rows = next(iter(self.tried.items()))
            return self._differs(step, "beam", f"{len(rows)} rows", "0 rows", hint)
        if run.outcome is None or run.outcome.usage.completion_tokens != compared:  # not ended, or rows were lost
            return None
        if run.outcome.ending.kind in OUTSIDE:
            generation.stop(run.outcome.ending.kind)
        made = generation.outcome
        ended = made.ending.stop_reason if made else None
        if ended != run.stop_reason:
            self._differs(None, "stop_reason", run.stop_reason, ended, hint)
        elif made and run.retain == "text" and made.text != run.text:
            self._differs(None, "text", run.text, made.text, COMPARED["text"])
        return None

    def _differs(self, step: int | None, field: str, recorded: Any, replayed: Any, hint: str) -> None:
        self.first = self.first or Difference(step, field, recorded, replayed, hint)


def _candidate(run: Run, row: BeamRow) -> dict[str, Any]:
    """As far as the run kept it."""
    kept: dict[str, Any] = finite(row.to_dict())
    return kept if run.retain == "text" else {k: kept[k] for k in kept if k not in ("bytes", "text")}


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
