"""Fits the polynomial of kernels/elementwise.py's gelu_erf8: Φ(−a)·e**(a²/2) in t = 1/(1 + a/2), a from 0 to 13.2.

Least squares of the relative error at Chebyshev nodes, in float64; prints the coefficients, the highest power first.
"""

from __future__ import annotations

import math

import numpy as np

DEGREE, MOST = 10, 13.2


def wanted(t: float) -> float:
    a = 2 * (1 / t - 1)
    return 0.5 * math.erfc(a / math.sqrt(2)) * math.exp(a * a / 2)


def main() -> None:
    low = 1 / (1 + MOST / 2)
    nodes = (1 + low) / 2 + (1 - low) / 2 * np.cos(np.pi * (np.arange(400) + 0.5) / 400)
    right = np.array([wanted(t) for t in nodes])
    powers = nodes[:, None] ** np.arange(DEGREE + 1)
    fit = np.linalg.lstsq(powers / right[:, None], np.ones(len(nodes)), rcond=None)[0]
    off = np.abs(np.polyval(fit[::-1].astype(np.float32).astype(np.float64), nodes) / right - 1).max()
    print(f"largest relative error {off:.1e}")
    print(", ".join(f"{c:.9g}" for c in fit[::-1]))


if __name__ == "__main__":
    main()
