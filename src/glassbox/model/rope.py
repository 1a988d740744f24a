"""Tables of the rotary embedding (Su et al. 2021): cos and sin of position · frequency, from float64.

Frequencies are base**(-2i/width), stretched as the model says. Every kind here depends on the position alone, never on
how long a sequence has become: a key that is cached must not have been another had it been computed later.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from glassbox.model.spec import Rope
from glassbox.types import F32

F64 = npt.NDArray[np.float64]


def frequencies(rope: Rope) -> F64:
    """float64 [width / 2]: radians a position."""
    plain: F64 = rope.base ** (-np.arange(0, rope.width, 2, dtype=np.float64) / rope.width)
    if rope.divisors:
        plain = plain / np.array(rope.divisors)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain)
    return plain


def _llama3(rope: Rope, plain: F64) -> F64:
    """Stretched where few turns fit into the original positions, left alone where many do, mixed between."""
    turns = rope.original * plain / (2 * math.pi)
    kept = np.clip((turns - rope.low) / (rope.high - rope.low), 0, 1)
    mixed: F64 = (1 - kept) * plain / rope.factor + kept * plain
    return mixed


def _yarn(rope: Rope, plain: F64) -> F64:
    """The same (Peng et al. 2023) with a ramp over the frequencies' numbers instead of their turns."""

    def number_of(turns: float) -> float:
        return rope.width * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = number_of(rope.fast), number_of(rope.slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.width - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low), 0, 1)
    mixed: F64 = plain / rope.factor * ramp + plain * (1 - ramp)
    return mixed


def yarn_gain(factor: float, weight: float = 1.0) -> float:
    """By how much yarn makes queries and keys longer each, for a factor."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_gain(factor: float, original: int) -> float:
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def slopes(heads: int) -> F32:
    """ALiBi's slope of each head: powers of 2**(-8/n) for n a power of two; of what is left, every other of 2n's."""
    n = 1 << heads.bit_length() - 1
    first = [2 ** (-8 * (i + 1) / n) for i in range(n)]
    rest = [2 ** (-4 * (2 * i + 1) / n) for i in range(heads - n)]
    return np.array(first + rest, np.float32)


class RopeTables:
    """For each rope, float32 [positions, width / 2] twice. Made for some positions, before a program names them."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self._tables: dict[Rope, tuple[F32, F32]] = {}

    def table(self, rope: Rope) -> tuple[F32, F32]:
        if rope not in self._tables:
            angle = np.arange(self.positions)[:, None] * frequencies(rope)  # [positions, width / 2]
            cos, sin = rope.gain * np.cos(angle), rope.gain * np.sin(angle)
            self._tables[rope] = cos.astype(np.float32), sin.astype(np.float32)
        return self._tables[rope]

    def address(self, rope: Rope) -> tuple[int, int]:
        cos, sin = self.table(rope)
        return cos.ctypes.data, sin.ctypes.data
