"""Choosing: one id from a shaped distribution, and the whole evidence of how.

In: a `Shaped` and what keys the draw. Out: a `Choice`. Pure: there is no generator whose state moves. The
number drawn at a position is Philox of (seed, sequence, position), so it never depends on how many draws
came before.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import numpy as np

from glassbox.policy.distribution import Distribution
from glassbox.policy.philox import philox, uniform
from glassbox.policy.policy import Shaped
from glassbox.policy.step import whole
from glassbox.types import F64, I64

__all__ = ["Choice", "check_seed", "choose", "choose_at", "draw_seed", "philox", "philox_uniform"]

_U64 = 2**64 - 1
_U64_RANGE = "a whole number from 0 to 2**64 - 1"


@dataclass(frozen=True)
class Choice:
    """What was chosen. The candidates stand in descending final probability, ties by lower id, each on an
    interval as long as its probability; the id is the one with cdf_lo <= u < cdf_hi, unless it was forced."""

    id: int
    u: float | None  # the number drawn, in [0, 1); None when greedy: nothing is drawn
    cdf_lo: float
    cdf_hi: float
    counter: tuple[int, int, int] | None  # (seed, sequence, position); None when greedy
    logprob_raw: float  # under the model alone
    logprob_final: float  # under what was drawn from
    rank_raw: int  # 0 is the model's first
    ties: int  # other ids with the same final probability; if greedy, with the same logit as the best


@np.errstate(under="ignore")  # a weight that underflows to 0 is right
def choose(shaped: Shaped, *, seed: int, sequence: int = 0, position: int, force: int | None = None) -> Choice:
    """The id drawn at this position of this sequence under this seed.

    force: the id to take instead, on its own interval (an empty one at the end if nothing is left of it); the number
    is drawn all the same, so that a forced id which would have been drawn is the same choice.
    """
    u: float | None = None
    counter: tuple[int, int, int] | None = None
    words = (_word("seed", seed), _word("sequence", sequence), _word("position", position))
    if shaped.greedy:
        chosen, low, high = shaped.final.best, 0.0, 1.0
    else:
        u, counter = uniform(*words), words
        chosen, low, high = _walk(shaped.final, u)
    if force is not None and force != chosen:
        chosen, low, high = _interval(shaped.final, force)
    return Choice(
        id=chosen,
        u=u,
        cdf_lo=low,
        cdf_hi=high,
        counter=counter,
        logprob_raw=shaped.raw_logprob(chosen),
        logprob_final=shaped.final_logprob(chosen),
        rank_raw=shaped.raw_rank(chosen),
        ties=shaped.ties(chosen),
    )


def _walk(d: Distribution, u: float) -> tuple[int, float, float]:
    """(id, cdf_lo, cdf_hi) of the interval u falls in. Looks only as far down the ranking as u makes it."""
    for order in d.ranking.growing():
        cdf = _cdf(d, len(order))
        at = int(cdf.searchsorted(u, side="right"))
        if at < len(order):
            chosen = int(d.ids_at(order[at : at + 1])[0])
            return chosen, float(cdf[at - 1]) if at else 0.0, float(cdf[at])
    raise AssertionError("unreachable: the last interval ends at 1, and u is below 1")


def _interval(d: Distribution, token_id: int) -> tuple[int, float, float]:
    """(id, cdf_lo, cdf_hi) of an id, wherever it stands."""
    if d.logprob(token_id) == -math.inf:
        return token_id, 1.0, 1.0
    order = d.ranking.first(d.size)
    cdf, at = _cdf(d, len(order)), int(np.flatnonzero(d.ids_at(order) == token_id)[0])
    return token_id, float(cdf[at - 1]) if at else 0.0, float(cdf[at])


def _cdf(d: Distribution, n: int) -> F64:
    """The upper ends of the first n intervals, [n]."""
    weights = d.best_weights(n)
    cdf: F64 = np.minimum(weights.cumsum() / d.total, 1.0)
    if n == d.size:
        # Rounding may leave the sum a hair below 1. The last id that has any weight takes what is left.
        cdf[n - 1 if weights[-1] else weights.nonzero()[0][-1] :] = 1.0
    return cdf


@np.errstate(under="ignore")
def choose_at(shaped: Shaped, draws: F64) -> I64:
    """The ids that `choose` would take at these draws, each in [0, 1): int64 [len(draws)]."""
    d = shaped.final
    if shaped.greedy:
        return np.full(len(draws), d.best)
    for order in d.ranking.growing():
        cdf = _cdf(d, len(order))
        at = np.searchsorted(cdf, draws, side="right")
        if not len(at) or at.max() < len(order):
            return d.ids_at(order[at])
    raise AssertionError("unreachable: the last interval ends at 1, and draws are below 1")


def philox_uniform(seed: int, sequence: int, position: int) -> float:
    """The draw at (seed, sequence, position): a float64 in [0, 1), from the top 53 bits of the first word."""
    return uniform(_word("seed", seed), _word("sequence", sequence), _word("position", position))


def draw_seed() -> int:
    """A fresh seed for when none is given: 53 bits of the system's entropy, which JavaScript and jq read exactly."""
    return secrets.randbits(53)


def check_seed(seed: object) -> int:
    """The seed, if it is one. Raises ParameterError."""
    return _word("seed", seed)


def _word(name: str, value: object) -> int:
    return whole(name, value, 0, _U64, _U64_RANGE)
