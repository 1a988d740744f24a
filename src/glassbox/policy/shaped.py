"""What a policy makes of one row of logits: a distribution, its ledger, and any token's way through both.

In: steps, logits float32 [V], the ids before. Out: `Shaped`. Pure: the same input gives the same output, and nothing is
kept between tokens.
But: it does not draw. choose.py does, from what comes out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from glassbox.errors import EmptySupport, NonFiniteLogits, ParameterError
from glassbox.policy.distribution import Distribution
from glassbox.policy.ledger import Candidate, LedgerRow, all_removed, emptied, first_row, row
from glassbox.policy.ranking import rank_of
from glassbox.policy.step import Past, Step, whole
from glassbox.policy.temperature import Greedy
from glassbox.types import F32, F64, I64, Sums

RAW = "raw logits"  # the first row of every ledger
FORWARD = "the forward pass"  # where they come from

# A weight that underflows to 0 is right, and NaN and infinity are looked for: none needs numpy's warnings.
_QUIET = np.errstate(all="ignore")


@dataclass(frozen=True, eq=False, repr=False)
class Shaped:
    """A shaped distribution, its ledger, and the way of any token through it.

    `stages` holds the distribution of each row of the ledger: the first is the model's own, the last is
    drawn from. They hold all the logits, so of old tokens keep the ledger and candidates rather than this.
    """

    logits: F32  # [V]
    stages: tuple[Distribution, ...]
    ledger: tuple[LedgerRow, ...]
    greedy: bool  # nothing is left to draw

    @property
    def raw(self) -> Distribution:
        return self.stages[0]

    @property
    def final(self) -> Distribution:
        return self.stages[-1]

    @cached_property
    @_QUIET
    def probs(self) -> F64:
        """[V], sums to 1; 0 for every id that was removed."""
        return self.final.dense()

    def raw_logprob(self, token_id: int) -> float:
        """Under the model alone. -inf for an id that the model gave -inf."""
        return self.raw.logprob(self._checked(token_id))

    def final_logprob(self, token_id: int) -> float:
        """Under what is drawn from. -inf (null in JSON) for an id that was removed."""
        return self.final.logprob(self._checked(token_id))

    def raw_rank(self, token_id: int) -> int:
        """0 is the best; of equal logits the lower id comes first."""
        at = self.raw.position(self._checked(token_id))
        return self.raw.ranking.rank(at) if at >= 0 else rank_of(self.logits, token_id)

    def ties(self, token_id: int) -> int:
        """How many other ids have this one's final probability. If greedy: had, when greedy chose it."""
        d = self.final
        if self.greedy:
            d = self.stages[[r.name for r in self.ledger].index(Greedy.name) - 1]
        at = d.position(self._checked(token_id))
        return d.ranking.count(d.row.one(at)) - 1 if at >= 0 else 0

    def removed(self, at: int) -> I64:
        """Every id that row `at` of the ledger removed, ascending; the row itself lists the likeliest."""
        at = whole("at", at, 0, len(self.ledger) - 1, f"a row of the ledger, from 0 to {len(self.ledger) - 1}")
        return all_removed(self.stages[at - 1] if at else None, self.stages[at])

    @_QUIET
    def candidates(self, n: int = 8, include: Iterable[int] = ()) -> tuple[Candidate, ...]:
        """The n likeliest before the policy (ties by lower id), then what of `include` is not among them."""
        best = self.raw.ids_at(self.raw.ranking.first(whole("n", n, 0, None, "0 or more"))).tolist()
        listed = list(dict.fromkeys([*best, *map(self._checked, include)]))
        ids = np.array(listed)  # [k]
        removed_by: list[str | None] = [None] * len(ids)
        for r, d in zip(reversed(self.ledger), reversed(self.stages), strict=True):
            if r.removed_count:
                for i in (d.positions(ids) < 0).nonzero()[0].tolist():
                    removed_by[i] = r.name  # an earlier row, which comes later here, knows better
        columns = (self.logits[ids], self.raw.probs(ids), self.final.probs(ids))
        return tuple(map(Candidate, listed, *(c.tolist() for c in columns), removed_by))

    def _checked(self, token_id: int) -> int:
        return whole("id", token_id, 0, len(self.logits) - 1, f"from 0 to {len(self.logits) - 1}")

    def __repr__(self) -> str:
        way = " → ".join(f"{r.name} {r.alive_after:,}" for r in self.ledger)
        return f"<Shaped {way}, entropy {self.final.entropy:.3f} nats>"


@_QUIET
def shape(
    steps: Sequence[Step],
    logits: npt.ArrayLike,
    past: Past | None = None,
    sums: Sums | None = None,
    betas: Sequence[float] = (),
) -> Shaped:
    """Run any steps, in the order given. `Policy.shape` is this with the policy's own.

    betas: the inverse temperatures that sums are made for if none are given. Whoever gives some leaves the logits as
    they are from then on: they are not copied."""
    given, past = _one_row(logits, copy=sums is None), past or Past()
    raw = Distribution.weigh(given, vocab=len(given), sums=sums, betas=betas)
    if not raw.size or raw.bad is not None:
        _refuse(raw, RAW, (), past)
    stages, ledger = [raw], [first_row(RAW, raw)]
    for step in steps:
        after = step(stages[-1], past)
        if not after.size or after.bad is not None:
            last = [] if after.size else [emptied(step.name, step.params, stages[-1])]
            _refuse(after, step.name, [*ledger, *last], past)
        ledger.append(row(step.name, step.params, stages[-1], after))
        stages.append(after)
    greedy = any(isinstance(step, Greedy) for step in steps)
    return Shaped(given, tuple(stages), tuple(ledger), greedy)


def _one_row(logits: npt.ArrayLike, *, copy: bool) -> F32:
    """copy: so that a buffer that is written to again cannot change a distribution already made."""
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is then refused by name
        given: F32 = np.array(logits, dtype=np.float32) if copy else np.asarray(logits, dtype=np.float32)
    if given.ndim != 1 or not len(given):
        raise ParameterError("logits", f"of shape {given.shape}", "one row of float32 numbers, one for each id")
    return given


def _refuse(d: Distribution, step: str, ledger: Sequence[LedgerRow], past: Past) -> None:
    if d.bad is not None:
        where = FORWARD if step == RAW else f"policy step {step!r}"
        raise NonFiniteLogits(where, position=d.bad, at=len(past.output_ids), ledger=ledger)
    others = [r.name for r in ledger[1:-1] if r.removed_count]
    raise EmptySupport(step, others, len(past.output_ids), ledger)
