"""The random numbers of everything that draws: a pure function of who asks, never a generator whose state moves.

In: seed, sequence, position, and what the number is for. Out: a float64 in [0, 1).
But: it decides nothing. choose.py draws the token with it (purpose 0); a step that draws has a purpose of its own, so
that switching it on changes no draw but its own.
"""

from __future__ import annotations

import math

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
