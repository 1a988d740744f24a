"""What a policy step is, and the checks its parameters share.

A step is a small frozen dataclass: a name, its parameters, whether it leaves the best token the best, and
one pure function from a distribution to a distribution. To add one: write the class, add a row to the table
in policy.py and a test beside the others.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from glassbox.errors import ParameterError
from glassbox.policy.distribution import Distribution


@dataclass(frozen=True)
class Past:
    """The ids before the one to be chosen, for steps that look back."""

    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()


class Step(Protocol):
    name: ClassVar[str]
    argmax_invariant: ClassVar[bool]  # the best token before is the best token after, whatever the logits

    @property
    def params(self) -> Mapping[str, float]:
        """As the ledger shows them."""
        ...

    def __call__(self, before: Distribution, past: Past) -> Distribution: ...


def real(name: str, value: object, low: float, high: float, allowed: str, *, above: bool = False) -> float:
    """A finite number from `low` (with `above`: beyond it) to `high`; True and "1" are not numbers."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ParameterError(name, value, allowed)
    try:
        number = float(value)
    except OverflowError:
        raise ParameterError(name, value, allowed) from None
    if not math.isfinite(number) or number < low or number > high or (above and number == low):
        raise ParameterError(name, value, allowed)
    return number


def whole(name: str, value: object, low: int, high: int | None, allowed: str) -> int:
    """A whole number from `low` to `high`; neither True nor 1.0 is one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ParameterError(name, value, allowed)
    number = int(value)
    if number < low or (high is not None and number > high):
        raise ParameterError(name, value, allowed)
    return number
