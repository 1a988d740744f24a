"""The compiled passes over one row of logits, against numpy and the public xxhash."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from glassbox.generation import logits_hash
from glassbox.model.kernels.build import load
from glassbox.model.kernels.program import WEIGHED
from glassbox.model.sums import sum_rows
from glassbox.model.threads import Team
from glassbox.policy.policy import Policy
from glassbox.policy.ranking import at_or_above, compared
from glassbox.policy.softmax import exp

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 64, 1000, 49152)


def weigh(x: np.ndarray, top: int, beta: float) -> tuple[float, float]:
    out = np.array([float(x[top]), beta, 0.0, 0.0, 0.0, 0.0])
    load().weigh(x.ctypes.data, len(x), top, out.ctypes.data)
    return float(out[0]), float(out[1])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("beta", [1.0, 0.01, 1.25, 300.0])
def test_sums_are_those_of_float64(n: int, beta: float) -> None:
    x = (np.random.default_rng(n).standard_normal(n) * 5).astype(np.float32)
    top = int(x.argmax())
    z = (x.astype(np.float64) - float(x[top])) * beta
    w = np.exp(z)
    rest, weighted = weigh(x, top, beta)
    assert rest == pytest.approx(np.delete(w, top).sum(), rel=1e-13, abs=1e-300)
    assert weighted == pytest.approx((w * z).sum(), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("n", SIZES)
def test_powers_of_e_are_those_of_the_sums(n: int) -> None:
    z = -np.abs(np.random.default_rng(n).standard_normal(n)) * 40
    z[0] = -np.inf
    found, most = exp(z), np.finfo(np.float64).eps
    assert found.shape == (n,) and found[0] == 0.0
    assert (np.abs(found - np.exp(z)) <= 2 * most * np.exp(z)).all()
    lanes = [exp(z[[i] * 4])[3] for i in range(min(n, 9))]  # alone, in four lanes or in another place: the same bits
    assert lanes == [exp(z[i : i + 1])[0] for i in range(min(n, 9))] == found[:9].tolist()
    assert exp(np.array([[0.0, -708.5], [-708.0, -1.0]])).tolist() == [
        [1.0, 0.0],
        [pytest.approx(np.exp(-708.0), rel=1e-15), pytest.approx(np.exp(-1.0), rel=1e-15)],
    ]


def test_what_is_left_beside_a_certain_token_keeps_its_digits() -> None:
    x = np.array([60.0, 0.0, -5.0, 1.0, 0.5], np.float32)
    assert weigh(x, 0, 1.0)[0] == pytest.approx(np.exp(x[1:].astype(np.float64) - 60).sum(), rel=1e-14)


def test_extremes() -> None:
    assert weigh(np.array([3e38, -3e38], np.float32), 0, 1.0) == (0.0, pytest.approx(0.0))
    assert weigh(np.array([0.0, -700.0], np.float32), 0, 1.0)[0] == pytest.approx(np.exp(-700.0), rel=1e-12)
    assert np.isnan(weigh(np.array([0.0, -np.inf, 1.0], np.float32), 2, 1.0)[1])


@pytest.mark.parametrize("n", [1, 5, 49152, WEIGHED, WEIGHED + 1, 3 * WEIGHED + 7])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_team_sums_rows_as_one_thread_does(n: int, threads: int) -> None:
    rows = np.random.default_rng(n).standard_normal((4, n)).astype(np.float32) * 4
    rows[1, -1] = 50.0  # the best stands last
    rows[2, 0] = np.nan
    betas = [(1.0, 1.25), (0.5,), (1.0,), ()]
    found = sum_rows(Team(load(), threads), rows, betas)
    assert [sorted(f) for f in found] == [[1.0, 1.25], [0.5], [], []]
    for row, sums in zip(rows, found, strict=True):
        for beta, both in sums.items():
            assert both == weigh(row, int(row.argmax()), beta)


def test_sums_that_are_known_change_nothing() -> None:
    row = np.random.default_rng(3).standard_normal(1000).astype(np.float32) * 4
    policy = Policy(temperature=0.8, top_p=0.9)
    (sums,) = sum_rows(Team(load(), 2), row[None], [policy.betas])
    assert list(sums) == [1.0, 1.25]
    assert policy.shape(row, sums=sums).ledger == policy.shape(row).ledger


@pytest.mark.parametrize("n", SIZES)
def test_the_hash_is_xxh64(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    assert logits_hash(x) == xxhash.xxh64(x.tobytes()).hexdigest()
    assert logits_hash(np.array([x, x]).T[:, 0]) == logits_hash(x)  # a row that is not contiguous
    x[n // 2] = np.nextafter(x[n // 2], np.float32(9))
    assert logits_hash(x) == xxhash.xxh64(x.tobytes()).hexdigest()


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 1003])
def test_selecting_and_comparing_are_those_of_numpy(n: int) -> None:
    logits = np.random.default_rng(n).integers(-4, 5, n).astype(np.float32)
    logits[:: max(1, n // 3)] = -np.inf
    for bound in (*np.unique(logits), np.float32(9)):
        assert at_or_above(logits, bound).tolist() == np.flatnonzero(logits >= bound).tolist()
        assert compared(logits, bound) == (np.count_nonzero(logits > bound), np.count_nonzero(logits == bound))


def test_more_than_there_is_room_for_are_selected_too() -> None:
    logits = np.zeros(20_000, np.float32)
    assert at_or_above(logits, np.float32(0)).tolist() == list(range(20_000))
