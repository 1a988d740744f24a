"""choose.py: the counter-based generator against its authors' vectors and numpy, and the walk it decides."""

from __future__ import annotations

import math

import numpy as np
import oracle_policy as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassbox.choose import _cdf, _walk, choose, choose_at, draw_seed, philox, philox_uniform
from glassbox.errors import ParameterError
from glassbox.policy.philox import uniform, uniforms
from glassbox.policy.policy import Policy

U64 = 2**64 - 1
_word = st.one_of(st.integers(0, 5), st.integers(0, U64), st.integers(U64 - 5, U64))


# ---- the generator


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [  # Random123, tests/kat_vectors, philox4x64 with 10 rounds
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
        ),
        (
            (U64, U64, U64, U64),
            (U64, U64),
            (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
        ),
        (
            (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
            (0x452821E638D01377, 0xBE5466CF34E90C6C),
            (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], block: tuple[int, ...]) -> None:
    assert philox(counter, key) == block  # type: ignore[arg-type]


@given(seed=_word, sequence=_word, position=_word)
@settings(derandomize=True, max_examples=200)
def test_the_draw_is_numpys_philox(seed: int, sequence: int, position: int) -> None:
    # numpy counts up before it makes a block, so it starts one below.
    start = (position - 1) % 2**256
    words = np.array([start >> (64 * i) & U64 for i in range(4)], dtype=np.uint64)
    bits = np.random.Philox(key=np.array([seed, sequence], dtype=np.uint64), counter=words)
    u = philox_uniform(seed, sequence, position)
    assert u == (int(bits.random_raw()) >> 11) * 2.0**-53
    assert 0.0 <= u < 1.0


@given(seed=_word, first=_word, position=_word, purpose=_word)
@settings(derandomize=True, max_examples=200)
def test_many_at_once_are_those_of_one_at_a_time(seed: int, first: int, position: int, purpose: int) -> None:
    sequences = [(first + i) % 2**64 for i in range(9)]
    found = uniforms(seed, np.array(sequences, np.uint64), position, purpose)
    assert found.tolist() == [uniform(seed, s, position, purpose) for s in sequences]


def test_draws_differ_by_seed_sequence_and_position() -> None:
    draws = {philox_uniform(a, b, c) for a in range(6) for b in range(6) for c in range(6)}
    assert len(draws) == 6**3


@pytest.mark.parametrize("bad", [-1, 2**64, 1.0, True, "7", None])
@pytest.mark.parametrize("name", ["seed", "sequence", "position"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_what_keys_a_draw_is_checked(name: str, bad: object, temperature: float) -> None:
    shaped = Policy(temperature=temperature).shape([1, 2])
    with pytest.raises(ParameterError) as caught:
        choose(shaped, **({"seed": 1, "sequence": 1, "position": 1} | {name: bad}))  # type: ignore[arg-type]
    assert caught.value.param == name


def test_a_drawn_seed_is_fresh_and_fits() -> None:
    seeds = {draw_seed() for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert max(seeds) > 2**45  # really 53 bits; fails once in 10^48 runs


# ---- the choice


def test_a_choice_carries_its_evidence() -> None:
    shaped = Policy(temperature=0.5).shape([1, 3, 3, 2])
    p = oracle.shape([1, 3, 3, 2], [("temperature", 0.5)])[-1]
    c = choose(shaped, seed=2**64 - 1, sequence=3, position=11)
    assert c.u == philox_uniform(2**64 - 1, 3, 11)
    assert c.counter == (2**64 - 1, 3, 11)
    assert c.cdf_lo <= c.u < c.cdf_hi
    assert c.cdf_hi - c.cdf_lo == pytest.approx(p[c.id], abs=1e-15)
    raw = oracle.shape([1, 3, 3, 2], [])[0]
    assert c.logprob_raw == pytest.approx(math.log(raw[c.id]), abs=1e-14)
    assert c.logprob_final == pytest.approx(math.log(p[c.id]), abs=1e-14)
    assert c.rank_raw == [1, 2, 3, 0].index(c.id)


def test_the_likeliest_begins_at_0_and_the_last_ends_at_1() -> None:
    final = Policy().shape([1, 3, 3, 2]).final
    edges = [0.0]
    for expected in (1, 2, 3, 0):  # descending probability, the tie by lower id
        chosen, low, high = _walk(final, edges[-1])
        assert (chosen, low) == (expected, edges[-1])
        assert _walk(final, math.nextafter(high, 0)) == (chosen, low, high)
        edges.append(high)
    assert edges[-1] == 1.0


def test_ties_are_counted() -> None:
    shaped = Policy().shape([3, 3, 3, 2, 1, 1])
    found = {choose(shaped, seed=s, position=0).id: choose(shaped, seed=s, position=0).ties for s in range(300)}
    assert found == {0: 2, 1: 2, 2: 2, 3: 0, 4: 1, 5: 1}
    assert choose(Policy(top_k=1).shape([2, 5, 5, 1]), seed=0, position=0).ties == 0  # nobody shares it any more


def test_greedy_draws_nothing() -> None:  # C05-09 (a)
    for policy in (
        Policy(temperature=0),
        Policy(temperature=0, top_k=2, order=("top_k", "temperature", "top_p", "min_p")),
    ):
        c = choose(policy.shape([2, 5, 5, 1]), seed=1, position=0)
        assert (c.id, c.u, c.cdf_lo, c.cdf_hi, c.counter) == (1, None, 0.0, 1.0, None)
        assert (c.logprob_final, c.rank_raw, c.ties) == (0.0, 0, 1)  # the tie that the lower id won
        assert c.logprob_raw == pytest.approx(-math.log(2 + math.exp(-3) + math.exp(-4)), abs=1e-14)


def test_top_k_1_draws_and_always_gets_the_lower_id() -> None:  # C05-09 (b)
    shaped = Policy(top_k=1).shape([2, 5, 5, 1])
    choices = [choose(shaped, seed=seed, position=0) for seed in range(1000)]
    assert {c.id for c in choices} == {1}
    assert len({c.u for c in choices}) == 1000


def test_top_p_1_is_not_greedy() -> None:  # C05-05 (a)
    shaped = Policy(top_p=1).shape([0, 0.1, 0.2])
    counts = np.bincount([choose(shaped, seed=seed, position=0).id for seed in range(3000)], minlength=3)
    np.testing.assert_allclose(counts / 3000, [0.3006, 0.3322, 0.3672], atol=0.03)


def test_an_id_without_weight_is_never_drawn() -> None:
    final = Policy().shape([0, -800, -math.inf, 0, -800]).final
    last = math.nextafter(1.0, 0)
    assert _walk(final, last)[0] == 3
    assert _walk(final, last)[2] == 1.0


@pytest.mark.parametrize("seed", range(60))
def test_rounding_neither_leaves_the_line_nor_reaches_an_id_without_weight(seed: int) -> None:
    """A sum of weights may come out a hair above or below the whole: among these seeds both happen."""
    logits = np.append(np.random.default_rng(seed).normal(0, 1, 8), [-60, -800, -801])
    final = Policy().shape(logits.astype(np.float32)).final
    cdf = _cdf(final, final.size)
    assert np.all(np.diff(cdf) >= 0) and np.all(cdf <= 1)
    assert cdf[8] == cdf[-1] == 1.0 and _walk(final, math.nextafter(1.0, 0))[0] < 9


def test_a_draw_on_a_border_is_the_next_ones_alone_and_among_many() -> None:
    final = (shaped := Policy().shape([0.0, 0.0, 0.0, 0.0])).final
    draws = np.array([0.0, 0.25, 0.5, 0.75])
    assert choose_at(shaped, draws).tolist() == [_walk(final, u)[0] for u in draws] == [0, 1, 2, 3]


@given(
    logits=st.lists(
        st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, 1.0, 3e38, -3e38])),
        min_size=1,
        max_size=300,
    ),
    seed=_word,
    temperature=st.sampled_from([0.3, 1.0, 50.0]),
)
@settings(derandomize=True, max_examples=300, deadline=None)
def test_u_always_lies_in_the_interval(logits: list[float], seed: int, temperature: float) -> None:
    shaped = Policy(temperature=temperature).shape(np.array(logits, dtype=np.float32))
    c = choose(shaped, seed=seed, position=5)
    assert c.u is not None
    assert 0.0 <= c.cdf_lo <= c.u < c.cdf_hi <= 1.0
    order = oracle.ranked(logits)
    p = oracle.softmax(logits, order, temperature)
    at = order.index(c.id)
    assert c.cdf_lo == pytest.approx(math.fsum(p[i] for i in order[:at]), abs=1e-12)
    assert c.cdf_hi == pytest.approx(math.fsum(p[i] for i in order[: at + 1]), abs=1e-12)


@pytest.mark.parametrize("u", [0.0, 0.1, 0.5, 0.9, 0.9999, 1 - 2.0**-53])
@pytest.mark.parametrize("policy", [Policy(), Policy(temperature=30), Policy(top_p=0.99), Policy(min_p=1e-6)])
def test_the_walk_down_a_whole_vocabulary(u: float, policy: Policy) -> None:
    logits = (np.random.default_rng(1).standard_normal(49152) * 2).astype(np.float32)
    final = policy.shape(logits).final
    chosen, low, high = _walk(final, u)
    probs = policy.shape(logits).probs
    order = np.argsort(-logits, kind="stable")
    order = order[probs[order] > 0]
    cdf = np.cumsum(probs[order])
    at = min(int(np.searchsorted(cdf, u, side="right")), len(order) - 1)
    assert chosen == order[at]
    assert low <= u < high
    assert low == pytest.approx(cdf[at] - probs[chosen], abs=1e-11)


@pytest.mark.slow
def test_100_000_draws_agree_with_the_probabilities() -> None:
    logits = [0.0, 2.0, -1.0, 1.5, 0.5, 2.0, -3.0, 1.0]
    policy = Policy(temperature=0.9, top_k=7)
    final = policy.shape(logits).final
    p = oracle.shape(logits, [("temperature", 0.9), ("top_k", 7)])[-1]
    n = 100_000
    # 100 seeds x 10 sequences x 100 positions: no axis of the key may carry a pattern
    draws = (philox_uniform(s, q, t) for s in range(100) for q in range(10) for t in range(100))
    counts = np.bincount([_walk(final, u)[0] for u in draws], minlength=8)
    assert counts[6] == 0
    chi2 = sum((counts[i] - n * x) ** 2 / (n * x) for i, x in p.items())
    assert chi2 < 22.46  # 6 degrees of freedom, 1 in 1,000
