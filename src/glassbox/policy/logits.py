"""A row of logits, some of which a step gave other values.

In: an array and what is changed in it. Out: single values, or all of them as an array.
But: that array is made only when somebody asks for it. A penalty changes a few hundred of 262,144 logits, and fresh
memory for all of them costs more than everything else it does.
"""

from __future__ import annotations

import numpy as np

from glassbox.types import F32, F64, I64


class Logits:
    """[n], float32 or float64. Two arrays hold the same numbers: what was given, and what replaces some of it."""

    __slots__ = ("_changed", "_given", "_values", "_whole")

    def __init__(self, given: F32 | F64) -> None:
        self._given = given  # [n]
        self._changed: I64 | None = None  # [k], ascending positions
        self._values: F32 | F64 = given[:0]  # [k], what stands there now
        self._whole: F32 | F64 | None = given

    def __len__(self) -> int:
        return len(self._given)

    @property
    def whole(self) -> F32 | F64:
        """[n]. Not to be written to."""
        if self._whole is None:
            self._whole = self._given.copy()
            self._whole[self._changed] = self._values
        return self._whole

    def at(self, positions: I64) -> F32 | F64:
        """Those at these positions [m]; a copy."""
        if self._whole is not None or self._changed is None:
            found: F32 | F64 = self.whole[positions]
            return found
        found = self._given[positions]
        place = np.minimum(self._changed.searchsorted(positions), len(self._changed) - 1)
        return np.where(self._changed[place] == positions, self._values[place], found)

    def one(self, position: int) -> float:
        """The one at this position."""
        if self._whole is not None or self._changed is None:
            return float(self.whole[position])
        place = int(self._changed.searchsorted(position))
        changed = place < len(self._changed) and self._changed[place] == position
        return float(self._values[place] if changed else self._given[position])

    def rewritten(self, positions: I64, values: F32 | F64) -> Logits:
        """With these values at these positions, which ascend."""
        made = Logits(self._given)
        made._whole = None
        made._changed = positions if self._changed is None else _union(self._changed, positions)
        made._values = self.at(made._changed)
        made._values[made._changed.searchsorted(positions)] = values
        return made


def _union(some: I64, others: I64) -> I64:
    """Of two lists of ascending positions; numpy's takes ten times as long."""
    both = np.concatenate([some, others])
    both.sort()
    return both[np.append(True, both[1:] != both[:-1])] if len(both) else both
