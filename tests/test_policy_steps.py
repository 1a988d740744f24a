"""Every step of the policy: hand-made values, agreement with a slow oracle in any order, and a ledger that adds up."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import oracle_policy as oracle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from glassbox.choose import choose, philox, philox_uniform
from glassbox.errors import EmptySupport, NonFiniteLogits, ParameterError
from glassbox.policy import philox as draws
from glassbox.policy.penalties import Dry
from glassbox.policy.policy import DEFAULT_ORDER, Policy, Shaped, shape
from glassbox.policy.step import Past, needs_of
from glassbox.policy.table import STEPS, formula, source


def kept(shaped: Shaped) -> list[int]:
    return np.flatnonzero(shaped.final.alive()).tolist()


def logits_of(shaped: Shaped) -> list[float]:
    return shaped.final.logits.tolist()


def logprobs(*p: float) -> np.ndarray:
    return np.log(np.array(p)).astype(np.float32)


# ---- by hand


def test_repetition_penalty_on_negative_logits() -> None:  # C05-11
    s = Policy(repetition_penalty=1.5).shape([2, -1, 0.5], prompt_ids=[0], output_ids=[1, 1])
    np.testing.assert_allclose(logits_of(s), [1.333333, -1.5, 0.5], atol=5e-7)
    np.testing.assert_allclose(s.probs, [0.669606, 0.039384, 0.291010], atol=5e-7)
    assert s.ledger[1].params == {"repetition_penalty": 1.5, "changed": 2}
    assert (s.ledger[1].changed, s.ledger[1].removed_count, s.ledger[0].changed) == (2, 0, 0)


def test_repetition_penalty_acts_on_the_logits_as_they_are() -> None:  # C05-14
    for logits, expected in (([0, 1, 2], [0.1163, 0.2677, 0.6160]), ([10, 11, 12], [0.4107, 0.1785, 0.4107])):
        s = Policy(repetition_penalty=1.2).shape(logits, prompt_ids=[1, 2])
        np.testing.assert_allclose(s.probs, expected, atol=5e-5)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [("prompt+output", [1, 1, 1, 2]), ("output", [2, 1, 1, 2]), (1, [2, 2, 1, 2]), (9, [1, 1, 1, 2])],
)
def test_scopes(scope: str | int, expected: list[float]) -> None:
    past: dict[str, Any] = {"prompt_ids": [0, 1], "output_ids": [1, 2]}
    assert logits_of(Policy(repetition_penalty=2, repetition_scope=scope).shape([2, 2, 2, 2], **past)) == expected
    assert logits_of(Policy(presence_penalty=1, penalty_scope=scope).shape([2, 2, 2, 2], **past)) == expected


def test_frequency_and_presence() -> None:
    past: dict[str, Any] = {"prompt_ids": [0, 0], "output_ids": [1, 1, 2]}
    assert logits_of(Policy(frequency_penalty=0.5).shape([2, 2, 2], **past)) == [2, 1, 1.5]
    assert logits_of(Policy(presence_penalty=0.5).shape([2, 2, 2], **past)) == [2, 1.5, 1.5]
    tgi = Policy(frequency_penalty=0.5, frequency_formula="tgi").shape([2, 2, 2], **past)
    np.testing.assert_allclose(logits_of(tgi), [1.8, 1.8, 1.9], rtol=1e-6)
    raised = Policy(frequency_penalty=-0.5).shape([2, 2, 2], **past)
    assert logits_of(raised) == [2, 3, 2.5] and raised.ledger[1].argmax_changed


def test_a_penalty_behind_a_temperature_acts_on_what_the_temperature_left() -> None:
    order = ("temperature", "presence_penalty")
    s = Policy(temperature=0.5, presence_penalty=1, order=order).shape([0, 1, 2], output_ids=[2])
    np.testing.assert_allclose(s.probs, oracle_softmax(0, 2, 3), rtol=1e-14)


def oracle_softmax(*logits: float) -> list[float]:
    p = oracle.softmax(logits, oracle.ranked(logits))
    return [p[i] for i in range(len(logits))]


def test_no_repeat_ngram() -> None:
    past: dict[str, Any] = {"prompt_ids": [1, 2, 3, 1, 2, 4, 2], "output_ids": [1, 2]}
    assert kept(Policy(no_repeat_ngram_size=3).shape(np.zeros(6), **past)) == [0, 1, 2, 5]
    assert kept(Policy(no_repeat_ngram_size=1).shape(np.zeros(6), **past)) == [0, 5]
    assert kept(Policy(no_repeat_ngram_size=10).shape(np.zeros(6), **past)) == [0, 1, 2, 3, 4, 5]
    assert kept(Policy(no_repeat_ngram_size=4).shape(np.zeros(6))) == [0, 1, 2, 3, 4, 5]


def test_dry() -> None:
    past: dict[str, Any] = {"prompt_ids": [1, 2, 3, 4, 9, 2, 3, 5, 9], "output_ids": [1, 2, 3]}
    s = Policy(dry_multiplier=2, dry_base=3).shape(np.zeros(10), **past)
    assert logits_of(s) == [0, 0, 0, 0, -6, -2, 0, 0, 0, 0]  # 1 2 3 → 4 is three long, 2 3 → 5 two
    assert logits_of(Policy(dry_multiplier=2, dry_base=3, dry_allowed_length=3).shape(np.zeros(10), **past))[4:6] == [
        -2,
        0,
    ]
    broken = Policy(dry_multiplier=2, dry_base=3, dry_sequence_breakers=[1]).shape(np.zeros(10), **past)
    assert logits_of(broken)[4:6] == [-2, -2]  # no match reaches across 1
    assert logits_of(Policy(dry_multiplier=2, dry_sequence_breakers=[3]).shape(np.zeros(10), **past)) == [0] * 10
    breaker = Policy(dry_multiplier=2, dry_base=3, dry_sequence_breakers=[4]).shape(np.zeros(10), **past)
    assert logits_of(breaker)[4:6] == [0, -2]  # one that would follow is no match's either
    long = Policy(dry_multiplier=1, dry_base=100).shape(np.zeros(3), prompt_ids=[1] * 500)
    assert np.all(np.isfinite(long.final.logits)) and long.probs.tolist() == [0.5, 0, 0.5]


def test_dry_on_a_text_that_only_repeats_itself() -> None:
    logits, past = np.zeros(4), [1] * 20000
    for base, cost in ((1.0, 0.5), (1.75, 3.4e38 / 4)):
        s = Policy(dry_multiplier=0.5, dry_base=base).shape(logits, past)
        assert s.final.logits[1] == pytest.approx(-cost, rel=0.01) and s.ledger[1].changed == 1
    looked = Dry(0.5, 1.75, 2, (), "output")._longest  # no further back: what is longer costs no more
    assert 0.5 * 1.75 ** (looked - 3) < 3.4e38 / 4 <= 0.5 * 1.75 ** (looked - 2)


def test_length_decay() -> None:
    policy = Policy(length_decay=(2, 1.5), eos_ids=[1, 2])
    for n, expected in ((2, [1, 2, -2]), (3, [1, 3, -1]), (4, [1, 4.5, 0.5])):
        np.testing.assert_allclose(logits_of(policy.shape([1, 2, -2], output_ids=[0] * n)), expected, rtol=1e-6)


def test_logit_bias() -> None:
    s = Policy(logit_bias={2: 1.5, 0: -1}).shape([1, 1, 1])
    assert logits_of(s) == [0, 1, 2.5] and s.ledger[1].changed == 2
    assert Policy(logit_bias={"2": 1.5, "0": -1}) == Policy(logit_bias=[(0, -1), (2, 1.5)])  # type: ignore[dict-item,arg-type]


def test_constraints() -> None:
    flat = np.zeros(5)
    assert kept(Policy(allowed_ids=[3, 1, 3]).shape(flat)) == [1, 3]
    assert kept(Policy(banned_ids=[3, 1]).shape(flat)) == [0, 2, 4]
    begin = Policy(begin_suppress_ids=[0])
    assert kept(begin.shape(flat, prompt_ids=[1])) == [1, 2, 3, 4] and len(kept(begin.shape(flat, output_ids=[1]))) == 5
    least = Policy(min_tokens=2, eos_ids=[4])
    assert kept(least.shape(flat, [1] * 9, [1])) == [0, 1, 2, 3] and len(kept(least.shape(flat, [], [1, 1]))) == 5
    forced = Policy(forced_ids=[3, 1])
    assert [kept(forced.shape(flat, [], [0] * n)) for n in range(3)] == [[3], [1], [0, 1, 2, 3, 4]]
    banned = Policy(banned_sequences=[[2], [0, 1, 3], [4, 4]])
    assert kept(banned.shape(flat, [0], [1])) == [0, 1, 4]
    assert kept(Policy(banned_sequences=[[0, 1, 3]], banned_scope="output").shape(flat, [0], [1])) == [0, 1, 2, 3, 4]
    twice = Policy(banned_sequences=[[3], [1, 3], [0, 1, 3]]).shape(flat, [0], [1])
    assert kept(twice) == [0, 1, 2, 4] and twice.ledger[1].params["banned"] == 1


def test_all_tokens_masked() -> None:  # C04-03
    with pytest.raises(ParameterError, match="neither banned_ids nor banned_sequences") as refused:
        Policy(allowed_ids=[264], banned_ids=[264], temperature=0)
    assert refused.value.param == "allowed_ids"
    with pytest.raises(ParameterError):
        Policy(allowed_ids=[264, 3], banned_ids=[3], banned_sequences=[[264]])
    policy = Policy(allowed_ids=[2], banned_sequences=[[1, 2]], temperature=0)
    assert kept(policy.shape(np.zeros(4), [3], [0])) == [2]
    with pytest.raises(EmptySupport) as caught:
        policy.shape(np.zeros(4), [3], [0, 1])
    assert (caught.value.step, caught.value.others, caught.value.at) == ("banned_sequences", ("allowed_ids",), 2)
    assert str(caught.value) == "no token allowed at step 2: constraints allowed_ids and banned_sequences"
    with pytest.raises(EmptySupport, match="no token allowed at step 0: constraints allowed_ids and min_tokens"):
        Policy(allowed_ids=[1], min_tokens=3, eos_ids=[1]).shape(np.zeros(4))


def test_typical() -> None:
    # H = 1.0889 nats; surprises .6931, 1.6094, 1.8971, 2.3026 (p .5 .2 .15 .1, and .05 → 2.9957), so |s - H| is
    # .6026, .3137, .6014, 1.0069, 1.7 with H = 1.2957 of all five.
    s = Policy(typical_p=0.3).shape(logprobs(0.5, 0.2, 0.15, 0.1, 0.05))
    h = -sum(p * math.log(p) for p in (0.5, 0.2, 0.15, 0.1, 0.05))
    away = [abs(-math.log(p) - h) for p in (0.5, 0.2, 0.15, 0.1, 0.05)]
    assert sorted(range(5), key=away.__getitem__)[:2] == [1, 2]
    assert kept(s) == [1, 2] and s.ledger[1].argmax_changed
    s = Policy(typical_p=0.3).shape(logprobs(0.15, 0.2, 0.5, 0.1, 0.05))  # id 1 is taken before id 0
    assert s.final.ids is not None and s.final.ids.tolist() == [0, 1]
    assert [s.final_logprob(i) for i in (0, 1)] == pytest.approx([math.log(0.15 / 0.35), math.log(0.2 / 0.35)])


def test_epsilon_eta_sigma_and_top_h() -> None:
    p = (0.5, 0.25, 0.15, 0.07, 0.03)
    assert kept(Policy(epsilon_cutoff=0.07).shape(logprobs(*p))) == [0, 1, 2, 3]
    assert kept(Policy(epsilon_cutoff=0.9).shape(logprobs(*p))) == [0]  # the best stays
    assert kept(Policy(epsilon_cutoff=0.9).shape(logprobs(0.2, 0.4, 0.4))) == [1, 2]  # and what ties with it
    h = -sum(x * math.log(x) for x in p)
    eta = math.sqrt(0.05) * math.exp(-h)  # 0.0665
    assert 0.05 < eta < 0.07 and kept(Policy(eta_cutoff=0.05).shape(logprobs(*p))) == [0, 1, 2, 3]  # min: 0.05
    flat = (0.5, 0.25, 0.14, 0.061, 0.049)  # sqrt(0.05) exp(-H) is 0.0618, so 0.05 is the bound
    assert kept(Policy(eta_cutoff=0.05).shape(logprobs(*flat))) == [0, 1, 2, 3]
    eta = math.sqrt(0.3) * math.exp(-h)  # 0.163
    assert 0.15 < eta < 0.25 and kept(Policy(eta_cutoff=0.3).shape(logprobs(*p))) == [0, 1]
    # logits 4 2 0 0 -6: mean 0, variance (16 + 4 + 36) / 5, sigma 3.347
    assert kept(Policy(top_n_sigma=1).shape([4, 2, 0, 0, -6])) == [0, 1]
    assert kept(Policy(top_n_sigma=1.2).shape([4, 2, 0, 0, -6])) == [0, 1, 2, 3]
    assert kept(Policy(top_n_sigma=1, temperature=7).shape([4, 2, 0, 0, -6])) == [0, 1]  # temperature changes nothing
    assert kept(Policy(top_n_sigma=2.5).shape([0, 0, 0, 0, -0.1])) == [0, 1, 2, 3, 4]  # 2.5 sigma below, to rounding
    # -p log p = .3466 .3466 .2846 .1861 .1052, H = 1.2690
    for top_h, n in ((0.27, 1), (0.28, 1), (0.56, 2), (0.8, 3), (0.95, 4)):
        assert kept(Policy(top_h=top_h).shape(logprobs(*p))) == list(range(n)), top_h
    assert kept(Policy(top_h=0.6, top_h_limit=2).shape(logprobs(*p))) == [0]


def test_mirostat_keeps_one_where_even_the_best_surprises_too_much() -> None:
    assert kept(Policy(mirostat_tau=0.1).shape([0, 0, -1])) == [0]  # mu is 0.2 bits; what ties goes, as in llama.cpp


def test_min_keep() -> None:
    p = logprobs(0.9, 0.06, 0.03, 0.01)
    for values in ({"top_p": 0.5}, {"min_p": 0.5}, {"epsilon_cutoff": 0.5}, {"eta_cutoff": 0.5}):
        assert kept(Policy(**values, min_keep=3).shape(p)) == [0, 1, 2]  # type: ignore[arg-type]
    assert len(kept(Policy(typical_p=0.5, min_keep=3).shape(p))) == 3
    assert kept(Policy(xtc_probability=1, xtc_threshold=0.05, min_keep=4).shape(p, seed=0)) == [0, 1, 2, 3]
    assert kept(Policy(xtc_probability=1, xtc_threshold=0.05, min_keep=3).shape(p, seed=0)) == [1, 2, 3]


def test_ties_and_joint_mass() -> None:
    assert kept(Policy(top_k=3, top_k_ties=True).shape([1, 2, 2, 2, 3])) == [1, 2, 3, 4]
    p = logprobs(0.4, 0.3, 0.2, 0.1)
    assert kept(Policy(top_k=2, top_p=0.55).shape(p)) == [0]  # 0.4 / 0.7 = 0.571
    assert kept(Policy(top_k=2, top_p=0.55, top_p_joint=True).shape(p)) == [0, 1]
    banned = Policy(banned_ids=[0], top_k=2, top_p=0.6, top_p_joint=True)
    assert kept(banned.shape(p)) == [1, 2]  # a constraint is no cut: of 0.6, 0.3 is half


def test_xtc_draws_its_own_number() -> None:
    p, seed = logprobs(0.4, 0.3, 0.2, 0.1), 7
    policy = Policy(xtc_probability=0.5, xtc_threshold=0.15)
    with pytest.raises(ParameterError, match="seed"):
        policy.shape(p)
    hits = 0
    for position in range(400):
        s = policy.shape(p, [0] * position, seed=seed, sequence=3)
        u = (philox((position, 1, 0, 0), (seed, 3))[0] >> 11) / 2**53
        assert s.ledger[1].params == {"xtc_probability": 0.5, "xtc_threshold": 0.15, "u": u}
        assert u != philox_uniform(seed, 3, position)  # the choice's own draw is another
        assert kept(s) == ([2, 3] if u < 0.5 else [0, 1, 2, 3])
        hits += u < 0.5
    assert 160 < hits < 240
    assert draws.uniform(seed, 3, 5) == philox_uniform(seed, 3, 5)


def test_dynamic_temperature() -> None:
    policy = Policy(temperature=1, dynatemp_range=0.5, dynatemp_exponent=2)
    h = oracle.entropy(dict(enumerate(oracle_softmax(2, 1, 0)))) / math.log(3)
    t = 0.5 + h**2
    s = policy.shape([2, 1, 0])
    np.testing.assert_allclose(s.probs, oracle_softmax(2 / t, 1 / t, 0), rtol=1e-12)
    assert s.ledger[1].params["found"] == pytest.approx(t, rel=1e-14)
    assert kept(Policy(temperature=0.5, dynatemp_range=1).shape([0, -1000])) == [0]  # T' = 0
    for n in range(2, 30):  # of a flat one the entropy is log n, or by rounding a hair above
        found = Policy(dynatemp_range=0.5, dynatemp_exponent=50).shape([0.3] * n).ledger[1].params["found"]
        assert 1.5 - 1e-12 <= found <= 1.5
    with pytest.raises(ParameterError, match="dynatemp_range"):
        Policy(temperature=0, dynatemp_range=1)


# ---- numerics


@pytest.mark.parametrize("temperature", [1e-6, 1.0, 1e6])
def test_the_largest_logits(temperature: float) -> None:
    logits = np.array([3e38, -3e38, 0, 3e38, -np.inf, 1], dtype=np.float32)
    values: list[dict[str, Any]] = [
        {"typical_p": 0.5}, {"epsilon_cutoff": 0.1}, {"eta_cutoff": 0.1}, {"top_n_sigma": 1}, {"top_h": 0.4},
        {"xtc_probability": 1}, {"dry_multiplier": 1}, {"frequency_penalty": 1}, {"presence_penalty": -1},
        {"logit_bias": {0: 1}}, {"banned_ids": [1]}, {"allowed_ids": [0, 1, 3, 4]}, {"no_repeat_ngram_size": 1},
        {"dynatemp_range": 0.0}, {"min_tokens": 5, "eos_ids": [2]}, {"length_decay": (0, 1.1), "eos_ids": [2]},
        {"repetition_penalty": 1.1, "repetition_scope": 2}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.5},
    ]  # fmt: skip
    with np.errstate(all="raise"):
        for value in values:
            s = Policy(temperature=temperature, **value).shape(logits, [5, 2], [5, 2], seed=0)
            assert s.probs.sum() == pytest.approx(1, abs=1e-12) and not s.final.alive()[4]
            assert set(np.flatnonzero(s.probs > 0.2).tolist()) in ({0}, {3}, {0, 3}), value
            json.dumps([r.to_dict() for r in s.ledger], allow_nan=False)


def test_a_penalty_that_leaves_float32_is_refused_by_name() -> None:
    with pytest.raises(NonFiniteLogits) as caught:
        Policy(repetition_penalty=0.5).shape([0, 3e38], output_ids=[1])
    assert (caught.value.where, caught.value.position, caught.value.at) == ("policy step 'repetition_penalty'", 1, 1)
    low = Policy(repetition_penalty=2).shape([0, -3e38], output_ids=[1])  # beyond what a float32 says: not possible
    assert kept(low) == [0] and low.ledger[1].removed_ids == (1,)


def test_ids_outside_the_vocabulary_are_refused_by_name() -> None:
    for name, value in (
        ("allowed_ids", [1, 9]), ("banned_ids", [9]), ("forced_ids", [9]), ("begin_suppress_ids", [9]),
        ("logit_bias", {9: 1.0}), ("banned_sequences", [[9, 1]]),
    ):  # fmt: skip
        policy = Policy(**{name: value})  # type: ignore[arg-type]
        for act in (lambda p: p.shape(np.zeros(4)), lambda p: p.for_model(4, [])):
            with pytest.raises(ParameterError, match="9") as caught:
                act(policy)
            assert caught.value.param == name
    with pytest.raises(ParameterError, match="prompt_ids or output_ids is 9"):
        Policy(repetition_penalty=2).shape(np.zeros(4), [9])


def test_what_ends_the_text_comes_from_the_model() -> None:
    policy = Policy(min_tokens=2)
    with pytest.raises(ParameterError, match="eos_ids"):
        policy.shape(np.zeros(4))
    with pytest.raises(ParameterError, match="eos_ids"):
        policy.for_model(4, [])
    assert policy.for_model(4, {3, 1}) == Policy(min_tokens=2, eos_ids=[1, 3])
    assert Policy(min_tokens=2, eos_ids=[0]).for_model(4, {3}).eos_ids == (0,)
    assert Policy().for_model(4, {3}) == Policy()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((n, v) for n in ("typical_p", "top_h") for v in (0, 1.1, math.nan, "1", None, True)),
        *((n, v) for n in ("epsilon_cutoff", "eta_cutoff") for v in (-0.1, 1, math.inf)),
        *((n, v) for n in ("frequency_penalty", "presence_penalty") for v in (math.inf, math.nan, None, "0")),
        *(("repetition_penalty", v) for v in (0, -1, math.inf)),
        *((f"{n}_scope", v) for n in ("repetition", "penalty", "dry", "banned") for v in (0, -1, "all", 1.5)),
        *((n, v) for n in ("allowed_ids", "banned_ids", "eos_ids") for v in ([-1], [1.5], "12", 3, [True], {1: 2})),
        *(("allowed_ids", v) for v in ([], ())),
        *(("forced_ids", v) for v in ({1, 2}, [-1])),
        *(("banned_sequences", v) for v in ([[]], [1], [[-1]], "ab")),
        *(("logit_bias", v) for v in ({1: math.nan}, {-1: 1}, {"": 1}, [(1, 1), (1, 2)], [1], 3)),
        *(("logit_bias", v) for v in ({(): 1}, {"\ud800": 1}, {True: 1}, {(1, -1): 1}, {"a": math.inf})),
        *(("length_decay", v) for v in ((1,), (-1, 2), (1, 0.5), 3)),
        *((n, -1) for n in ("no_repeat_ngram_size", "min_tokens", "dry_multiplier", "top_n_sigma", "dynatemp_range")),
        ("no_repeat_ngram_size", 1.5), ("dry_allowed_length", 0), ("dry_base", 0.5), ("min_keep", 0),
        ("top_p_joint", 1),
        ("xtc_probability", 1.1), ("xtc_threshold", 0.6), ("xtc_threshold", 0), ("dynatemp_exponent", 0),
        ("frequency_formula", "mine"), ("top_h_limit", -1), ("top_k_ties", None),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ParameterError) as caught:
        Policy(**{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name


# ---- as data

EVERYTHING: dict[str, Any] = {
    "grammar": {"regex": "[0-9]+"},
    "temperature": 0.7, "dynatemp_range": 0.2, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9,
    "epsilon_cutoff": 1e-5, "eta_cutoff": 1e-4, "top_n_sigma": 2.5, "top_h": 0.9, "xtc_probability": 0.5,
    "mirostat_tau": 3.0, "guidance_scale": 1.5, "negative_ids": [3, 3, 1], "dola_layers": [0, 2], "penalty_alpha": 0.6,
    "forced_ids": [1, 0], "allowed_ids": range(20), "banned_ids": [3], "banned_sequences": [[1, 2], [7]],
    "begin_suppress_ids": [5], "min_tokens": 3, "eos_ids": {2}, "logit_bias": {4: 0.5, (1, 4): 2.0},
    "repetition_penalty": 1.1, "repetition_scope": 64, "frequency_penalty": 0.1, "presence_penalty": 0.2,
    "no_repeat_ngram_size": 3,
    "dry_multiplier": 0.8, "dry_sequence_breakers": [9], "length_decay": [5, 1.01], "min_keep": 2,
}  # fmt: skip


def test_every_parameter_survives_json_and_every_step_is_built() -> None:
    policy = Policy(**EVERYTHING)
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict(), allow_nan=False))) == policy
    assert len(policy.steps) == len(STEPS) and hash(policy) != hash(Policy())
    assert [s.name for s in policy.steps][:4] == ["dola", "guidance", "grammar", "forced_ids"]
    for step, row in zip(policy.steps, STEPS.values(), strict=True):
        assert formula(type(step)) and source(type(step)) and source(row.kind)
        assert all(isinstance(v, int | float) for v in step.params.values())


def test_policies_stored_before_there_were_more_steps_still_load() -> None:
    old = {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.0,
        "order": ["temperature", "top_k", "top_p", "min_p"],
    }
    policy = Policy.from_dict(old)
    assert [s.name for s in policy.steps] == ["temperature", "top_k", "top_p"]
    assert policy.order == tuple(old["order"])  # type: ignore[arg-type]


def test_a_parameter_whose_step_is_left_out_is_refused() -> None:
    assert Policy(top_k=3, order=("top_k",)).shape([1, 2, 3, 4]).final.size == 3
    with pytest.raises(ParameterError, match=r"top_p is 0\.9, but must be left out: the order has no step 'top_p'"):
        Policy(top_k=3, top_p=0.9, order=("top_k", "temperature"))
    with pytest.raises(ParameterError, match="typical"):
        Policy(typical_p=0.9, order=["top_k"])  # type: ignore[arg-type]
    for order in (("top_k", "top_k"), ("nothing",), "top_k", 3):
        with pytest.raises(ParameterError) as caught:
            Policy(order=order)  # type: ignore[arg-type]
        assert caught.value.param == "order"


# ---- properties: any steps, any order, against the oracle

_N = 12
# Not nearer than 2^-10: of two that only their logits tell apart, not their p, typical takes either.
_grid = st.floats(-30, 30).map(lambda x: round(x * 1024) / 1024)
_logit = st.one_of(_grid, st.integers(-3, 3).map(float), st.just(-math.inf))
_logits = st.lists(_logit, min_size=_N, max_size=_N).map(lambda x: np.array(x, dtype=np.float32))
# Ties go to the lower id, whatever it is called.
_distinct = st.lists(_grid, min_size=_N, max_size=_N, unique=True).map(lambda x: np.array(x, dtype=np.float32))
_fine = st.floats(-2, 2).map(lambda x: round(x * 1024) / 1024)
_id = st.integers(0, _N - 1)
_history = st.lists(st.integers(0, 5), max_size=12)
_p = st.floats(0.01, 0.99)
_scope = st.sampled_from(["prompt+output", "output", 1, 3])
_CHOICES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "forced_ids": st.fixed_dictionaries({"forced_ids": st.lists(_id, min_size=1, max_size=3)}),
    "allowed_ids": st.fixed_dictionaries({"allowed_ids": st.lists(_id, min_size=4, max_size=_N, unique=True)}),
    "banned_ids": st.fixed_dictionaries({"banned_ids": st.lists(_id, min_size=1, max_size=3)}),
    "begin_suppress_ids": st.fixed_dictionaries({"begin_suppress_ids": st.lists(_id, min_size=1, max_size=3)}),
    "banned_sequences": st.fixed_dictionaries({
        "banned_sequences": st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=3),
        "banned_scope": _scope,
    }),
    "no_repeat_ngram": st.fixed_dictionaries({"no_repeat_ngram_size": st.integers(1, 4)}),
    "min_tokens": st.fixed_dictionaries({"min_tokens": st.integers(1, 8), "eos_ids": st.just([2, 7])}),
    "logit_bias": st.fixed_dictionaries({
        "logit_bias": st.dictionaries(_id, _fine, min_size=1, max_size=4),
    }),
    "repetition_penalty": st.fixed_dictionaries({"repetition_penalty": st.floats(0.5, 3), "repetition_scope": _scope}),
    "frequency_penalty": st.fixed_dictionaries({
        "frequency_penalty": _fine, "frequency_formula": st.sampled_from(["openai", "tgi"]),
        "penalty_scope": st.just("output"),
    }),
    "presence_penalty": st.fixed_dictionaries({
        "presence_penalty": _fine, "penalty_scope": st.just("output"),
    }),
    "dry": st.fixed_dictionaries({
        "dry_multiplier": _fine.map(abs).filter(bool), "dry_base": st.floats(1, 3),
        "dry_allowed_length": st.integers(1, 3),
        "dry_sequence_breakers": st.lists(st.integers(0, 5), max_size=2), "dry_scope": _scope,
    }),
    "length_decay": st.fixed_dictionaries({
        "length_decay": st.tuples(st.integers(0, 6), st.floats(1, 1.5)), "eos_ids": st.just([2, 7]),
    }),
    "temperature": st.one_of(
        st.fixed_dictionaries({"temperature": st.one_of(st.just(0.0), st.floats(0.05, 20))}),
        st.fixed_dictionaries({
            "temperature": st.floats(0.5, 2), "dynatemp_range": st.floats(0.01, 0.4),
            "dynatemp_exponent": st.floats(0.5, 2),
        }),
    ),
    "top_k": st.fixed_dictionaries({"top_k": st.integers(1, _N + 1), "top_k_ties": st.booleans()}),
    "top_p": st.fixed_dictionaries({"top_p": _p, "top_p_joint": st.booleans()}),
    "min_p": st.fixed_dictionaries({"min_p": _p}),
    "typical": st.fixed_dictionaries({"typical_p": _p}),
    "epsilon": st.fixed_dictionaries({"epsilon_cutoff": st.floats(1e-4, 0.5)}),
    "eta": st.fixed_dictionaries({"eta_cutoff": st.floats(1e-4, 0.5)}),
    "top_n_sigma": st.fixed_dictionaries({"top_n_sigma": st.floats(0.1, 3)}),
    "top_h": st.fixed_dictionaries({"top_h": _p, "top_h_limit": st.sampled_from([0, 5])}),
    "xtc": st.fixed_dictionaries({"xtc_probability": _p, "xtc_threshold": st.floats(0.01, 0.5)}),
    "mirostat": st.fixed_dictionaries({"mirostat_tau": st.floats(0.1, 4), "mirostat_eta": st.floats(0, 0.5)}),
}  # fmt: skip


@st.composite
def _cases(draw: st.DrawFn, names: tuple[str, ...] = tuple(_CHOICES)) -> tuple[tuple[str, ...], dict[str, Any]]:
    order = tuple(draw(st.lists(st.sampled_from(names), min_size=1, max_size=6, unique=True)))
    values: dict[str, Any] = {"min_keep": draw(st.sampled_from([1, 1, 3]))}
    for name in order:
        values |= draw(_CHOICES[name])
    return order, values


def test_every_step_has_a_strategy() -> None:
    # A grammar needs a vocabulary (test_grammar.py), others more of the model (test_contrast.py).
    ours = tuple(n for n in DEFAULT_ORDER if n != "grammar" and not needs_of(STEPS[n].kind))
    assert tuple(_CHOICES) == ours


def _drawn(output: list[int]) -> list[float]:
    """With which log probability each id of an output may have been drawn."""
    return [-0.1 - 0.9 * (i % 5) for i in range(len(output))]


@given(logits=_logits, case=_cases(), prompt=_history, output=_history, seed=st.integers(0, 2**64 - 1))
@settings(derandomize=True, max_examples=1000, deadline=None)
@pytest.mark.slow
def test_every_row_agrees_with_the_oracle(
    logits: np.ndarray, case: tuple[tuple[str, ...], dict[str, Any]], prompt: list[int], output: list[int], seed: int
) -> None:
    assume(np.any(logits > -math.inf))
    order, values = case
    try:
        policy = Policy(**values, order=order)
    except ParameterError:
        assume(False)
    names = [n for n in order if policy.runs(n)]
    u = philox((len(prompt) + len(output), 1, 0, 0), (seed, 0))[0] / 2**64
    expected = oracle.stages(logits.tolist(), names, values, prompt, output, u, _drawn(output))
    if not expected[-1]:
        with pytest.raises(EmptySupport) as caught:
            policy.shape(logits, prompt, output, seed=seed, logprobs=_drawn(output))
        assert caught.value.step == policy.steps[len(expected) - 2].name
        return
    s = policy.shape(logits, prompt, output, seed=seed, logprobs=_drawn(output))
    assert len(s.ledger) == len(expected)
    for i, (row, stage, after) in enumerate(zip(s.ledger, s.stages, expected, strict=True)):
        assert set(np.flatnonzero(stage.alive()).tolist()) == set(after), (row, names)
        dense = np.array([after.get(j, 0.0) for j in range(_N)])
        np.testing.assert_allclose(stage.dense(), dense, rtol=0, atol=1e-12)
        assert row.entropy == pytest.approx(oracle.entropy(after), abs=1e-11)
        assert row.perplexity == pytest.approx(math.exp(oracle.entropy(after)), rel=1e-10)
        if i:
            check_row(s, i, expected[i - 1], after)


def check_row(s: Shaped, i: int, before: dict[int, float], after: dict[int, float]) -> None:
    """The row adds up: ids and mass before are those kept and those removed."""
    row = s.ledger[i]
    gone = set(before) - set(after)
    assert (row.alive_before, row.alive_after, row.removed_count) == (len(before), len(after), len(gone))
    assert s.removed(i).tolist() == sorted(gone) and set(row.removed_ids) == gone
    likeliest = [before[t] for t in row.removed_ids]
    np.testing.assert_allclose(likeliest, sorted(likeliest, reverse=True), rtol=1e-9, atol=1e-15)
    removed, stayed = math.fsum(before[t] for t in gone), math.fsum(before[t] for t in after)
    assert row.mass_removed == pytest.approx(removed, rel=1e-8, abs=1e-12)
    assert row.mass_kept == pytest.approx(stayed, abs=1e-12) and row.mass_kept + row.mass_removed == 1.0
    assert row.entropy_before == s.ledger[i - 1].entropy
    assert row.argmax_changed == (s.stages[i - 1].best != s.stages[i].best)


@given(logits=_logits, case=_cases(), prompt=_history, output=_history)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_the_support_never_grows_and_invariant_steps_keep_the_greedy_choice(
    logits: np.ndarray, case: tuple[tuple[str, ...], dict[str, Any]], prompt: list[int], output: list[int]
) -> None:
    assume(np.any(logits > -math.inf))
    try:
        policy = Policy(**case[1], order=case[0])
        s = policy.shape(logits, prompt, output, seed=1, logprobs=_drawn(output))
    except (ParameterError, EmptySupport):
        assume(False)
    for step, before, after in zip(policy.steps, s.stages, s.stages[1:], strict=False):
        assert not np.any(after.alive() & ~before.alive())
        if step.argmax_invariant:
            assert after.best == before.best
    again = policy.shape(logits, prompt, output, seed=1, logprobs=_drawn(output))
    assert again.probs.tolist() == s.probs.tolist() and again.ledger == s.ledger  # deterministic
    assert choose(again, seed=4, position=9) == choose(s, seed=4, position=9)


@given(logits=_logits, case=_cases(), prompt=_history, output=_history, seed=st.integers(0, 2**64 - 1))
@settings(derandomize=True, max_examples=150, deadline=None)
def test_a_policy_that_was_stored_gives_the_same_ledger_and_the_same_id(
    logits: np.ndarray, case: tuple[tuple[str, ...], dict[str, Any]], prompt: list[int], output: list[int], seed: int
) -> None:
    assume(np.any(logits > -math.inf))
    try:
        policy = Policy(**case[1], order=case[0])
        s = policy.shape(logits, prompt, output, seed=seed)
    except (ParameterError, EmptySupport):
        assume(False)
    stored = Policy.from_dict(json.loads(json.dumps(policy.to_dict(), allow_nan=False)))
    again = stored.shape(logits.copy(), np.array(prompt, np.int64), tuple(output), seed=seed)
    assert again.ledger == s.ledger
    assert choose(again, seed=seed, position=3) == choose(s, seed=seed, position=3)


_USUAL = (
    "repetition_penalty", "frequency_penalty", "logit_bias", "min_tokens", "temperature", "top_k", "top_p", "min_p",
    "epsilon", "eta", "top_n_sigma", "top_h",
)  # fmt: skip


@given(logits=_logits, case=_cases(_USUAL))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_without_argmax_invariant_steps_the_greedy_choice_is_the_same(
    logits: np.ndarray, case: tuple[tuple[str, ...], dict[str, Any]]
) -> None:
    assume(np.any(logits > -math.inf))
    # Steps that may move the best come first, as everywhere; then what follows cannot.
    values = {k: v for k, v in case[1].items() if k != "min_keep"}
    policy = Policy(**values, order=tuple(sorted(case[0], key=DEFAULT_ORDER.index)))
    past = Past([0, 1, 2, 2], [3])
    try:
        best = shape(policy.steps, logits, past).final.best
    except EmptySupport:
        assume(False)
    assert best == shape([s for s in policy.steps if not s.argmax_invariant], logits, past).final.best


@given(logits=_distinct, case=_cases(), prompt=_history, output=_history, shuffle=st.integers(0, 2**32))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_permuting_ids_permutes_the_result(
    logits: np.ndarray, case: tuple[tuple[str, ...], dict[str, Any]], prompt: list[int], output: list[int],
    shuffle: int,
) -> None:  # fmt: skip
    logits = (
        logits + np.arange(_N, dtype=np.float32) / 64
    )  # fewer ties: those go to the lower id, whatever it is called
    assume(len(set(logits.tolist())) == _N)
    to = np.random.default_rng(shuffle).permutation(_N).tolist()
    renamed = {
        name: [to[i] for i in value] if name.endswith(("_ids", "breakers"))
        else [[to[i] for i in s] for s in value] if name == "banned_sequences"
        else {to[i]: b for i, b in value.items()} if name == "logit_bias" else value
        for name, value in case[1].items()
    }  # fmt: skip
    moved = np.empty_like(logits)
    moved[to] = logits
    try:
        drawn = _drawn(output)
        straight = Policy(**case[1], order=case[0]).shape(logits, prompt, output, seed=2, logprobs=drawn)
        for stage in straight.stages:  # a bias may make a tie after all
            assume(len(set(stage.logits.tolist())) == stage.size)
    except (ParameterError, EmptySupport):
        assume(False)
    there = Policy(**renamed, order=case[0]).shape(
        moved, [to[i] for i in prompt], [to[i] for i in output], seed=2, logprobs=drawn
    )
    np.testing.assert_allclose(there.probs[to], straight.probs, rtol=0, atol=1e-12)


def test_neutral_values_change_nothing() -> None:
    logits = np.random.default_rng(3).standard_normal(50).astype(np.float32)
    neutral = Policy(
        temperature=1, top_k=50, top_p=1, min_p=0, typical_p=1, repetition_penalty=1, frequency_penalty=0,
        no_repeat_ngram_size=0, dry_multiplier=0, xtc_probability=0, logit_bias={}, allowed_ids=range(50),
    )  # fmt: skip
    assert neutral.shape(logits, [1, 2], [3]).probs.tolist() == Policy().shape(logits).probs.tolist()


@pytest.mark.parametrize("seed", range(2))
def test_a_whole_vocabulary_agrees_with_the_oracle(seed: int) -> None:
    """Where sums are brought up to date rather than made anew, and where they cannot be."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(5000) * 3).astype(np.float32)
    best = np.argsort(-logits)[:20].tolist()
    prompt, output = rng.integers(0, 5000, 300).tolist(), rng.integers(0, 5000, 100).tolist()
    values: list[dict[str, Any]] = [
        {"banned_ids": rng.integers(0, 5000, 50).tolist()}, {"banned_ids": best[:10]}, {"banned_ids": best[1:]},
        {"logit_bias": dict.fromkeys(best, -30.0)}, {"logit_bias": {best[19]: 30.0}}, {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5, "temperature": 0.7, "top_p": 0.9},
        {"logit_bias": dict.fromkeys(best[1:], -25.0), "banned_ids": [3, 4], "typical_p": 0.6, "top_k": 3000},
    ]  # fmt: skip
    for value in values:
        policy = Policy(**value)
        s = policy.shape(logits, prompt, output)
        expected = oracle.stages(logits.tolist(), [n for n in DEFAULT_ORDER if policy.runs(n)], value, prompt, output)
        for i, (stage, after) in enumerate(zip(s.stages, expected, strict=True)):
            np.testing.assert_allclose(stage.dense(), [after.get(j, 0.0) for j in range(5000)], rtol=0, atol=1e-12)
            assert s.ledger[i].entropy == pytest.approx(oracle.entropy(after), rel=1e-10)
            if i:
                assert s.ledger[i].mass_kept == pytest.approx(math.fsum(expected[i - 1][t] for t in after), abs=1e-12)
                gone = set(expected[i - 1]) - set(after)
                assert s.removed(i).tolist() == sorted(gone) and s.ledger[i].removed_count == len(gone)
                likeliest = sorted(gone, key=lambda t: (-expected[i - 1][t], t))[:16]
                assert list(s.ledger[i].removed_ids) == likeliest


