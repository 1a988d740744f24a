"""policy/: right values at the known traps, agreement with a slow oracle, and a ledger that adds up."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import oracle_policy as oracle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from glassbox.choose import choose
from glassbox.errors import EmptySupport, NonFiniteLogits, ParameterError
from glassbox.model.kernels.build import load
from glassbox.model.sums import sum_rows
from glassbox.model.threads import Team
from glassbox.policy.distribution import Distribution
from glassbox.policy.logits import Logits
from glassbox.policy.policy import DEFAULT_ORDER, RAW, Policy, Shaped, shape
from glassbox.policy.ranking import Ranking
from glassbox.policy.step import Past

FOUR = ("temperature", "top_k", "top_p", "min_p")
T_LAST = ("top_k", "top_p", "min_p", "temperature")


def kept(shaped: Shaped) -> list[int]:
    return np.flatnonzero(shaped.final.alive()).tolist()


def logprobs(*p: float) -> np.ndarray:
    return np.log(np.array(p)).astype(np.float32)


# ---- the known traps


def test_temperature_before_or_after_top_p() -> None:  # C05-01
    first = Policy(temperature=0.5, top_p=0.8).shape([3, 2, 1])
    assert first.probs.tolist() == [1.0, 0.0, 0.0]
    last = Policy(temperature=0.5, top_p=0.8, order=T_LAST).shape([3, 2, 1])
    np.testing.assert_allclose(last.probs, [0.880797, 0.119203, 0], atol=5e-7)
    assert [r.name for r in first.ledger] == [RAW, "temperature", "top_p"]
    assert [r.name for r in last.ledger] == [RAW, "top_p", "temperature"]
    np.testing.assert_allclose([p for _, p in first.ledger[0].top], [0.665241, 0.244728, 0.090031], atol=5e-7)
    np.testing.assert_allclose([p for _, p in first.ledger[1].top], [0.866813, 0.117310, 0.015876], atol=5e-7)


def test_raw_and_processed_logprobs_have_their_own_names() -> None:  # C03-06
    s = Policy(temperature=0.5, top_p=0.8, order=T_LAST).shape([3, 2, 1])
    assert s.raw_logprob(0) == pytest.approx(-0.4076, abs=5e-5)
    assert s.final_logprob(0) == pytest.approx(-0.1269, abs=5e-5)
    assert Policy(temperature=0.5).shape([3, 2, 1]).final_logprob(0) == pytest.approx(-0.1429, abs=5e-5)
    assert s.raw_logprob(2) == pytest.approx(-2.4076, abs=5e-5)
    assert s.final_logprob(2) == -math.inf
    gone = s.candidates(1, include=[2])[1]
    assert (gone.id, gone.p_final, gone.removed_by) == (2, 0.0, "top_p")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(min_p=0.3), [0, 1]),
        (Policy(temperature=2, min_p=0.3), [0, 1, 2]),
        (Policy(temperature=2, min_p=0.3, order=T_LAST), [0, 1]),
        (Policy(min_p=math.exp(-1)), [0, 1]),  # exactly the ratio of token 1: it stays
        (Policy(min_p=0.368), [0]),
    ],
)
def test_min_p(policy: Policy, expected: list[int]) -> None:  # C05-02
    assert kept(policy.shape([3, 2, 1])) == expected


def test_min_p_at_its_edges() -> None:
    assert kept(Policy(min_p=0.5).shape(logprobs(0.5, 0.25, 0.25))) == [
        0,
        1,
        2,
    ]  # as well as float32 can say half
    top = np.float32(0.75)
    below = np.nextafter(top, np.float32(0))
    assert kept(Policy(min_p=1).shape(np.array([0, top, below, top], dtype=np.float32))) == [1, 3]
    just_above = math.exp(-0.99999999 / (1 + oracle.MIN_P_TOLERANCE))  # nearer to -1 than any other float32
    assert kept(Policy(min_p=just_above).shape([0, -1])) == [0]
    assert kept(Policy(temperature=1e6, min_p=1).shape([3e38, -3e38, 3e38])) == [0, 2]
    assert kept(Policy(min_p=1e-300).shape([0, -600, -700])) == [0, 1]


@pytest.mark.parametrize(("top_p", "expected"), [(0.79, [0, 1]), (0.8, [0, 1]), (0.81, [0, 1, 2]), (0.49, [0])])
def test_top_p_when_the_sum_hits_p_exactly(top_p: float, expected: list[int]) -> None:  # C05-03
    assert kept(Policy(top_p=top_p).shape(logprobs(0.5, 0.3, 0.1, 0.1))) == expected


@pytest.mark.parametrize(("top_p", "count"), [(0.07, 7), (0.14, 14), (0.28, 28), (0.29, 29), (0.071, 8)])
def test_top_p_forgives_the_rounding_of_float64(top_p: float, count: int) -> None:
    assert kept(Policy(top_p=top_p).shape(np.zeros(100))) == list(range(count))  # 0.07 * 100 > 7 in float64


def test_top_p_sums_the_tail_in_float64() -> None:  # C05-05 (b)
    logits = np.full(49152, -18, dtype=np.float32)
    logits[0] = 0
    s = Policy(top_p=0.9995).shape(logits)
    assert kept(s) == list(range(16298))
    assert s.ledger[0].top[0][1] == pytest.approx(0.999251991, abs=5e-10)
    row = s.ledger[1]
    assert (row.removed_count, row.removed_ids) == (49152 - 16298, tuple(range(16298, 16314)))
    assert row.mass_removed == pytest.approx((49152 - 16298) * 1.521859e-8, rel=1e-6)


def test_top_k_at_every_size() -> None:  # C05-07
    logits = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    off = Policy().shape(logits)
    for k in (0, -1, 128, 129, 9999999):
        s = Policy(top_k=k).shape(logits)
        assert s.probs.tolist() == off.probs.tolist()
        assert all(r.removed_count == 0 for r in s.ledger)
    assert kept(Policy(top_k=1).shape(logits)) == [int(logits.argmax())]
    assert len(kept(Policy(top_k=127).shape(logits))) == 127
    with pytest.raises(ParameterError, match="top_k is -5"):
        Policy(top_k=-5)


def test_a_tie_at_the_kth_place_keeps_exactly_k() -> None:  # C05-08
    s = Policy(top_k=3).shape([1, 2, 2, 2, 3])
    assert kept(s) == [1, 2, 4]
    assert [i for i, _ in s.ledger[1].top] == [4, 1, 2]
    assert s.ledger[1].removed_ids == (3, 0)


@pytest.mark.parametrize("policy", [Policy(temperature=0), Policy(top_k=1), Policy(temperature=0, top_p=0.5, top_k=3)])
def test_the_lower_id_wins_a_tie_for_the_best(policy: Policy) -> None:  # C05-09
    assert policy.shape([2, 5, 5, 1]).probs.tolist() == [0, 1, 0, 0]


def test_a_tiny_temperature() -> None:  # C04-01
    logits = np.array([2, 3, 11], dtype=np.float16)
    for temperature in (1e-4, 1e-6, 5e-324):
        assert Policy(temperature=temperature).shape(logits).probs.tolist() == [0, 0, 1]
    tied = Policy(temperature=5e-324).shape(np.array([3e38, 3e38, -3e38], dtype=np.float32))
    assert tied.probs.tolist() == [0.5, 0.5, 0]


def test_a_huge_temperature() -> None:
    np.testing.assert_allclose(Policy(temperature=1e300).shape([0, 5, 11]).probs, [1 / 3] * 3, rtol=1e-15)
    expected = oracle.shape([0, 5, 11], [("temperature", 1e6)])[-1]
    np.testing.assert_allclose(
        Policy(temperature=1e6).shape([0, 5, 11]).probs, list(expected.values())[::-1], rtol=1e-15
    )


def test_shift_invariance() -> None:  # C04-06
    for logits in ([1000, 1001, 1002], [0, 1, 2], [-240, -239, -238]):
        np.testing.assert_allclose(Policy().shape(logits).probs, [0.090031, 0.244728, 0.665241], atol=5e-7)


def test_entropy_at_the_edges() -> None:  # C04-08
    def raw_entropy(*logits: float) -> float:
        return Policy().shape(logits).ledger[0].entropy

    assert raw_entropy(-math.inf, 0, -math.inf) == 0.0
    assert raw_entropy(3, 2, 1) == pytest.approx(0.832396, abs=5e-7)
    assert raw_entropy(7, 7, 7, 7) == pytest.approx(math.log(4), abs=1e-15)
    # Nearly certain: p log p of the rare one is all there is, and 1 + 5e-44 = 1 must not hide it.
    assert raw_entropy(0, -100) == pytest.approx(101 * math.exp(-100), rel=1e-12, abs=0)


def test_logprobs_below_the_smallest_float() -> None:  # C04-07
    s = Policy().shape([0, -800])
    assert (s.raw_logprob(1), s.final_logprob(1)) == (-800.0, -800.0)
    assert json.loads(json.dumps([c.to_dict() for c in s.candidates()], allow_nan=False))[1]["p_raw"] == 0.0


def test_the_mass_removed_is_exact_however_small() -> None:
    s = Policy(top_k=2).shape([0, -1, -60])
    assert s.ledger[1].mass_removed == pytest.approx(math.exp(-60) / (1 + math.exp(-1)), rel=1e-12, abs=0)


# ---- what must be refused


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 4, 9])
def test_non_finite_logits_are_named(value: float, at: int) -> None:  # C04-04
    logits = np.arange(10, dtype=np.float32)
    logits[at] = value
    logits[6] = -math.inf
    for policy in (Policy(), Policy(temperature=0), Policy(top_k=2)):
        with pytest.raises(NonFiniteLogits) as caught:
            policy.shape(logits)
        assert (caught.value.where, caught.value.position) == ("the forward pass", at)


def test_logits_beyond_float32_are_refused_not_rounded_to_infinity() -> None:
    with pytest.raises(NonFiniteLogits) as caught:
        Policy().shape(np.array([0.0, 1e300]))
    assert caught.value.position == 1


def test_nothing_possible_is_an_error_not_token_0() -> None:
    with pytest.raises(EmptySupport) as caught:
        Policy(temperature=0).shape([-math.inf] * 4)
    assert caught.value.step == RAW


@pytest.mark.parametrize("logits", [[], [[1.0, 2.0]], 3.0])
def test_logits_of_another_shape_are_refused(logits: object) -> None:
    with pytest.raises(ParameterError, match="logits"):
        Policy().shape(logits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", v) for v in (-1, -1e-9, math.nan, math.inf, True, "1", None, 10**400, 1j)),
        *(("top_p", v) for v in (0, -0.1, 1.0001, math.nan, math.inf, True, "0.9", None)),
        *(("min_p", v) for v in (-0.1, 1.0001, math.nan, math.inf, False, "0", None)),
        *(("top_k", v) for v in (-2, 1.0, math.nan, True, "5", None)),
        *(("order", v) for v in ("top_k", (*DEFAULT_ORDER, "top_k"), 3)),
        ("order", ("x", *DEFAULT_ORDER[1:])),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ParameterError) as caught:
        Policy(**{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name


# ---- the policy as data


def test_a_policy_is_comparable_printable_and_savable() -> None:
    policy = Policy(temperature=0.8, top_k=40, top_p=0.95)
    assert policy == Policy(0.8, 40, 0.95)
    assert policy != Policy(0.8, 40, 0.95, order=T_LAST)
    assert hash(policy) == hash(Policy(temperature=0.8, top_k=40, top_p=0.95))
    assert Policy(top_k=-1) == Policy()
    assert repr(policy) == "Policy(temperature=0.8 → top_k=40 → top_p=0.95)"
    assert (repr(Policy(temperature=0)), repr(Policy())) == ("Policy(temperature=0)", "Policy()")
    assert [s.name for s in policy.steps] == ["temperature", "top_k", "top_p"]
    for p in (
        policy,
        Policy(),
        Policy(temperature=np.float32(0.7), top_k=np.int64(3), min_p=0.1, order=T_LAST),
    ):
        assert Policy.from_dict(json.loads(json.dumps(p.to_dict(), allow_nan=False))) == p
    assert Policy.from_dict({"top_p": 0.9}) == Policy(top_p=0.9)
    with pytest.raises(ParameterError, match="atypical_p"):
        Policy.from_dict({"atypical_p": 0.9})


def test_neutral_steps_leave_no_row() -> None:
    assert Policy().steps == ()
    assert [r.name for r in Policy().shape([1, 2]).ledger] == [RAW]


# ---- steps from elsewhere: what a later step needs, it finds


@dataclass(frozen=True)
class Only:
    """Keeps some ids, as allowed or banned ids and grammars do."""

    name: ClassVar[str] = "allowed_ids"
    argmax_invariant: ClassVar[bool] = False
    ids: tuple[int, ...]

    @property
    def params(self) -> Mapping[str, float]:
        return {}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        positions = before.positions(np.array(self.ids, dtype=np.int64))
        return before.keep(np.sort(positions[positions >= 0]))


@dataclass(frozen=True)
class Add:
    """Adds to one logit, as a bias does."""

    name: ClassVar[str] = "logit_bias"
    argmax_invariant: ClassVar[bool] = False
    id: int
    bias: float

    @property
    def params(self) -> Mapping[str, float]:
        return {"bias": self.bias}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        logits = before.logits.astype(np.float64)
        logits[before.positions(np.array([self.id]))] += self.bias
        return Distribution.weigh(logits, vocab=before.vocab, ids=before.ids, beta=before.beta)


def test_the_step_that_empties_the_support_is_named() -> None:  # C04-03
    only = Only((2,))
    with pytest.raises(EmptySupport) as caught:
        shape([only, Add(2, -math.inf)], [0, 1, 2, 3])
    assert caught.value.step == "logit_bias"
    with pytest.raises(EmptySupport) as caught:
        shape([only, Only((1,))], [0, 1, 2, 3])
    assert caught.value.step == "allowed_ids"


@pytest.mark.parametrize("bias", [math.nan, math.inf])
def test_the_step_that_breaks_the_logits_is_named(bias: float) -> None:  # C04-04
    with pytest.raises(NonFiniteLogits) as caught:
        shape([Only((1, 3)), Add(3, bias)], [0, 1, 2, 3])
    assert (caught.value.where, caught.value.position) == ("policy step 'logit_bias'", 3)


def test_a_step_may_remove_the_best_and_move_the_argmax() -> None:
    s = shape([Only((0, 2)), Add(0, 5.0)], [0, 1000, 1])  # weights of 0 and 2 underflow beside id 1
    rows = s.ledger
    assert [r.argmax_changed for r in rows] == [False, True, True]
    assert (rows[1].mass_removed, rows[1].removed_ids) == (1.0, (1,))
    np.testing.assert_allclose([p for _, p in rows[1].top], [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])
    mild = shape([Only((0, 1))], [0, 1, 2])
    assert mild.ledger[1].mass_removed == pytest.approx(0.6652409557748219, abs=1e-15)
    np.testing.assert_allclose(mild.probs, [1 / (1 + math.e), math.e / (1 + math.e), 0], rtol=1e-14)
    np.testing.assert_allclose(s.probs, [1 / (1 + math.exp(-4)), 0, 1 / (1 + math.exp(4))], rtol=1e-14)
    assert [c.removed_by for c in s.candidates()] == ["allowed_ids", None, None]


def test_masked_logits_are_counted_in_the_first_row() -> None:
    s = Policy(top_k=1).shape([-math.inf, 1, -math.inf, 2])
    first, second = s.ledger
    assert (first.alive_before, first.alive_after, first.mass_removed, first.removed_ids) == (
        4,
        2,
        0.0,
        (0, 2),
    )
    assert (second.alive_before, second.alive_after, second.removed_ids) == (2, 1, (1,))
    masked = s.candidates(0, include=[0])[0]
    assert (masked.removed_by, masked.p_raw, masked.to_dict()["logit"]) == (RAW, 0.0, None)
    assert (s.raw_logprob(0), s.raw_rank(0), s.raw_rank(2), s.raw_rank(3)) == (-math.inf, 2, 3, 0)


# ---- the row and the candidates


def test_candidates() -> None:
    s = Policy(top_k=2).shape([1, 3, 3, 0, 2])
    found = s.candidates(3, include=[3, 1, 3])
    assert [c.id for c in found] == [1, 2, 4, 3]
    assert [c.logit for c in found] == [3, 3, 2, 0]
    assert [c.removed_by for c in found] == [None, None, "top_k", "top_k"]
    raw = oracle.softmax([1, 3, 3, 0, 2], [1, 2, 4, 0, 3])
    np.testing.assert_allclose([c.p_raw for c in found], [raw[c.id] for c in found], rtol=1e-14)
    np.testing.assert_allclose([c.p_final for c in found], [0.5, 0.5, 0, 0], rtol=1e-14)
    assert s.candidates(99) == s.candidates(5)
    for bad in (-1, 5, True, 1.0):
        with pytest.raises(ParameterError):
            s.candidates(include=[bad])  # type: ignore[list-item]


def test_a_ledger_is_plain_json() -> None:
    s = Policy(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1).shape([-math.inf, 3e38, -3e38, 0, 1])
    saved = json.loads(json.dumps([r.to_dict() for r in s.ledger], allow_nan=False))
    assert [r["name"] for r in saved] == [RAW, "temperature", "top_k", "top_p", "min_p"]
    assert saved[2]["params"] == {"top_k": 3}
    assert saved[2]["top"] == [[1, 1.0], [4, 0.0], [3, 0.0]]


def test_a_reused_buffer_cannot_change_what_was_shaped() -> None:
    logits = np.array([0, 1, 2], dtype=np.float32)
    s = Policy().shape(logits)
    logits[:] = 9
    np.testing.assert_allclose(s.probs, [0.090031, 0.244728, 0.665241], atol=5e-7)
    assert s.raw_rank(2) == 0


def test_numpys_own_alarms_stay_silent() -> None:
    policy = Policy(temperature=1e-6, top_k=4, top_p=0.9, min_p=0.1)
    with np.errstate(all="raise"):
        for p in (policy, Policy(), Policy(temperature=0)):
            s = p.shape([-math.inf, 3e38, -3e38, 0, -800, 3e38])
            assert s.probs.sum() == 1.0
            assert [c.id for c in s.candidates(2, include=[0])] == [1, 5, 0]
            assert choose(s, seed=0, position=0).id in (1, 5)


# ---- properties

_logit = st.one_of(
    st.floats(-30, 30, width=32),
    st.integers(-3, 3).map(float),  # ties
    st.sampled_from([3e38, -3e38, -math.inf, 0.0, -0.0, 1e-38]),
)
_logits = st.lists(_logit, min_size=1, max_size=40).map(lambda x: np.array(x, dtype=np.float32))
_temperature = st.one_of(st.floats(0.05, 20), st.sampled_from([0.0, 1.0, 1e-6, 1e6]))
_policies = st.builds(
    Policy,
    temperature=_temperature,
    top_k=st.integers(-1, 45),
    top_p=st.one_of(st.just(1.0), st.floats(0.001, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    order=st.permutations(FOUR).map(tuple),
)


def agrees_with_the_oracle(s: Shaped, logits: Sequence[float], steps: Sequence[tuple[str, float]]) -> None:
    stages = oracle.shape(logits, steps)
    dense = np.zeros(len(logits))
    dense[list(stages[-1])] = list(stages[-1].values())
    assert set(kept(s)) == set(stages[-1])
    np.testing.assert_allclose(s.probs, dense, rtol=0, atol=1e-12)
    assert s.probs.sum() == pytest.approx(1, abs=1e-12)
    rows = [s.ledger[0], *s.ledger[1:]]
    assert (rows[0].alive_before, rows[0].alive_after) == (len(logits), len(stages[0]))
    for i, row in enumerate(rows):
        after = stages[i]
        assert row.entropy == pytest.approx(oracle.entropy(after), abs=1e-12)
        ranked = [t for t in oracle.ranked(logits) if t in after]
        assert [t for t, _ in row.top] == ranked[:5]
        np.testing.assert_allclose([p for _, p in row.top], [after[t] for t in ranked[:5]], rtol=0, atol=1e-12)
        assert not row.argmax_changed
        if i:
            before = stages[i - 1]
            gone = [t for t in oracle.ranked(logits) if t in before and t not in after]
            assert (row.alive_before, row.alive_after, row.removed_count) == (
                len(before),
                len(after),
                len(gone),
            )
            assert row.removed_ids == tuple(gone[:16])
            assert row.mass_removed == pytest.approx(math.fsum(before[t] for t in gone), rel=1e-9, abs=1e-300)


@given(logits=_logits, policy=_policies)
@settings(derandomize=True, max_examples=600, deadline=None)
@pytest.mark.slow
def test_every_row_agrees_with_the_oracle(logits: np.ndarray, policy: Policy) -> None:
    assume(np.any(logits > -math.inf))
    steps = [(name, getattr(policy, name)) for name in policy.order]
    on = [
        (n, v) for n, v in steps if (n, v) not in {("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)}
    ]
    s = policy.shape(logits)
    agrees_with_the_oracle(s, logits.tolist(), on)
    for token in range(len(logits)):
        assert s.raw_rank(token) == sorted(range(len(logits)), key=lambda i: (-logits[i], i)).index(token)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.slow
def test_a_whole_vocabulary_agrees_with_the_oracle(seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(20000) * (1 + 2 * seed)).astype(np.float32)
    if ties:
        logits = np.round(logits)
    logits[rng.integers(0, 20000, 50 * seed)] = -np.inf
    for policy in (
        Policy(temperature=0.8, top_p=0.95),
        Policy(temperature=1.5, min_p=0.02),
        Policy(top_k=5000, top_p=0.9, min_p=0.001),
        Policy(min_p=0.0001, top_p=0.999, order=("min_p", "top_p", "temperature", "top_k")),
    ):
        agrees_with_the_oracle(
            policy.shape(logits), logits.tolist(), [(s.name, *s.params.values()) for s in policy.steps]
        )


@given(logits=_logits, policy=_policies)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_support_only_shrinks_and_the_greedy_choice_stays(logits: np.ndarray, policy: Policy) -> None:
    assume(np.any(logits > -math.inf))
    s = policy.shape(logits)
    for before, after in zip(s.stages, s.stages[1:], strict=False):
        assert not np.any(after.alive() & ~before.alive())
    without = shape([step for step in policy.steps if not step.argmax_invariant], logits)
    assert s.final.best == without.final.best == int(logits.argmax())


@given(logits=_logits, policy=_policies, data=st.data())
@settings(derandomize=True, max_examples=200, deadline=None)
def test_permuting_ids_permutes_the_result(logits: np.ndarray, policy: Policy, data: st.DataObject) -> None:
    logits = np.unique(logits[logits > -math.inf])  # no ties: those go to the lower id, whatever it is called
    assume(len(logits))
    order = np.array(data.draw(st.permutations(range(len(logits)))))
    straight, permuted = policy.shape(logits), policy.shape(logits[order])
    assert (permuted.probs > 0).tolist() == (straight.probs[order] > 0).tolist()
    np.testing.assert_allclose(permuted.probs, straight.probs[order], rtol=1e-12)


@given(logits=_logits, policy=_policies)
@settings(derandomize=True, max_examples=100, deadline=None)
def test_neutral_parameters_change_nothing(logits: np.ndarray, policy: Policy) -> None:
    assume(np.any(logits > -math.inf))
    neutral = Policy(temperature=1, top_k=len(logits), top_p=1, min_p=0, order=policy.order).shape(logits)
    assert neutral.probs.tolist() == Policy().shape(logits).probs.tolist()
    p = oracle.softmax(logits.tolist(), oracle.ranked(logits.tolist()))
    np.testing.assert_allclose(neutral.probs, [p.get(i, 0.0) for i in range(len(logits))], rtol=1e-12)


@given(
    values=st.lists(st.one_of(_logit, st.floats(-1, 1, width=32)), min_size=1, max_size=60),
    repeat=st.integers(1, 60),
    n=st.integers(0, 3000),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_ranking_is_a_stable_sort_as_far_as_asked(values: list[float], repeat: int, n: int, dtype: type) -> None:
    logits = np.tile(np.array(values, dtype=dtype), repeat)
    expected = np.argsort(-logits, kind="stable")
    assert Ranking(Logits(logits)).first(n).tolist() == expected[:n].tolist()
    *some, whole = Ranking(Logits(logits)).growing()
    assert whole.tolist() == expected.tolist()
    assert all(part.tolist() == expected[: len(part)].tolist() for part in some)


def test_ranking_survives_a_sample_that_misleads() -> None:
    logits = np.zeros(50000, dtype=np.float32)
    logits[:: 50000 // 1024] = 7  # exactly what is sampled
    logits[1] = 9
    expected = np.argsort(-logits, kind="stable")
    for n in (1, 64, 2000, 40000):
        assert Ranking(Logits(logits)).first(n).tolist() == expected[:n].tolist()


def test_ranking_that_is_brought_up_to_date_has_ties_in_order() -> None:
    logits = np.random.default_rng(3).normal(0, 1, 5000).astype(np.float32)
    ranking = Ranking(Logits(logits))
    ranking.first(64)
    last = ranking.first(ranking.known)[-1]
    changed = logits.copy()
    changed[risen := np.array([1])] = logits[last]  # as good as the last one known, and before it
    assert last > 1 and logits[1] < logits[last]
    found = ranking.rewritten(Logits(changed), risen)
    for n in (1, found.known, 200):
        assert found.first(n).tolist() == np.argsort(-changed, kind="stable")[:n].tolist()


def test_sums_where_little_is_left_or_the_best_falls_far() -> None:
    left = Policy(banned_ids=[1]).shape([0, 0, -27.5])  # of the weight beside the best a difference would keep no digit
    assert -left.final_logprob(0) == pytest.approx(math.exp(-27.5), rel=1e-12, abs=0)
    fell = Policy(banned_ids=[0]).shape([0, -600, -600.5, -601.25])  # 600 nats: what is made anew loses nothing
    p = oracle.softmax([0, -0.5, -1.25], [0, 1, 2])
    np.testing.assert_allclose(fell.probs, [0, *(p[i] for i in range(3))], rtol=1e-14)
    assert fell.final.entropy == pytest.approx(-math.fsum(x * math.log(x) for x in p.values()), rel=0, abs=1e-14)


@pytest.mark.parametrize("seed", range(40))
def test_sums_brought_up_to_date_are_those_made_anew(seed: int) -> None:
    """Penalties and bans that take the best, raise another to it or leave it: the same distribution within 1e-12."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(5000) * rng.choice([0.5, 3.0, 8.0])).astype(np.float32)
    best = np.argsort(-logits)
    seen = [*best[: rng.integers(0, 4)].tolist(), *rng.integers(0, 5000, 300).tolist()]
    bias = {int(best[rng.integers(0, 50)]): float(rng.uniform(-9, 9)) for _ in range(rng.integers(0, 3))}
    policy = Policy(
        0.7, repetition_penalty=float(rng.choice([0.8, 1.3])), frequency_penalty=0.4, presence_penalty=0.3,
        logit_bias=tuple(bias.items()), banned_ids=(int(best[0]),) if seed % 3 == 0 else (),
    )  # fmt: skip
    s = policy.shape(logits, seen[:150], seen[150:])
    for d in s.stages:
        z = [(float(x) - d.shift) * d.beta for x in d.logits]
        assert d.top == int(d.logits.argmax()) and d.shift == float(d.logits.max())
        w = [math.exp(x) for x in z]
        assert d.total == pytest.approx(math.fsum(w), rel=1e-12)
        entropy = math.log(math.fsum(w)) - math.fsum(a * b for a, b in zip(w, z, strict=True)) / math.fsum(w)
        assert d.entropy == pytest.approx(entropy, rel=1e-11, abs=1e-12)
        assert d.ranking.first(70).tolist() == np.argsort(-d.logits, kind="stable")[:70].tolist()
    (sums,) = sum_rows(Team(load(), 1), logits[None], [policy.betas])
    assert policy.shape(logits, seen[:150], seen[150:], sums).ledger == s.ledger


