"""What a policy step is, and what it sees of the ids before.

A step is a small frozen dataclass: a name, its parameters, whether it leaves the best token the best, and one pure
function from a distribution to a distribution. The first paragraph of its docstring is its formula, the one that
begins with "Source" says where that is from; `glassbox policy` prints both. To add one: write the class, add a row to
table.py, its parameters to parameters.py and policy.py, and a test beside the others.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from glassbox.errors import ParameterError
from glassbox.policy.distribution import Distribution
from glassbox.types import F32, F64, I64

if TYPE_CHECKING:
    from glassbox.policy.guide import Guide

Scope = str | int  # "prompt+output", "output", or a number N: the last N of both
EVERYTHING, OUTPUT = "prompt+output", "output"

MOST_LISTED = 2**22  # of a list that is passed: more than ids in any vocabulary or context


@dataclass(frozen=True)
class Views:
    """What further passes of the model gave, for steps that need more than its row of logits; passes.py makes it."""

    negative: F32 | None = None  # [V], of the same output behind another prompt
    layers: Mapping[int, F32] = field(default_factory=dict)  # [V] each: as if the model ended before this layer
    similarity: Callable[[I64], F64] | None = None  # ids [k] -> [k], each one's largest cosine with what is there


@dataclass(frozen=True)
class Past:
    """The ids before the one to be chosen, for steps that look back, and the key of what steps draw."""

    prompt_ids: Sequence[int] | I64 = ()
    output_ids: Sequence[int] = ()
    seed: int | None = None  # None: whatever draws refuses to
    sequence: int = 0
    guide: Guide | None = None  # what a grammar allows; None: a policy with a grammar refuses to run
    logprobs: Sequence[float] = ()  # nats, of each output id under what it was drawn from
    views: Views | None = None  # where a step needs them

    @property
    def position(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @cached_property
    def output(self) -> I64:
        return np.asarray(self.output_ids, dtype=np.int64)

    @cached_property
    def everything(self) -> I64:
        return np.concatenate([np.asarray(self.prompt_ids, dtype=np.int64), self.output])

    @cached_property
    def _counts(self) -> dict[Scope, tuple[I64, I64]]:
        return {}

    def counts(self, scope: Scope) -> tuple[I64, I64]:
        """(the ids of this scope, ascending; how often it has each). Counted once, whoever asks."""
        if scope not in self._counts:
            self._counts[scope] = np.unique(self.within(scope), return_counts=True)
        return self._counts[scope]

    def within(self, scope: Scope) -> I64:
        """The ids that a step of this scope looks back on, oldest first."""
        if scope == OUTPUT:
            return self.output
        return self.everything if isinstance(scope, str) else self.everything[max(0, self.position - scope) :]


class Step(Protocol):
    name: ClassVar[str]
    argmax_invariant: ClassVar[bool]  # the best token before is the best token after, whatever the logits

    @property
    def params(self) -> Mapping[str, float]:
        """As the ledger shows them: numbers; of a list of ids how many there are."""
        ...

    def __call__(self, before: Distribution, past: Past) -> Distribution: ...


def needs_of(step: object) -> str:
    """What a step needs beside the row of logits: "negative", "layers" or "candidates"; most need nothing."""
    return str(getattr(step, "needs", ""))


def like(values: npt.NDArray[Any], model: F32 | F64) -> F32 | F64:
    """In the precision of the logits they change. (Of numbers in Python numpy sees to it itself.)"""
    return values.astype(np.float32) if model.dtype == np.float32 else values.astype(np.float64)


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
    return number + 0.0  # -0.0 is 0.0


def listed(name: str, value: object, allowed: str) -> list[Any]:
    """What a collection holds, numpy's numbers as Python's. Raises ParameterError, also for more than anybody means: an
    iterator may never end."""
    given = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise ParameterError(name, value, allowed)
    found = list(islice(given, MOST_LISTED + 1))
    if len(found) > MOST_LISTED:
        raise ParameterError(name, value, f"{allowed}; at most {MOST_LISTED:,} of them")
    return found


def whole(name: str, value: object, low: int, high: int | None, allowed: str) -> int:
    """A whole number from `low` to `high`; neither True nor 1.0 is one."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, numbers.Integral)):
        raise ParameterError(name, value, allowed)
    number = int(value)
    if number < low or (high is not None and number > high):
        raise ParameterError(name, value, allowed)
    return number
