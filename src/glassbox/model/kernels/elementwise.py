"""What happens to one row of activations at a time: exp, norms, activations, sums, rotary embedding.

A row is `n` float32 at an address, n a multiple of eight. Sums run in the same eight lanes and tree as everywhere.
"""

from __future__ import annotations

import numpy as np

from glassbox.model.kernels.formats import inlined, kernel
from glassbox.model.kernels.simd import (
    add8,
    div8,
    fma8,
    largest8,
    load8,
    max8,
    min8,
    mul8,
    power_of_two,
    round8,
    splat8,
    sqrt1,
    store8,
    sub8,
    sum8,
    zero8,
    zero_below,
)

EXP_LEAST = -87.0  # below, e**x is returned as 0 (it would be under 1.7e-38, the least normal float32 is 1.2e-38)
EXP_MOST = 88.0


@inlined
def exp8(x):
    """e**x to about 1 ulp: x = n·ln 2 + r, then the Taylor polynomial of degree 7 in r, |r| ≤ 0.35, by fma.

    Ours, because a library's exp differs from machine to machine. ln 2 is split in two (Cody and Waite), so r is exact
    to rounding. Above EXP_MOST it saturates.
    """
    y = min8(max8(x, splat8(EXP_LEAST)), splat8(EXP_MOST))
    n = round8(mul8(y, splat8(1.4426950408889634)))
    r = fma8(n, splat8(-0.693359375), y)
    r = fma8(n, splat8(2.12194440e-4), r)
    p = splat8(0.00019841269841269841)  # 1/7!
    p = fma8(p, r, splat8(0.001388888888888889))
    p = fma8(p, r, splat8(0.008333333333333333))
    p = fma8(p, r, splat8(0.041666666666666664))
    p = fma8(p, r, splat8(0.16666666666666666))
    p = fma8(p, r, splat8(0.5))
    p = fma8(p, r, splat8(1.0))
    p = fma8(p, r, splat8(1.0))
    return zero_below(power_of_two(p, n), x, splat8(EXP_LEAST))


@inlined
def sigmoid_times(x, gain):
    """x · sigmoid(gain · x): SiLU with gain 1."""
    e = exp8(sub8(zero8(), mul8(gain, x)))
    return div8(x, add8(splat8(1.0), e))


@inlined
def silu8(x):
    return sigmoid_times(x, splat8(1.0))


@inlined
def gelu8(x):
    """GELU in its tanh form, x·(1 + tanh u)/2 = x·sigmoid(2u), with u = √(2/π)·(x + 0.044715·x³)."""
    inner = fma8(mul8(mul8(x, x), splat8(0.044715)), x, x)
    e = exp8(mul8(splat8(-1.5957691216057308), inner))
    return div8(x, add8(splat8(1.0), e))


@kernel
def rms_norm(x, weight, out, n, eps):
    """out = weight · x / √(mean x² + eps) (Zhang and Sennrich 2019)."""
    total = zero8()
    for o in range(0, 4 * n, 32):
        v = load8(x + o)
        total = fma8(v, v, total)
    mean = sum8(total) / np.float32(n)
    scale = splat8(np.float32(1.0) / sqrt1(mean + np.float32(eps)))
    for o in range(0, 4 * n, 32):
        store8(out + o, mul8(mul8(load8(x + o), scale), load8(weight + o)))


@kernel
def add_rows(x, y, out, n):
    for o in range(0, 4 * n, 32):
        store8(out + o, add8(load8(x + o), load8(y + o)))


@kernel
def scale_row(x, out, n, by):
    for o in range(0, 4 * n, 32):
        store8(out + o, mul8(load8(x + o), splat8(by)))


@kernel
def copy_row(x, out, n):
    for o in range(0, 4 * n, 32):
        store8(out + o, load8(x + o))


@kernel
def silu_gate(gate, up, out, n):
    for o in range(0, 4 * n, 32):
        store8(out + o, mul8(silu8(load8(gate + o)), load8(up + o)))


@kernel
def gelu_gate(gate, up, out, n):
    for o in range(0, 4 * n, 32):
        store8(out + o, mul8(gelu8(load8(gate + o)), load8(up + o)))


@kernel
def rotate_halves(x, cos, sin, half):
    """Rotary embedding of one head, in place; pairs are (i, i + half), as in GPT-NeoX."""
    for o in range(0, 4 * half, 32):
        c, s = load8(cos + o), load8(sin + o)
        a, b = load8(x + o), load8(x + 4 * half + o)
        store8(x + o, sub8(mul8(a, c), mul8(b, s)))
        store8(x + 4 * half + o, add8(mul8(b, c), mul8(a, s)))


@kernel
def softmax_row(x, n):
    """In place, stable; the sum runs in eight lanes by position."""
    most = splat8(-3.0e38)
    for o in range(0, 4 * n, 32):
        most = max8(load8(x + o), most)
    top = splat8(largest8(most))
    total = zero8()
    for o in range(0, 4 * n, 32):
        e = exp8(sub8(load8(x + o), top))
        store8(x + o, e)
        total = add8(total, e)
    inverse = splat8(np.float32(1.0) / sum8(total))
    for o in range(0, 4 * n, 32):
        store8(x + o, mul8(load8(x + o), inverse))


@kernel
def fill(out, n, value):
    for o in range(0, 4 * n, 32):
        store8(out + o, splat8(value))
