"""The steps that cut the tail by rank, by mass and by the best one's share: top-k, top-p, min-p.

Each keeps a prefix of the ranking (logit down, then id up), so the best token stays. The file states the
tolerances. What the steps of truncate_entropy.py share with these is here too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glassbox.policy.distribution import Distribution
from glassbox.policy.ranking import LEAST, at_or_above
from glassbox.policy.step import Past

TOP_P_TOLERANCE = 1e-9
"""Top-p is satisfied by a mass of p - this. Above the error of a float64 sum over any vocabulary (262,144
terms: 6e-11) and the float64 cumulative 0.5 + 0.3 = 0.7999999999999999; below the mass of any token that
matters."""

MIN_P_TOLERANCE = 2.0**-24
"""Min-p compares log ratios, and log(min_p) is moved down by this part of itself: the rounding of a float32
logit. A token at exactly the ratio therefore stays, and min_p = 1 keeps exact ties with the best and
nothing else."""


@dataclass(frozen=True)
class TopK:
    """keep the k best logits, exactly k: a tie at the edge goes to the lower id (with top_k_ties: all of it stays)

    Source: Fan, Lewis & Dauphin, "Hierarchical Neural Story Generation", ACL 2018
    """

    name: ClassVar[str] = "top_k"
    argmax_invariant: ClassVar[bool] = True
    top_k: int
    ties: bool = False

    @property
    def params(self) -> Mapping[str, float]:
        return {"top_k": self.top_k}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        if self.top_k >= before.size:
            return before
        if not self.ties:
            return before.keep_first(self.top_k)
        stay = at_or_above(before.logits, before.logits[before.ranking.first(self.top_k)[-1]])
        return before if len(stay) == before.size else before.keep(stay, is_sorted=before.ranking.is_sorted)


@dataclass(frozen=True)
class TopP:
    """keep the smallest set of best tokens with sum p_i >= top_p - 1e-9 (with top_p_joint: p as it was before the tail
    was first cut, not renormalised)

    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020
    """

    name: ClassVar[str] = "top_p"
    argmax_invariant: ClassVar[bool] = True
    top_p: float
    joint: bool = False
    min_keep: int = 1

    @property
    def params(self) -> Mapping[str, float]:
        return {"top_p": self.top_p}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        measured = before.base or before if self.joint else before
        needed = (self.top_p - TOP_P_TOLERANCE) * measured.total
        for order in before.ranking.growing():
            mass = before.best_weights(len(order)).cumsum()  # [len(order)], float64, from the best down
            count = max(self.min_keep, int(mass.searchsorted(needed)) + 1)
            if count <= len(order):
                return before.keep_first(count)
        return before


@dataclass(frozen=True)
class MinP:
    """keep every token with p_i >= min_p p_max, that is z_i - z_max >= log(min_p) (1 + 2^-24)

    Source: Nguyen et al., "Turning Up the Heat: Min-p Sampling", ICLR 2025
    """

    name: ClassVar[str] = "min_p"
    argmax_invariant: ClassVar[bool] = True
    min_p: float
    min_keep: int = 1

    @property
    def params(self) -> Mapping[str, float]:
        return {"min_p": self.min_p}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        return at_least(before, math.log(self.min_p) * (1.0 + MIN_P_TOLERANCE), self.min_keep)


def at_least(before: Distribution, least: float, min_keep: int) -> Distribution:
    """Those with z_i >= least (0 at most: the best has 0 and stays), and not fewer than min_keep of the best."""
    # As a bound on the logit itself: one comparison a token, and equal logits never part.
    bound = before.shift + min(0.0, least) / before.beta
    best = before.row.at(before.ranking.first(LEAST)).astype(np.float64)
    if len(best) == before.size or best[-1] < bound:
        return before.keep_first(max(min_keep, int(np.count_nonzero(best >= bound))))
    kept = at_or_above(before.logits, _round_up(bound, before.logits.dtype))
    if len(kept) == before.size:
        return before
    if len(kept) < min_keep or before.ranking.is_sorted:
        return before.keep_first(max(min_keep, len(kept)))
    return before.keep(kept)


def _round_up(bound: float, dtype: np.dtype[np.float32] | np.dtype[np.float64]) -> np.float32 | np.float64:
    """The least number of this type not below `bound`: comparing with it decides as float64 would."""
    kind = dtype.type
    rounded = kind(max(bound, float(np.finfo(dtype).min)))
    return rounded if float(rounded) >= bound else np.nextafter(rounded, kind(np.inf))