@pytest.mark.parametrize("alike", [1, 63, 64, 65, 500])
def test_rank_ties_and_bounds_are_right_where_the_best_few_do_not_show_them(alike: int) -> None:
    logits = np.random.default_rng(alike).integers(-40, 3, 2000).astype(np.float32)
    logits[5 : 5 + alike] = 4
    s = Policy(min_p=0.01, top_p=0.999).shape(logits)
    order = np.argsort(-logits, kind="stable").tolist()
    for token in (5, 4 + alike, order[63], order[64], order[-1]):
        alive = int(np.count_nonzero(logits == logits[token]))
        assert s.raw_rank(token) == order.index(token)
        assert s.ties(token) == (alive - 1 if s.final.logprob(token) > -math.inf else 0)
    cut = Policy(min_p=0.01).shape(logits)
    kept = [i for i, x in enumerate(logits.tolist()) if x - 4 >= math.log(0.01) * (1 + 2**-24)]
    assert sorted(cut.final.ids_at(np.arange(cut.final.size)).tolist()) == kept
    assert list(cut.ledger[-1].removed_ids) == [i for i in order if i not in kept][:16]


def test_a_row_is_copied_unless_its_sums_are_given() -> None:
    logits = np.arange(50, dtype=np.float32)
    (sums,) = sum_rows(Team(load(), 1), logits[None], [(1.0,)])
    assert not np.shares_memory(Policy().shape(logits).logits, logits)
    assert np.shares_memory(Policy().shape(logits, sums=sums).logits, logits)


def test_one_logit_is_that_of_the_array() -> None:
    given = np.arange(9, dtype=np.float32)
    once = Logits(given).rewritten(np.array([2, 5]), np.array([20, 50], np.float32))
    twice = once.rewritten(np.array([5, 8]), np.array([-5, -8], np.float32))
    for row in (Logits(given), once, twice):
        single = [row.one(i) for i in range(9)]
        assert single == row.at(np.arange(9)).tolist() == row.whole.tolist() == [row.one(i) for i in range(9)]
