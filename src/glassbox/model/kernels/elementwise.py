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
    load1,
    load8,
    magnitude8,
    max8,
    min8,
    mul8,
    power_of_two,
    round8,
    splat8,
    sqrt1,
    store1,
    store8,
    sub8,
    sum8,
    unless_nan,
    zero8,
    zero_below,
)

EXP_LEAST = -87.0  # below, e**x is returned as 0 (it would be under 1.7e-38, the least normal float32 is 1.2e-38)
EXP_MOST = 88.0


@inlined
def exp8(x):
    """e**x to about 1 ulp: x = n·ln 2 + r, then the Taylor polynomial of degree 7 in r, |r| ≤ 0.35, by fma.

    Ours, because a library's exp differs from machine to machine. ln 2 is split in two (Cody and Waite), so r is exact
    to rounding. Above EXP_MOST it saturates. NaN stays NaN.
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


# Φ(−a)·e**(a²/2) as a polynomial in t = 1/(1 + a/2), t from 0.13 (a = 13.2, beyond which exp gives 0) to 1:
# the coefficients of the highest power first, fitted by tools/fit_gelu.py, largest relative error 4e-8.
TAIL = (
    -0.0454038231, 0.298896404, -0.837616833, 1.25551088, -0.996593233, 0.315329565, -0.0560801064, 0.169145044,
    0.19719379, 0.199622682, -4.3721853e-06,
)  # fmt: skip


@inlined
def gelu_erf8(x):
    """GELU as it is defined, x·Φ(x) = max(x, 0) − |x|·Φ(−|x|), Φ the normal distribution's."""
    a = magnitude8(x)
    t = div8(splat8(1.0), fma8(a, splat8(0.5), splat8(1.0)))
    p = splat8(TAIL[0])
    for c in TAIL[1:]:
        p = fma8(p, t, splat8(c))
    tail = mul8(p, exp8(mul8(mul8(a, a), splat8(-0.5))))
    return sub8(max8(x, zero8()), mul8(a, tail))


@inlined
def relu8(x):
    return max8(zero8(), x)  # in this order NaN stays NaN


@inlined
def tanh8(x):
    """tanh x = (e**2x − 1) / (e**2x + 1), where e**2x − 1 = 2**n·(e**r − 1) + (2**n − 1) keeps what is small exact.

    NaN stays NaN: what is broken must not look like a capped number.
    """
    y = min8(max8(add8(x, x), splat8(-20.0)), splat8(20.0))  # beyond, it is ±1 in float32
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
    two = power_of_two(splat8(1.0), n)
    less = fma8(two, mul8(p, r), sub8(two, splat8(1.0)))
    return unless_nan(div8(less, add8(less, splat8(2.0))), x)


@kernel
def layer_norm(x, weight, bias, out, n, eps):
    """out = weight · (x − mean x) / √(variance x + eps) + bias (Ba, Kiros and Hinton 2016). bias: an address or 0."""
    total = zero8()
    for o in range(0, 4 * n, 32):
        total = add8(total, load8(x + o))
    mean = splat8(sum8(total) / np.float32(n))
    total = zero8()
    for o in range(0, 4 * n, 32):
        v = sub8(load8(x + o), mean)
        total = fma8(v, v, total)
    scale = splat8(np.float32(1.0) / sqrt1(sum8(total) / np.float32(n) + np.float32(eps)))
    for o in range(0, 4 * n, 32):
        y = mul8(sub8(load8(x + o), mean), scale)
        if bias != 0:
            store8(out + o, fma8(y, load8(weight + o), load8(bias + o)))
        else:
            store8(out + o, mul8(y, load8(weight + o)))


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
def put(x, out, n):
    """Copy any number of float32, also to where no row begins."""
    for i in range(n):
        store1(out + 4 * i, load1(x + 4 * i))


@kernel
def scale_part(x, n, by):
    """The same for scaling, in place."""
    for i in range(n):
        store1(x + 4 * i, load1(x + 4 * i) * by)


@kernel
def cap_row(x, out, n, by):
    """out = by · tanh(x / by)."""
    inverse, most = splat8(np.float32(1.0) / by), splat8(by)
    for o in range(0, 4 * n, 32):
        store8(out + o, mul8(most, tanh8(mul8(load8(x + o), inverse))))


def gate_row(activation):
    """Make the function out = activation(gate) · up."""

    @kernel
    def run(gate, up, out, n):
        for o in range(0, 4 * n, 32):
            store8(out + o, mul8(activation(load8(gate + o)), load8(up + o)))

    return run


def activate_row(activation):
    @kernel
    def run(x, out, n):
        for o in range(0, 4 * n, 32):
            store8(out + o, activation(load8(x + o)))

    return run


silu_gate, silu_row = gate_row(silu8), activate_row(silu8)
gelu_gate, gelu_row = gate_row(gelu8), activate_row(gelu8)
gelu_erf_gate, gelu_erf_row = gate_row(gelu_erf8), activate_row(gelu_erf8)
relu_gate, relu_row = gate_row(relu8), activate_row(relu8)


@kernel
def rotate_halves(x, cos, sin, half):
    """Rotary embedding of one head, in place; pairs are (i, i + half), as in GPT-NeoX."""
    for o in range(0, 4 * half, 32):
        c, s = load8(cos + o), load8(sin + o)
        a, b = load8(x + o), load8(x + 4 * half + o)
        store8(x + o, sub8(mul8(a, c), mul8(b, s)))
        store8(x + 4 * half + o, add8(mul8(b, c), mul8(a, s)))


@kernel
def rotate_pairs(x, cos, sin, half, step, apart):
    """The same with pair i at x + step·i and `apart` bytes further: neighbours, or so few that no vector fills."""
    for i in range(half):
        c, s = load1(cos + 4 * i), load1(sin + 4 * i)
        p = x + step * i
        a, b = load1(p), load1(p + apart)
        store1(p, a * c - b * s)
        store1(p + apart, b * c + a * s)


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


@kernel
def choose_experts(scores, to, experts, used, normed, scratch):
    """Softmax, then the `used` likeliest (of equals the first): their weights at `to`, then their numbers."""
    padded = (experts + 7) // 8 * 8
    for i in range(experts):
        store1(scratch + 4 * i, load1(scores + 4 * i))
    for i in range(experts, padded):
        store1(scratch + 4 * i, np.float32(-1.0e30))
    softmax_row(scratch, padded)
    total = np.float32(0.0)
    for s in range(used):
        best, most = 0, np.float32(-1.0)
        for i in range(experts):
            p = load1(scratch + 4 * i)
            if p > most or p != p:  # NaN is chosen, so that it is seen
                best, most = i, p
        store1(scratch + 4 * best, np.float32(-2.0))
        store1(to + 4 * s, most)
        store1(to + 4 * (used + s), np.float32(best))
        total += most
    if normed:
        for s in range(used):
            store1(to + 4 * s, load1(to + 4 * s) / total)


@kernel
def mix_rows(x, chosen, out, n, used):
    """out = Σ weight · row of each chosen expert, in the order in which they were chosen."""
    for o in range(0, 4 * n, 32):
        total = zero8()
        for s in range(used):
            total = fma8(splat8(load1(chosen + 4 * s)), load8(x + 4 * n * s + o), total)
        store8(out + o, total)