def test_top_lists_of_any_length_agree() -> None:  # C03-08, C03-10
    logits = np.zeros(300, dtype=np.float32)
    logits[[235, 118, 119, 117, 231]] = [5, 4.5, 4, 3.5, 3]
    s = Policy(temperature=1.5, repetition_penalty=1.2).shape(logits, [118])
    five = s.candidates(5)
    assert [c.id for c in five] == [235, 118, 119, 117, 231]
    assert s.candidates(3) == five[:3] and s.candidates(10)[:5] == five
    assert math.fsum(c.p_raw for c in s.candidates(300)) == pytest.approx(1, abs=1e-12)
    for position in range(30):
        choice = choose(s, seed=11, position=position)
        (listed,) = [c for c in s.candidates(8, include=[choice.id]) if c.id == choice.id]
        assert math.log(listed.p_raw) == pytest.approx(choice.logprob_raw, abs=1e-12)
        assert math.log(listed.p_final) == pytest.approx(choice.logprob_final, abs=1e-12)


def test_sums_of_a_batch_change_no_bit() -> None:
    logits = np.random.default_rng(5).standard_normal(3000).astype(np.float32)
    for policy in (
        Policy(banned_ids=[4]),
        Policy(repetition_penalty=1.5, top_p=0.9),
        Policy(temperature=0.5, top_p=0.9),
    ):
        raw = shape((), logits).final
        sums = {beta: (lambda d: (d.rest, d.weighted_z))(raw.tempered(1 / beta)) for beta in policy.betas}
        with_sums, alone = policy.shape(logits, [1, 2, 3], sums=sums), policy.shape(logits, [1, 2, 3])
        assert with_sums.probs.tolist() == alone.probs.tolist() and with_sums.ledger == alone.ledger
