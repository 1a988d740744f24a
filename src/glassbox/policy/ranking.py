"""Who comes first: positions ordered by descending logit, ties by the lower position.

In: one row of logits. Out: the first n positions of that order, for any n, at the price of about one pass
over the row.
But: it never sorts the whole row unless the whole row is asked for. A vocabulary has 49,152 to 262,144
entries and nearly every question about a step concerns the best few hundred.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from glassbox.model.kernels.build import load
from glassbox.policy.logits import Logits
from glassbox.types import F32, F64, I64

_SAMPLE = 1024  # evenly spaced logits that suggest a threshold
LEAST = 64  # the least that is ranked: the ledger asks for 5, then 8, then 16 more
_GROWTH = 8
_ROOM = 8192  # positions that are collected in one pass; where there are more, the row is nearly flat
_PLACES = np.arange(4096)  # the positions of a row that stands in order; not to be written to
_PLACES.flags.writeable = False


class Ranking:
    """The order of one row, found as far as somebody asked, and remembered."""

    __slots__ = ("_known", "_logits", "is_sorted")

    def __init__(self, logits: Logits, *, is_sorted: bool = False) -> None:
        self._logits = logits  # [n]
        self.is_sorted = is_sorted  # the row already stands in this order
        self._known: I64 = np.empty(0, dtype=np.int64)

    def first(self, n: int) -> I64:
        """The first min(n, len) positions."""
        n = min(n, len(self._logits))
        if self.is_sorted:
            return _PLACES[:n] if n <= len(_PLACES) else np.arange(n)
        if n > len(self._known):
            self._known = _rank(self._logits.whole, max(n, LEAST))
        return self._known[:n]

    @property
    def known(self) -> int:
        """How many positions `first` gives for nothing."""
        return len(self._logits) if self.is_sorted else len(self._known)

    def rank(self, position: int) -> int:
        """Of one position: 0 is the best. Looks at the whole row only where it is none of the best."""
        places = (self.first(LEAST) == position).nonzero()[0]
        return int(places[0]) if len(places) else rank_of(self._logits.whole, position)

    def count(self, logit: float) -> int:
        """How many have this logit. Looks at the whole row only where some of those may be none of the best."""
        best = self._logits.at(self.first(LEAST))
        if len(best) == len(self._logits) or best[-1] < logit:
            return int(np.count_nonzero(best == logit))
        return compared(self._logits.whole, logit)[1]

    def rewritten(self, logits: Logits, positions: I64) -> Ranking:
        """The order of `logits`, which differ from these at `positions` (ascending) only; knows what that leaves known.

        All that is at or above the last one known is known, so among what is not only those positions can rise."""
        made = Ranking(logits)
        if not self.is_sorted and 0 < len(self._known) < len(logits):
            stay = self._known[~_among(self._known, positions)]
            come = positions[logits.at(positions) >= self._logits.at(self._known[-1:])]
            both = np.sort(np.concatenate([stay, come]))
            made._known = _sort(logits.at(both), both)
        return made

    def without(self, logits: Logits, gone: I64) -> Ranking:
        """The order of `logits`, which are these without the positions `gone` (ascending)."""
        made = Ranking(logits, is_sorted=self.is_sorted)
        if not self.is_sorted:
            stay = self._known[~_among(self._known, gone)]
            made._known = stay - np.searchsorted(gone, stay)
        return made

    def growing(self) -> Iterator[I64]:
        """Ever longer prefixes of the order; the last is the whole of it."""
        size = len(self._logits)
        n = size if self.is_sorted else LEAST
        while n < size:
            yield self.first(n)
            n *= _GROWTH
        yield self.first(size)


def rank_of(logits: F32 | F64, token_id: int) -> int:
    """Of one id among a row of logits [V]: 0 is the best; of equal logits the lower id comes first."""
    above, _ = compared(logits, logits[token_id])
    return above + int(np.count_nonzero(logits[:token_id] == logits[token_id]))


def compared(logits: F32 | F64, logit: np.float32 | np.float64 | float) -> tuple[int, int]:
    """How many of these [n] are above this one, and how many are its equal."""
    if logits.dtype != np.float32:
        return int(np.count_nonzero(logits > logit)), int(np.count_nonzero(logits == logit))
    row, out = np.ascontiguousarray(logits), np.zeros(2, np.int64)
    out.view(np.float32)[0] = logit
    load().compare(row.ctypes.data, len(row), out.ctypes.data)
    return int(out[0]), int(out[1])


def at_or_above(logits: F32 | F64, bound: np.float32 | np.float64) -> I64:
    """The positions of those of these [n] that are at least this bound, which is of their type; ascending."""
    if logits.dtype != np.float32:
        return np.flatnonzero(logits >= bound)
    row, out = np.ascontiguousarray(logits), np.empty(_ROOM, np.int64)
    out.view(np.float32)[0] = bound
    found = load().select(row.ctypes.data, len(row), _ROOM, out.ctypes.data)
    return out[:found] if found <= _ROOM else np.flatnonzero(logits >= bound)


def _rank(logits: F32 | F64, want: int) -> I64:
    """At least min(want, len) positions, in order: all at or above some threshold, so no tie is split."""
    size = len(logits)
    if want * 4 >= size:
        return _sort(logits, np.arange(size))
    sample = np.sort(logits[:: max(1, size // _SAMPLE)])
    promised = want * len(sample) / size
    nth = 2 + int(promised + 2.5 * math.sqrt(promised))  # so low that one pass nearly always suffices
    while nth <= len(sample):
        above = at_or_above(logits, sample[-nth])
        if len(above) >= want:
            return _sort(logits[above], above)
        nth *= _GROWTH
    return _sort(logits, np.arange(size))


def _among(positions: I64, some: I64) -> npt.NDArray[np.bool_]:
    """Whether each of these is one of `some`, which ascend."""
    if not len(some):
        return np.zeros(len(positions), dtype=np.bool_)
    at = np.minimum(np.searchsorted(some, positions), len(some) - 1)
    found: npt.NDArray[np.bool_] = some[at] == positions
    return found


def _sort(logits: F32 | F64, positions: I64) -> I64:
    """`positions`, which ascend, by descending logit; equal logits stay in ascending position."""
    if logits.dtype != np.float32 or len(positions) < 128:
        return positions[np.argsort(-logits, kind="stable")]
    # numpy sorts plain integers ten times faster than it argsorts floats stably. So: 32 bits of logit, made
    # to ascend as the logit descends, above 32 bits of position. Adding 0 turns -0.0 into 0.0, its equal.
    bits = (logits + np.float32(0)).view(np.uint32)
    descending = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64)
    keys = (descending << np.uint64(32)) | positions.view(np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).view(np.int64)
