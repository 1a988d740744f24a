"""The policy: ordered steps from one row of logits to a distribution, with a ledger of what each one did.

In: logits float32 [V] and the ids so far. Out: `Shaped`. Pure: the same input gives the same output, and
nothing is kept between tokens.
But: it does not draw. choose.py does, from what comes out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glassbox.errors import EmptySupport, NonFiniteLogits, ParameterError
from glassbox.policy import temperature, truncate
from glassbox.policy.distribution import Distribution
from glassbox.policy.ledger import Candidate, LedgerRow, first_row, row
from glassbox.policy.step import Past, Step, whole
from glassbox.types import F32, F64, Sums

__all__ = ["DEFAULT_ORDER", "RAW", "Candidate", "LedgerRow", "Policy", "Shaped", "Step", "shape"]

RAW = "raw logits"  # the first row of every ledger


class _Row(NamedTuple):
    """One step a policy can have: how the parameter of its name is checked, and the step, or None for off."""

    check: Callable[[object], Any]
    build: Callable[[Any], Step | None]


_STEPS: Mapping[str, _Row] = {  # in the default order
    "temperature": _Row(temperature.temperature_value, temperature.temperature_step),
    "top_k": _Row(truncate.top_k_value, truncate.top_k_step),
    "top_p": _Row(truncate.top_p_value, truncate.top_p_step),
    "min_p": _Row(truncate.min_p_value, truncate.min_p_step),
}

DEFAULT_ORDER = tuple(_STEPS)

# A weight that underflows to 0 is right, and NaN is looked for: neither needs numpy's warnings.
_QUIET = np.errstate(under="ignore", invalid="ignore")


@dataclass(frozen=True, repr=False)
class Policy:
    """How a token is chosen, as data: comparable, printable, savable. `Policy()` changes nothing."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off; -1 too
    top_p: float = 1.0  # 1 is off
    min_p: float = 0.0  # 0 is off
    order: tuple[str, ...] = field(default=DEFAULT_ORDER, kw_only=True)  # every step's name once

    def __post_init__(self) -> None:
        for name, step in _STEPS.items():
            object.__setattr__(self, name, step.check(getattr(self, name)))
        object.__setattr__(self, "order", _checked_order(self.order))

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps that are on, in the order they run."""
        built = (_STEPS[name].build(getattr(self, name)) for name in self.order)
        return tuple(step for step in built if step is not None)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def betas(self) -> tuple[float, ...]:
        """The inverse temperatures at which it will weigh the model's own logits."""
        first = self.steps[0] if self.steps else None
        return (1.0, 1.0 / first.temperature) if isinstance(first, temperature.Temperature) else (1.0,)

    def shape(
        self, logits: npt.ArrayLike, prompt_ids: Sequence[int] = (), output_ids: Sequence[int] = (),
        sums: Sums | None = None,
    ) -> Shaped:  # fmt: skip
        """Run the steps over one row of logits, float32 [V]. sums: of these logits, where somebody has them already."""
        return shape(self.steps, logits, Past(prompt_ids, output_ids), sums)

    def __repr__(self) -> str:
        return f"Policy({' → '.join(self._describe(name) for name in self.order)})"

    def _describe(self, name: str) -> str:
        value = getattr(self, name)
        step = _STEPS[name].build(value)
        note = " (off)" if step is None else "" if step.name == name else f" ({step.name})"
        return f"{name}={value!r}{note}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` gives an equal policy back."""
        return {name: getattr(self, name) for name in _STEPS} | {"order": list(self.order)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        """The reverse of `to_dict`. What is missing is off; what is unknown is refused."""
        known = [f.name for f in fields(cls)]
        for name in data:
            if name not in known:
                raise ParameterError(str(name), data[name], f"left out: a policy has only {', '.join(known)}")
        return cls(**data)


def _checked_order(order: object) -> tuple[str, ...]:
    allowed = f"each of {', '.join(_STEPS)} once"
    if isinstance(order, str) or not isinstance(order, Sequence):
        raise ParameterError("order", order, allowed)
    names = tuple(order)
    if len(names) != len(_STEPS) or any(name not in names for name in _STEPS):
        raise ParameterError("order", order, allowed)
    return names


@dataclass(frozen=True, eq=False, repr=False)
class Shaped:
    """A shaped distribution, its ledger, and the way of any token through it.

    `stages` holds the distribution of each row of the ledger: the first is the model's own, the last is
    drawn from. They hold all the logits, so of old tokens keep the ledger and candidates rather than this.
    """

    logits: F32  # [V], a copy
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
        at = self._checked(token_id)
        logit = self.logits[at]
        better = np.count_nonzero(self.logits > logit)
        return int(better + np.count_nonzero(self.logits[:at] == logit))

    def ties(self, token_id: int) -> int:
        """How many other ids have this one's final probability. If greedy: had, when greedy chose it."""
        d = self.final
        if self.greedy:
            d = self.stages[[r.name for r in self.ledger].index(temperature.Greedy.name) - 1]
        at = d.positions(np.array([self._checked(token_id)]))[0]
        return int(np.count_nonzero(d.logits == d.logits[at])) - 1 if at >= 0 else 0

    @_QUIET
    def candidates(self, n: int = 8, include: Iterable[int] = ()) -> tuple[Candidate, ...]:
        """The n likeliest before the policy (ties by lower id), then what of `include` is not among them."""
        best = self.raw.ids_at(self.raw.ranking.first(whole("n", n, 0, None, "0 or more"))).tolist()
        ids = np.array(list(dict.fromkeys([*best, *map(self._checked, include)])), dtype=np.int64)  # [k]
        removed_by: list[str | None] = [None] * len(ids)
        for r, d in zip(reversed(self.ledger), reversed(self.stages), strict=True):
            if r.removed_count:
                for i in np.flatnonzero(~d.alive()[ids]).tolist():
                    removed_by[i] = r.name  # an earlier row, which comes later here, knows better
        columns = (ids, self.logits[ids], self.raw.probs(ids), self.final.probs(ids))
        rows = zip(*(c.tolist() for c in columns), removed_by, strict=True)
        return tuple(Candidate(*values) for values in rows)

    def _checked(self, token_id: int) -> int:
        return whole("id", token_id, 0, len(self.logits) - 1, f"from 0 to {len(self.logits) - 1}")

    def __repr__(self) -> str:
        way = " → ".join(f"{r.name} {r.alive_after:,}" for r in self.ledger)
        return f"<Shaped {way}, entropy {self.final.entropy:.3f} nats>"


@_QUIET
def shape(steps: Sequence[Step], logits: npt.ArrayLike, past: Past | None = None, sums: Sums | None = None) -> Shaped:
    """Run any steps, in the order given. `Policy.shape` is this with the policy's own."""
    given = _one_row(logits)
    raw = _checked(Distribution.weigh(given, vocab=len(given), sums=sums), RAW, "the forward pass")
    stages, ledger = [raw], [first_row(RAW, raw)]
    for step in steps:
        after = _checked(step(stages[-1], past or Past()), step.name, f"policy step {step.name!r}")
        ledger.append(row(step.name, step.params, stages[-1], after))
        stages.append(after)
    greedy = any(isinstance(step, temperature.Greedy) for step in steps)
    return Shaped(given, tuple(stages), tuple(ledger), greedy)


def _one_row(logits: npt.ArrayLike) -> F32:
    """A copy, so that a buffer the model reuses cannot change a distribution already made."""
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is then refused by name
        given: F32 = np.array(logits, dtype=np.float32)
    if given.ndim != 1 or not len(given):
        raise ParameterError("logits", f"of shape {given.shape}", "one row of float32 numbers, one for each id")
    return given


def _checked(d: Distribution, step: str, where: str) -> Distribution:
    if d.bad is not None:
        raise NonFiniteLogits(where, position=d.bad)
    if not d.size or not math.isfinite(d.total):
        raise EmptySupport(step)
    return d
