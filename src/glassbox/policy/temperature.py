"""Temperature: p_i proportional to exp(z_i / T). 1 changes nothing; 0 is its limit, greedy.

In: a distribution. Out: the same ids (greedy: one of them), sharper or flatter.
But: nothing is rounded to a temperature: 1e-6 and 1e6 are computed as they stand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from glassbox.policy.distribution import Distribution
from glassbox.policy.step import Past


@dataclass(frozen=True)
class Temperature:
    """z_i <- (logit_i - max) / T

    Source: Ackley, Hinton & Sejnowski, "A learning algorithm for Boltzmann machines", Cognitive Science 9 (1985)
    """

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
    """T = 0: only the best logit stays, of equal ones the lower id

    Source: the limit of softmax(z / T) as T goes to 0, with a rule for ties
    """

    name: ClassVar[str] = "greedy"
    argmax_invariant: ClassVar[bool] = True

    @property
    def params(self) -> Mapping[str, float]:
        return {"temperature": 0.0}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        return before.keep_first(1)


@dataclass(frozen=True)
class DynamicTemperature:
    """z_i <- (logit_i - max) / T', T' = lo + (hi - lo) (H / log n)^dynatemp_exponent over the n tokens alive,
    lo = max(0, T - dynatemp_range), hi = T + dynatemp_range; T' = 0 keeps the best alone

    Source: kalomaze, "Dynamic Temperature Sampling", in the form of llama.cpp, llama_sampler_init_temp_ext
    """

    name: ClassVar[str] = "dynamic_temperature"
    argmax_invariant: ClassVar[bool] = True
    temperature: float
    range: float
    exponent: float

    @property
    def params(self) -> Mapping[str, float]:
        return {
            "temperature": self.temperature, "dynatemp_range": self.range, "dynatemp_exponent": self.exponent,
        }  # fmt: skip

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        if before.size < 2:
            return before
        low, high = max(0.0, self.temperature - self.range), self.temperature + self.range
        flatness = min(1.0, before.entropy / math.log(before.size))
        found = low + (high - low) * flatness**self.exponent
        if found == 0.0:
            return before.keep_first(1).noted(found=found)
        return before.tempered(found).noted(found=found)
