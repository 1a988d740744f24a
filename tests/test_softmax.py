"""softmax.py: right values at ordinary and hostile logits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from glassbox.errors import EmptySupport, NonFiniteLogits
from glassbox.policy.softmax import log_softmax, logsumexp, stable_softmax

P012 = [0.09003057317038046, 0.24472847105479767, 0.6652409557748219]


@pytest.mark.parametrize("shift", [0.0, 1000.0, -240.0, 3e38])
def test_a_constant_shift_changes_nothing(shift: float) -> None:  # C04-06
    logits = np.array([0.0, 1.0, 2.0]) + shift
    expected = P012 if shift < 1e38 else [1 / 3] * 3  # float64 cannot tell 3e38 from 3e38 + 2
    np.testing.assert_allclose(stable_softmax(logits), expected, rtol=1e-14)


def test_float32_rows_and_their_extremes() -> None:
    rows = np.array([[3e38, -3e38, 0], [-np.inf, 0, -np.inf], [3, 2, 1]], dtype=np.float32)
    expected = [[1, 0, 0], [0, 1, 0], P012[::-1]]
    np.testing.assert_allclose(stable_softmax(rows), expected, rtol=1e-14)
    assert stable_softmax(rows).dtype == np.float64


def test_log_softmax_goes_where_softmax_underflows() -> None:  # C04-07
    assert log_softmax([0.0, -800.0]).tolist() == [0.0, -800.0]
    assert stable_softmax([0.0, -800.0]).tolist() == [1.0, 0.0]
    assert log_softmax([0.0, -math.inf]).tolist() == [0.0, -math.inf]


def test_prompt_scores_come_from_the_row_before() -> None:  # C03-01
    after = {"a": [0, 1, 2, 3], "b": [3, 2, 1, 0], "d": [1, -1, 1, -1]}
    prompt, vocab = "abd", "abcd"
    scores = [None]
    for before, token in itertools.pairwise(prompt):
        scores.append(round(float(log_softmax(after[before])[vocab.index(token)]), 4))
    assert scores == [None, -2.4402, -3.4402]
    np.testing.assert_allclose(log_softmax(after["d"]), [-0.8201, -2.8201, -0.8201, -2.8201], atol=5e-5)


def test_logsumexp() -> None:
    assert float(logsumexp([3.0, 2.0, 1.0])) == pytest.approx(3.4076059644443806, abs=1e-15)
    assert float(logsumexp([1000.0, 1000.0])) == pytest.approx(1000 + math.log(2), abs=1e-12)
    assert logsumexp(np.zeros((2, 4))).tolist() == [math.log(4)] * 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_distribution_is_refused(bad: float) -> None:
    with pytest.raises(NonFiniteLogits) as caught:
        stable_softmax([[0.0, 1.0, 2.0], [0.0, 1.0, bad]])
    assert caught.value.position == 2
    for empty in ([-math.inf, -math.inf], [], [[0.0, 1.0], [-math.inf, -math.inf]]):
        with pytest.raises(EmptySupport):
            log_softmax(empty)
