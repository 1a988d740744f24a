"""The policy as anybody would write it, slowly: Python floats and a full sort. The tests' oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence

TOP_P_TOLERANCE = 1e-9  # stated again on purpose: a changed tolerance must show
MIN_P_TOLERANCE = 2.0**-24


def ranked(logits: Sequence[float]) -> list[int]:
    """Ids that are possible, by descending logit, ties by lower id."""
    return sorted((i for i, x in enumerate(logits) if x > -math.inf), key=lambda i: (-logits[i], i))


def softmax(logits: Sequence[float], alive: Sequence[int], temperature: float = 1.0) -> dict[int, float]:
    """p of the ids alive (in ranking order), exactly summed."""
    top = logits[alive[0]]
    weights = {i: math.exp((logits[i] - top) / temperature) for i in alive}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in weights.items()}


def entropy(p: dict[int, float]) -> float:
    return -math.fsum(x * math.log(x) for x in p.values() if x > 0)


def shape(logits: Sequence[float], steps: Sequence[tuple[str, float]]) -> list[dict[int, float]]:
    """The distribution before the first step and after each one; ids that are gone are absent."""
    alive, temperature = ranked(logits), 1.0
    p = softmax(logits, alive)
    stages = [p]
    for name, value in steps:
        if name == "temperature" and value == 0:
            alive = alive[:1]
        elif name == "temperature":
            temperature *= value
        elif name == "top_k" and value > 0:
            alive = alive[: int(value)]
        elif name == "top_p" and value < 1:
            alive = _nucleus(alive, p, value)
        elif name == "min_p" and value > 0:
            bound = math.log(value) * (1 + MIN_P_TOLERANCE)
            alive = [i for i in alive if (logits[i] - logits[alive[0]]) / temperature >= bound]
        p = softmax(logits, alive, temperature)
        stages.append(p)
    return stages


def _nucleus(alive: list[int], p: dict[int, float], top_p: float) -> list[int]:
    mass = 0.0
    for n, i in enumerate(alive, start=1):
        mass += p[i]
        if mass >= top_p - TOP_P_TOLERANCE:
            return alive[:n]
    return alive
