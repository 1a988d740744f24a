"""Temperature: p_i proportional to exp(z_i / T). 1 changes nothing; 0 is its limit, greedy.

Source: Ackley, Hinton & Sejnowski, "A learning algorithm for Boltzmann machines", Cognitive Science 9
(1985).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from glassbox.policy.distribution import Distribution
from glassbox.policy.step import Past, real


@dataclass(frozen=True)
class Temperature:
    """z_i <- (logit_i - max) / T. Removes nobody; sharpens below 1, flattens above."""

    name: ClassVar[str] = "temperature"
    argmax_invariant: ClassVar[bool] = True
    temperature: float

    @property
    def params(self) -> Mapping[str, float]:
        return {"temperature": self.temperature}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        return before.tempered(self.temperature)


@dataclass(frozen=True)
class Greedy:
    """T = 0: only the best logit stays, of equal ones the lower id."""

    name: ClassVar[str] = "greedy"
    argmax_invariant: ClassVar[bool] = True

    @property
    def params(self) -> Mapping[str, float]:
        return {"temperature": 0.0}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        return before.keep(before.ranking.first(1), is_sorted=True)


def temperature_value(value: object) -> float:
    return real("temperature", value, 0.0, math.inf, "a finite number, 0 (greedy) or more")


def temperature_step(temperature: float) -> Temperature | Greedy | None:
    if temperature == 0.0:
        return Greedy()
    return None if temperature == 1.0 else Temperature(temperature)
