"""The functions of one number, over their whole range, against float64; and what experts are chosen."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numba import njit

from glassbox.model.kernels import elementwise as ew


@njit
def erf_gelu(x: int, out: int, n: int) -> None:
    ew.gelu_erf_row(x, out, n)


@njit
def tanh_gelu(x: int, out: int, n: int) -> None:
    ew.gelu_row(x, out, n)


@njit
def silu(x: int, out: int, n: int) -> None:
    ew.silu_row(x, out, n)


@njit
def relu(x: int, out: int, n: int) -> None:
    ew.relu_row(x, out, n)


@njit
def capped(x: int, out: int, n: int) -> None:
    ew.cap_row(x, out, n, np.float32(2.0))


@njit
def softmax(x: int, n: int) -> None:
    ew.softmax_row(x, n)


@njit
def choose(scores: int, to: int, experts: int, used: int, normed: int, scratch: int) -> None:
    ew.choose_experts(scores, to, experts, used, normed, scratch)


@njit
def layer_norm(x: int, weight: int, bias: int, out: int, n: int, eps: float) -> None:
    ew.layer_norm(x, weight, bias, out, n, np.float32(eps))


def tanh_form(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("kernel", "right", "relative"),
    [
        (erf_gelu, lambda x: x / 2 * math.erfc(-x / math.sqrt(2)), 4e-7),
        (tanh_gelu, tanh_form, 2e-6),
        (silu, lambda x: x / (1 + math.exp(-x)), 3e-7),
        (relu, lambda x: max(x, 0.0), 0.0),
        (capped, lambda x: 2 * math.tanh(x / 2), 3e-7),
    ],
    ids=["gelu_erf", "gelu", "silu", "relu", "cap"],
)
def test_functions(kernel: Callable[..., None], right: Callable[[float], float], relative: float) -> None:
    """Off by at most `relative` of the value (or of |x|, where the value is far smaller than that)."""
    tiny = 10.0 ** np.arange(-30, 0)
    x = np.concatenate([np.linspace(-40, 40, 4001), tiny, -tiny, [0, -0.0, 1e30, -1e30]]).astype(np.float32)
    x = np.concatenate([x, np.zeros(-len(x) % 8, np.float32)])
    out = np.full_like(x, np.nan)
    kernel(x.ctypes.data, out.ctypes.data, len(x))
    with np.errstate(over="ignore"):
        exact = np.array([right(float(v)) if abs(v) < 100 else limit(right, float(v)) for v in x])
    scale = np.maximum(np.abs(exact), np.abs(x) * 1e-2)
    assert (np.abs(out - exact) <= relative * scale).all(), x[np.argmax(np.abs(out - exact) / np.maximum(scale, 1e-38))]


@pytest.mark.parametrize("kernel", [erf_gelu, tanh_gelu, silu, relu, capped], ids=lambda k: k.__name__)
def test_nan_stays_nan(kernel: Callable[..., None]) -> None:
    """In its own lane, and in no other."""
    x = np.linspace(-3, 3, 16, dtype=np.float32)
    whole, out = np.zeros(16, np.float32), np.zeros(16, np.float32)
    kernel(x.ctypes.data, whole.ctypes.data, 16)
    x[[0, 11]] = np.nan, -np.nan
    kernel(x.ctypes.data, out.ctypes.data, 16)
    assert np.isnan(out).nonzero()[0].tolist() == [0, 11]
    assert np.array_equal(np.delete(out, [0, 11]), np.delete(whole, [0, 11])) and np.isfinite(whole).all()


@pytest.mark.parametrize("where", [[0], [5, 9], list(range(16))], ids=["first", "two", "all"])
def test_softmax_of_nan_is_nan(where: list[int]) -> None:
    x = np.linspace(-3, 3, 16, dtype=np.float32)
    x[where] = np.nan
    softmax(x.ctypes.data, 16)
    assert np.isnan(x).all()


@pytest.mark.parametrize("normed", [0, 1])
def test_experts_of_nan_have_weights_of_nan(normed: int) -> None:
    scores = np.array([1, np.nan, 2, 0, -1], np.float32)
    to, scratch = np.zeros(8, np.float32), np.zeros(64, np.float32)
    choose(scores.ctypes.data, to.ctypes.data, 5, 3, normed, scratch.ctypes.data)
    assert np.isnan(to[:3]).all()
    chosen = to[3:6].astype(int).tolist()
    assert len(set(chosen)) == 3 and set(chosen) <= set(range(5))


def limit(right: Callable[[float], float], x: float) -> float:
    """Far out, where float64 overflows on the way: what the function is at 40 of that sign, or grows as x does."""
    near = right(math.copysign(40.0, x))
    return x if abs(near - 40.0) < 1e-9 else 0.0 if abs(near) < 1e-9 else near


@pytest.mark.parametrize("normed", [0, 1])
@pytest.mark.parametrize("experts", [2, 7, 8, 33])
def test_the_likeliest_experts_are_chosen(experts: int, normed: int) -> None:
    rng = np.random.default_rng(experts)
    scores = (3 * rng.standard_normal(experts)).astype(np.float32)
    scores[-1] = scores[0]  # of equals the first goes first
    used = min(experts, 4)
    to, scratch = np.zeros(8, np.float32), np.zeros(64, np.float32)
    choose(scores.ctypes.data, to.ctypes.data, experts, used, normed, scratch.ctypes.data)
    probs = np.exp(scores.astype(np.float64) - scores.max())
    probs /= probs.sum()
    best = np.argsort(-probs, kind="stable")[:used]
    assert to[used : 2 * used].astype(int).tolist() == best.tolist()
    right = probs[best] / (probs[best].sum() if normed else 1)
    assert np.abs(to[:used] - right).max() < 1e-6


@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm(biased: bool) -> None:
    rng = np.random.default_rng(1)
    x, weight, bias = ((rng.standard_normal(40) + 5).astype(np.float32) for _ in range(3))
    out = np.zeros(40, np.float32)
    layer_norm(x.ctypes.data, weight.ctypes.data, bias.ctypes.data if biased else 0, out.ctypes.data, 40, 1e-5)
    wide = x.astype(np.float64)
    right = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5) * weight + (bias if biased else 0)
    assert np.abs(out - right).max() < 1e-5
