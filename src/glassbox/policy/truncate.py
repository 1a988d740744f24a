"""The steps that cut the tail: top-k, top-p, min-p.

Each keeps a prefix of the ranking (logit down, then id up), so the best token stays. The file states the
tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glassbox.policy.distribution import Distribution
from glassbox.policy.step import Past, real, whole

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
    """The k best logits, exactly k: a tie at the edge goes to the lower id.

    Source: Fan, Lewis & Dauphin, "Hierarchical Neural Story Generation", ACL 2018.
    """

    name: ClassVar[str] = "top_k"
    argmax_invariant: ClassVar[bool] = True
    top_k: int

    @property
    def params(self) -> Mapping[str, float]:
        return {"top_k": self.top_k}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        if self.top_k >= before.size:
            return before
        return before.keep(before.ranking.first(self.top_k), is_sorted=True)


@dataclass(frozen=True)
class TopP:
    """The smallest set of best tokens with sum p >= top_p - TOP_P_TOLERANCE.

    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020.
    """

    name: ClassVar[str] = "top_p"
    argmax_invariant: ClassVar[bool] = True
    top_p: float

    @property
    def params(self) -> Mapping[str, float]:
        return {"top_p": self.top_p}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        needed = (self.top_p - TOP_P_TOLERANCE) * before.total
        for order in before.ranking.growing():
            mass = np.cumsum(before.weights_at(order))  # [len(order)], float64, from the best down
            count = int(np.searchsorted(mass, needed, side="left")) + 1
            if count < before.size and count <= len(order):
                return before.keep(order[:count], is_sorted=True)
        return before


@dataclass(frozen=True)
class MinP:
    """Every token with p_i >= min_p * p_max, that is z_i - z_max >= log(min_p), less MIN_P_TOLERANCE.

    Source: Nguyen et al., "Turning Up the Heat: Min-p Sampling", ICLR 2025.
    """

    name: ClassVar[str] = "min_p"
    argmax_invariant: ClassVar[bool] = True
    min_p: float

    @property
    def params(self) -> Mapping[str, float]:
        return {"min_p": self.min_p}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        # As a bound on the logit itself: one comparison a token, and equal logits never part.
        bound = before.shift + math.log(self.min_p) * (1.0 + MIN_P_TOLERANCE) / before.beta
        kept = np.flatnonzero(before.logits >= _round_up(bound, before.logits.dtype))
        if len(kept) == before.size:
            return before
        return before.keep(kept, is_sorted=before.ranking.is_sorted)


def _round_up(bound: float, dtype: np.dtype[np.float32] | np.dtype[np.float64]) -> np.float32 | np.float64:
    """The least number of this type not below `bound`: comparing with it decides as float64 would."""
    kind = dtype.type
    rounded = kind(max(bound, float(np.finfo(dtype).min)))
    return rounded if float(rounded) >= bound else np.nextafter(rounded, kind(np.inf))


def top_k_value(value: object) -> int:
    number = whole("top_k", value, -1, 2**63 - 1, "a whole number from 1 to 2**63 - 1, or 0 or -1 for off")
    return max(number, 0)


def top_p_value(value: object) -> float:
    return real("top_p", value, 0.0, 1.0, "above 0 and at most 1 (1 is off)", above=True)


def min_p_value(value: object) -> float:
    return real("min_p", value, 0.0, 1.0, "from 0 (off) to 1")


def top_k_step(top_k: int) -> TopK | None:
    return TopK(top_k) if top_k else None


def top_p_step(top_p: float) -> TopP | None:
    return TopP(top_p) if top_p < 1.0 else None


def min_p_step(min_p: float) -> MinP | None:
    return MinP(min_p) if min_p > 0.0 else None
