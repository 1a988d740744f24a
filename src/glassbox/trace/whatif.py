"""What if: every step of a recorded run under another policy, with the run's own logits, history and draws.

In: a run, its model, a policy. Out: a `WhatIf`: at which step the choice changes first and to what, how likely the
recorded text is under that policy, how often fresh draws go another way, and from which value of a parameter on a step
becomes another token.
But: nothing is generated. The text stays as recorded (it is forced on the policy), so up to and including the first
change this is what a new run would do; a later change is one that would happen, given the recorded text. branch.py
makes the run that goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from glassbox.choose import Choice, choose, choose_at
from glassbox.errors import EmptySupport, PromptError
from glassbox.generation import logits_hash
from glassbox.policy.philox import uniforms
from glassbox.policy.policy import Policy, Shaped
from glassbox.policy.step import listed, whole
from glassbox.trace.again import Again, Opened, check_kv, check_model
from glassbox.trace.run import Run
from glassbox.trace.threshold import Choose, Edge, Scan
from glassbox.types import F32

MOST_DRAWS = 1_000_000
OTHERS = 4  # ids that fresh draws are told of, beside the recorded one


@dataclass(frozen=True)
class Draws:
    """Fresh draws at one step from its final distribution, each with a key of its own."""

    n: int
    away: int  # so many gave another id than the recorded one
    ids: tuple[tuple[int, int], ...]  # (id, how often), the most frequent first


@dataclass(frozen=True)
class Row:
    """One step under the other policy."""

    step: int
    id: int  # as recorded
    choice: Choice | None  # by the same draw; None: the policy leaves no token (`refused` says why)
    logprob: float  # of the recorded id under the other policy; -inf: it forbids it
    logprob_recorded: float  # of the same id under the policy of the run
    removed_by: str | None = None  # what forbids it: a step of the policy
    refused: str | None = None
    forced: bool = False  # the id was put there when the run branched, so no policy changes it
    draws: Draws | None = None
    edges: tuple[Edge, ...] = ()  # of the parameter that was asked for; none where the id was put there
    proven: bool = True  # the logits have the recorded hash

    @property
    def changed(self) -> bool:
        return not self.forced and (self.choice is None or self.choice.id != self.id)

    @property
    def away(self) -> float:
        """The probability that a fresh draw goes another way."""
        return max(0.0, -math.expm1(self.logprob))


@dataclass(frozen=True)
class WhatIf:
    """A run under another policy."""

    run_id: str
    policy: Policy
    rows: tuple[Row, ...]  # one a step
    parameter: str | None = None  # whose thresholds the rows hold

    @property
    def changes(self) -> tuple[Row, ...]:
        """Steps whose choice changes. The first is what would happen; the later ones are, given the recorded text."""
        return tuple(row for row in self.rows if row.changed)

    @property
    def first(self) -> Row | None:
        return next(iter(self.changes), None)

    @property
    def logprob(self) -> float:
        """Of the whole recorded output under the policy: the exact sum; -inf if a step forbids its id."""
        return math.fsum(row.logprob for row in self.rows)

    @property
    def logprob_recorded(self) -> float:
        return math.fsum(row.logprob_recorded for row in self.rows)

    @property
    def forbidden(self) -> tuple[Row, ...]:
        """Steps whose recorded id the policy does not allow."""
        return tuple(row for row in self.rows if row.logprob == -math.inf)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a logprob of -inf, which JSON cannot say, is null (see `forbidden`)."""
        return {
            "run_id": self.run_id,
            "policy": self.policy.to_dict(),
            "first_change": None if self.first is None else self.first.step,
            "changes": [row.step for row in self.changes],
            "logprob": _finite(self.logprob),
            "logprob_recorded": _finite(self.logprob_recorded),
            "forbidden": [{"step": row.step, "removed_by": row.removed_by} for row in self.forbidden],
            "parameter": self.parameter,
            "steps": [_row_dict(row) for row in self.rows],
        }


