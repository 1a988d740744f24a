"""What one step did to the distribution, as a row of plain values; and one token's way through all of them.

In: the distribution before and after a step. Out: a `LedgerRow`.
But: rows are made from the distributions alone. A step does not report about itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassbox.policy.distribution import Distribution
from glassbox.policy.logits import Logits
from glassbox.policy.ranking import Ranking
from glassbox.types import I64

TOP = 5  # tokens a row lists after its step
REMOVED = 16  # removed tokens a row lists, likeliest first; it counts all of them

_PREFIX = 4096  # up to this many survivors, ranking past them is cheaper than collecting the removed
_TINY = 1e-6  # below this part of what there was, a difference of sums has lost too many digits


@dataclass(frozen=True)
class LedgerRow:
    name: str
    params: Mapping[str, float]  # the step's parameters, and what it measured or drew on the way
    alive_before: int
    alive_after: int
    mass_removed: float  # of the distribution before the step
    removed_count: int
    removed_ids: tuple[int, ...]  # the likeliest REMOVED of them
    entropy: float  # nats, after
    top: tuple[tuple[int, float], ...]  # (id, probability), the best TOP after
    argmax_changed: bool
    entropy_before: float | None = None  # the row before's; None: not known

    @property
    def perplexity(self) -> float:
        """exp(entropy): as uncertain as this many equally likely tokens."""
        return math.exp(self.entropy)

    @property
    def perplexity_before(self) -> float | None:
        return None if self.entropy_before is None else math.exp(self.entropy_before)

    @property
    def mass_kept(self) -> float:
        """Of the distribution before the step: what was not removed."""
        return 1.0 - self.mass_removed

    @property
    def changed(self) -> int:
        """How many logits the step gave another value."""
        return int(self.params.get("changed", 0))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, all finite."""
        return {
            "name": self.name,
            "params": dict(self.params),
            "alive_before": self.alive_before,
            "alive_after": self.alive_after,
            "mass_removed": self.mass_removed,
            "removed_count": self.removed_count,
            "removed_ids": list(self.removed_ids),
            "changed": self.changed,
            "entropy": self.entropy,
            "entropy_before": self.entropy_before,
            "perplexity": self.perplexity,
            "perplexity_before": self.perplexity_before,
            "top": [[token_id, p] for token_id, p in self.top],
            "argmax_changed": self.argmax_changed,
        }


@dataclass(frozen=True)
class Candidate:
    """One token's way through the policy."""

    id: int
    logit: float  # as the model gave it
    p_raw: float
    p_final: float
    removed_by: str | None  # the row of the ledger that removed it

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a logit of -inf, which JSON cannot say, is null."""
        return {
            "id": self.id,
            "logit": self.logit if math.isfinite(self.logit) else None,
            "p_raw": self.p_raw,
            "p_final": self.p_final,
            "removed_by": self.removed_by,
        }


def row(name: str, params: Mapping[str, float], before: Distribution, after: Distribution) -> LedgerRow:
    """The row of a step that turned `before` into `after`."""
    count = before.size - after.size
    return LedgerRow(
        name=name,
        params=params if after is before else {**params, **after.notes},
        alive_before=before.size,
        alive_after=after.size,
        mass_removed=_mass_removed(before, after) if count else 0.0,
        removed_count=count,
        removed_ids=_removed_ids(before, after) if count else (),
        entropy=after.entropy,
        top=_top(after),
        argmax_changed=before.best != after.best,
        entropy_before=before.entropy,
    )


def first_row(name: str, raw: Distribution) -> LedgerRow:
    """What the model gave. Only ids at -inf are missing, and those never had any mass."""
    gone = np.flatnonzero(~raw.alive())[:REMOVED].tolist() if raw.size < raw.vocab else []
    missing = raw.vocab - raw.size
    entropy = raw.entropy
    return LedgerRow(name, {}, raw.vocab, raw.size, 0.0, missing, tuple(gone), entropy, _top(raw), False, entropy)


def emptied(name: str, params: Mapping[str, float], before: Distribution) -> LedgerRow:
    """The row of a step that left nothing: all of the mass went, and there is no entropy."""
    gone = tuple(before.ids_at(before.ranking.first(REMOVED)).tolist())
    return LedgerRow(name, params, before.size, 0, 1.0, before.size, gone, 0.0, (), True, before.entropy)


def all_removed(before: Distribution | None, after: Distribution) -> I64:
    """Every id that is in `before` (None: every id there is) and not in `after`, ascending."""
    gone = np.flatnonzero(~after.alive()) if before is None else before.ids_at(_gone(before, after))
    return np.sort(gone)


def _top(d: Distribution) -> tuple[tuple[int, float], ...]:
    ids, probs = d.ids_at(d.ranking.first(TOP)), d.best_weights(TOP) / d.total
    return tuple(zip(ids.tolist(), probs.tolist(), strict=True))


def _removed_ids(before: Distribution, after: Distribution) -> tuple[int, ...]:
    kept = after.size
    if after.parent is before and after.is_head:
        return tuple(before.ids_at(before.ranking.first(kept + REMOVED)[kept:]).tolist())
    if after.ids is not None and kept + REMOVED <= max(_PREFIX, before.ranking.known):
        # Most steps keep a prefix of the ranking: then what follows it is what went.
        ids = before.ids_at(before.ranking.first(kept + REMOVED))
        if after.ranking.is_sorted and np.array_equal(ids[:kept], after.ids):
            return tuple(ids[kept:].tolist())
        return tuple(ids[~after.alive()[ids]][:REMOVED].tolist())  # at most `kept` of these stayed
    gone = _gone(before, after)
    ranking = Ranking(Logits(before.row.at(gone)), is_sorted=before.ranking.is_sorted)
    return tuple(before.ids_at(gone[ranking.first(REMOVED)]).tolist())


def _mass_removed(before: Distribution, after: Distribution) -> float:
    if after.parent is before and after.gone is None:
        removed = before.rest - after.rest
        if removed > _TINY * before.rest:
            return removed / before.total
    # Summed over those that went: exact however little it is, and right for steps that also change logits.
    return float(before.weights_at(_gone(before, after)).sum()) / before.total


def _gone(before: Distribution, after: Distribution) -> I64:
    """The positions in `before` of the ids that are not in `after`."""
    if after.parent is before and after.gone is not None:
        return after.gone
    alive = after.alive()
    return np.flatnonzero(~(alive if before.ids is None else alive[before.ids]))
