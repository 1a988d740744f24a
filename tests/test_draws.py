"""A million draws: what is drawn is distributed as the policy says, by a chi-square test with fixed seeds.

The numbers of one seed and sequence at positions 0, 1, 2 … are numpy's Philox at a counter that counts up, so a million
come at once; the walk down the ranking is a search in the same sums. Both are held to `choose` itself, draw by draw,
for the first CHECKED positions. The bounds on chi-square leave out 1 in 10,000 at either end (Wilson & Hilferty 1931).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from glassbox.choose import choose, philox_uniform
from glassbox.policy.policy import Policy, Shaped

DRAWS, CHECKED = 1_000_000, 4000
Z = 3.719  # of the normal distribution, 1 in 10,000


def uniforms(seed: int, sequence: int, n: int) -> np.ndarray:
    """The draws at positions 0 … n - 1, float64 [n]. numpy counts up before each block of four words."""
    before = np.full(4, 2**64 - 1, dtype=np.uint64)
    bits = np.random.Philox(key=np.array([seed, sequence], dtype=np.uint64), counter=before)
    return (bits.random_raw(4 * n)[::4] >> np.uint64(11)).astype(np.float64) * 2.0**-53


def drawn(shaped: Shaped, u: np.ndarray) -> np.ndarray:
    """The id each number draws, int64 [n]: in the order of `choose`, ranking by descending logit, then id."""
    d = shaped.final
    order = d.ranking.first(d.size)
    cdf = np.minimum(np.cumsum(d.weights_at(order)) / d.total, 1.0)
    return d.ids_at(order)[np.searchsorted(cdf, u, side="right")]


def chi_square(ids: np.ndarray, p: np.ndarray) -> tuple[float, int]:
    """(chi-square, degrees of freedom) with what is expected fewer than ten times taken together."""
    counts, expected = np.bincount(ids, minlength=len(p)), len(ids) * p
    often = expected >= 10
    seen, should = [*counts[often]], [*expected[often]]
    if expected[~often].sum() > 0:
        seen, should = [*seen, counts[~often].sum()], [*should, expected[~often].sum()]
    a, b = np.array(seen), np.array(should)
    return float(((a - b) ** 2 / b).sum()), len(a) - 1


def quantile(free: int, z: float) -> float:
    return free * (1 - 2 / (9 * free) + z * math.sqrt(2 / (9 * free))) ** 3


def spread(sigma: float) -> Callable[[], np.ndarray]:
    return lambda: (np.random.default_rng(11).standard_normal(49152) * sigma).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "seed", "logits", "policy"),
    [
        ("peaked", 1, spread(6.0), Policy()),
        ("flat", 2, lambda: np.zeros(1000, np.float32), Policy()),
        ("top-p", 3, spread(3.0), Policy(temperature=0.8, top_p=0.9)),
        ("min-p", 2**64 - 1, spread(3.0), Policy(temperature=1.3, min_p=0.02)),
        ("a few", 5, lambda: np.float32([0, 2, -1, 1.5, 0.5, 2, -3, 1]), Policy(temperature=0.9, top_k=7)),
    ],
)
def test_a_million_draws(name: str, seed: int, logits: Callable[[], np.ndarray], policy: Policy) -> None:
    shaped, sequence = policy.shape(logits()), 3
    u = uniforms(seed, sequence, DRAWS)
    assert [philox_uniform(seed, sequence, t) for t in range(100)] == u[:100].tolist()
    ids = drawn(shaped, u)
    for t in range(CHECKED):
        found = choose(shaped, seed=seed, sequence=sequence, position=t)
        assert (found.id, found.u) == (ids[t], u[t]), (name, t)
    assert (shaped.probs[np.unique(ids)] > 0).all()
    found, free = chi_square(ids, shaped.probs)
    assert quantile(free, -Z) < found < quantile(free, Z), (name, found, free)