def what_if(
    run: Run, policy: Policy, opened: Opened, *, draws: int = 0, threshold: str | None = None,
    steps: Iterable[int] | None = None,
) -> WhatIf:  # fmt: skip
    """Every step of `run` under `policy`.

    draws: so many fresh ones a step. threshold: a parameter of which to find where choices change, and for which
    steps (default: all). Raises ParameterError; PromptError, also for a beam search.
    """
    n = whole("draws", draws, 0, MOST_DRAWS, f"a whole number from 0 to {MOST_DRAWS:,}")
    check_model(run, opened)
    check_kv(run, opened)
    if run.request.beam is not None:
        raise PromptError(f"run {run.run_id} is a beam search: nothing of it was drawn, so no draw can go another way")
    policy = opened.fitted(policy, run.request.stop_ids)
    scan = None if threshold is None else Scan(threshold, policy, opened.model.vocab_size, [run.policy])
    with Again(run, opened) as again:
        wanted = _steps(again, range(len(run.steps)) if steps is None else steps)
        rows = []
        for step, logits in enumerate(again.rows()):
            shaped = _shaped(again, step, logits, policy)
            row = _row(again, step, shaped, n)
            asked = step in wanted and not row.forced
            edges = scan.edges(_chooser(again, step, logits), row.id) if scan and asked else ()
            proven = logits_hash(logits) == run.steps[step].logits_hash
            rows.append(replace(row, edges=edges, proven=proven))
    return WhatIf(run.run_id, policy, tuple(rows), threshold)


def _steps(again: Again, given: Iterable[int]) -> set[int]:
    wanted = listed("steps", given, "a sequence of steps of the run")
    for step in wanted:
        again.position(step)  # refuses what is no step
    return set(wanted)


def _chooser(again: Again, step: int, logits: F32) -> Choose:
    """What any policy chooses at a step, by the draw of the step."""

    def choose_under(policy: Policy) -> int | None:
        shaped = _shaped(again, step, logits, policy)
        return None if isinstance(shaped, EmptySupport) else _choice(again.run, step, shaped).id

    return choose_under


def _shaped(again: Again, step: int, logits: F32, policy: Policy) -> Shaped | EmptySupport:
    try:
        return again.shaped(step, logits, policy)
    except EmptySupport as e:
        return e


def _choice(run: Run, step: int, shaped: Shaped) -> Choice:
    """By the draw of the recorded step: the same key gives the same number."""
    at = run.steps[step]
    seed, sequence, position = at.choice.counter or (run.request.under(step)[1], run.request.sequence, at.position)
    return choose(shaped, seed=seed, sequence=sequence, position=position)


def _row(again: Again, step: int, shaped: Shaped | EmptySupport, draws: int) -> Row:
    run, at = again.run, again.run.steps[step]
    forced, recorded = run.request.forced(step), at.choice.logprob_final
    if isinstance(shaped, EmptySupport):
        return Row(step, at.id, None, -math.inf, recorded, shaped.step, str(shaped), forced)
    logprob = shaped.final_logprob(at.id)
    gone = shaped.candidates(0, include=(at.id,))[0].removed_by if logprob == -math.inf else None
    fresh = _draws(run, step, shaped, draws) if draws else None
    return Row(step, at.id, _choice(run, step, shaped), logprob, recorded, gone, None, forced, fresh)


def _draws(run: Run, step: int, shaped: Shaped, n: int) -> Draws:
    """By the run's seed, as sequences beside its own, so that they are the same whenever somebody asks."""
    at, r = run.steps[step], run.request
    sequences = np.arange(n, dtype=np.uint64) + np.uint64((r.sequence + 1) % 2**64)  # modulo 2^64
    ids, counts = np.unique(choose_at(shaped, uniforms(r.seed, sequences, at.position)), return_counts=True)
    order = np.lexsort((ids, -counts))
    tally = list(zip(ids[order].tolist(), counts[order].tolist(), strict=True))
    return Draws(n, n - dict(tally).get(at.id, 0), tuple([t for t in tally if t[0] != at.id][:OTHERS]))


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _row_dict(row: Row) -> dict[str, Any]:
    c = row.choice
    return {
        "step": row.step,
        "id": row.id,
        "changed": row.changed,
        "to": None if c is None else c.id,
        "u": None if c is None else c.u,
        "cdf_lo": None if c is None else c.cdf_lo,
        "cdf_hi": None if c is None else c.cdf_hi,
        "logprob": _finite(row.logprob),
        "logprob_recorded": _finite(row.logprob_recorded),
        "removed_by": row.removed_by,
        "refused": row.refused,
        "forced": row.forced,
        "away": row.away,
        "draws": None if row.draws is None else asdict(row.draws),
        "edges": [asdict(edge) for edge in row.edges],
        "proven": row.proven,
    }
