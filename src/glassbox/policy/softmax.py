"""Softmax, its logarithm and the log-sum-exp, in float64, along the last axis.

In: any real array; -inf means "not possible" and gets probability 0. Out: float64.
But: no temperature and no steps here; those are the policy's. Writing p = exp(z - max) / sum(exp(z - max))
instead of exp(z) / sum(exp(z)) changes nothing in exact arithmetic and cannot overflow (Blanchard, Higham &
Higham, "Accurately computing the log-sum-exp and softmax functions", IMA J. Numer. Anal. 41, 2021).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from glassbox.errors import EmptySupport, NonFiniteLogits
from glassbox.model.kernels.build import load
from glassbox.types import F64


def stable_softmax(logits: npt.ArrayLike) -> F64:
    """exp(z_i) / sum_j exp(z_j), over the last axis."""
    shifted, _ = _shift(logits)  # [..., V]
    weights = exp(shifted)
    total: F64 = weights.sum(axis=-1, keepdims=True)  # [..., 1]
    return weights / total


def log_softmax(logits: npt.ArrayLike) -> F64:
    """z_i - log sum_j exp(z_j). Not log(softmax): that underflows to -inf where this still says -800."""
    shifted, _ = _shift(logits)  # [..., V]
    total: F64 = np.log(exp(shifted).sum(axis=-1, keepdims=True))  # [..., 1]
    return shifted - total


def logsumexp(logits: npt.ArrayLike) -> F64:
    """log sum_j exp(z_j), over the last axis; a row gives an array of no dimensions."""
    shifted, top = _shift(logits)  # [..., V], [..., 1]
    total: F64 = np.log(exp(shifted).sum(axis=-1))  # [...]
    return np.asarray(total + top[..., 0], dtype=np.float64)


def exp(z: F64) -> F64:
    """e**z of each, for z of at most 700; what is below e**-708 is 0, and -inf may be given, NaN not.

    Compiled, as in the sums of a distribution: a library's differs from machine to machine in its last bit, and a draw
    may fall on it."""
    given, found = np.ascontiguousarray(z), np.empty(z.shape)
    load().exp(given.ctypes.data, found.ctypes.data, given.size)
    return found


def _shift(logits: npt.ArrayLike) -> tuple[F64, F64]:
    """(z - max, max) with max along the last axis; refuses what has no distribution."""
    z = np.asarray(logits, dtype=np.float64)
    if z.ndim == 0 or z.shape[-1] == 0:
        raise EmptySupport("softmax")
    top: F64 = z.max(axis=-1, keepdims=True)  # [..., 1]; NaN anywhere in a row makes its max NaN
    if not np.all(np.isfinite(top)):
        bad = np.flatnonzero(~(z < np.inf))
        if len(bad):
            raise NonFiniteLogits("softmax", position=int(bad[0]) % z.shape[-1])
        raise EmptySupport("softmax")
    return z - top, top
