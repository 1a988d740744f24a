"""The random numbers of everything that draws: a pure function of who asks, never a generator whose state moves.

In: seed, sequence, position, and what the number is for. Out: a float64 in [0, 1).
But: it decides nothing. choose.py draws the token with it (purpose 0); a step that draws has a purpose of its own, so
that switching it on changes no draw but its own.
"""

from __future__ import annotations

import math

import numpy as np

from glassbox.types import F64, U64

_U64 = 2**64 - 1
XTC = 1  # purposes: 0 is the choice of the token

# Philox4x64-10: Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11; the
# constants are those of the authors' Random123 library, which numpy uses too.
_MULTIPLY = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEP = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # golden ratio and sqrt(3) - 1, in 64 bits
_ROUNDS = 10


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The block of four 64-bit words at this counter, under this key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        a, b = _MULTIPLY[0] * c0, _MULTIPLY[1] * c2  # 128 bits each
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & _U64, (a >> 64) ^ c3 ^ k1, a & _U64
        k0, k1 = (k0 + _KEY_STEP[0]) & _U64, (k1 + _KEY_STEP[1]) & _U64
    return c0, c1, c2, c3


def uniform(seed: int, sequence: int, position: int, purpose: int = 0) -> float:
    """The top 53 bits of the first word at counter (position, purpose, 0, 0) under key (seed, sequence)."""
    return math.ldexp(philox((position, purpose, 0, 0), (seed, sequence))[0] >> 11, -53)


def uniforms(seed: int, sequences: U64, position: int, purpose: int = 0) -> F64:
    """`uniform` of each sequence, uint64 [n] -> float64 [n]: the same numbers, all at once."""
    zero = np.zeros(len(sequences), np.uint64)
    c0, c1, c2, c3 = zero + np.uint64(position), zero + np.uint64(purpose), zero, zero
    k0, k1 = seed, sequences
    for _ in range(_ROUNDS):
        (a_high, a_low), (b_high, b_low) = _product(_MULTIPLY[0], c0), _product(_MULTIPLY[1], c2)
        c0, c1, c2, c3 = b_high ^ c1 ^ np.uint64(k0), b_low, a_high ^ c3 ^ k1, a_low
        k0, k1 = (k0 + _KEY_STEP[0]) & _U64, k1 + np.uint64(_KEY_STEP[1])
    return np.ldexp((c0 >> np.uint64(11)).astype(np.float64), -53)


def _product(x: int, y: U64) -> tuple[U64, U64]:
    """The 128 bits of x · y, as two words: of halves of 32 bits, so that nothing is lost."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x0, x1, y0, y1 = np.uint64(x & 0xFFFFFFFF), np.uint64(x >> 32), y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)  # below 2^64: (2^32 - 1)^2 + 2^32 - 1
    other = x0 * y1 + (middle & low)
    return x1 * y1 + (middle >> half) + (other >> half), np.uint64(x) * y
