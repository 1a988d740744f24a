"""What a policy is given, whatever its type: kept as plain values of its own, or refused by name on one line."""

from __future__ import annotations

import enum
import json
import warnings
from typing import Any

import numpy as np
import pytest

from glassbox.errors import ParameterError
from glassbox.policy.grammar import Grammar
from glassbox.policy.parameters import CHECKS
from glassbox.policy.policy import Policy


# str() of one is not the string that it is equal to.
class Word(str, enum.Enum):  # noqa: UP042
    TGI, OUTPUT, LOW, TOP_K, REGEX = "tgi", "output", "low", "top_k", "regex"


def endless() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"frequency_formula": Word.TGI}, {"frequency_formula": "tgi"}),  # str() of it is "Word.TGI"
        ({"penalty_scope": Word.OUTPUT}, {"penalty_scope": "output"}),
        ({"dola_layers": Word.LOW}, {"dola_layers": "low"}),
        ({"order": [Word.TOP_K, "temperature"]}, {"order": ("top_k", "temperature")}),
        ({"grammar": {Word.REGEX: "a"}}, {"grammar": Grammar("regex", "a")}),
        ({"banned_texts": [Word.LOW]}, {"banned_texts": ("low",)}),
        ({"temperature": -0.0}, {"temperature": 0.0}),
        ({"top_p": np.float64(0.5), "top_k": np.int64(3)}, {"top_p": 0.5, "top_k": 3}),
        ({"banned_ids": np.array([3, 1, 3])}, {"banned_ids": (1, 3)}),
        ({"logit_bias": {"42": 1}}, {"logit_bias": ((42, 1.0),)}),
        ({"logit_bias": {"٤٢": 1}}, {"logit_bias": (("٤٢", 1.0),)}),  # JSON writes an id in ASCII: this is a text
    ],
)
def test_equal_values_of_other_types_make_one_policy(given: dict[str, Any], plain: dict[str, Any]) -> None:
    found, wanted = Policy(**given), Policy(**plain)
    assert found == wanted and hash(found) == hash(wanted)
    assert json.dumps(found.to_dict()) == json.dumps(wanted.to_dict())
    assert repr(found) == repr(wanted)
    assert Policy.from_dict(json.loads(json.dumps(found.to_dict()))) == found


HOSTILE: list[Any] = [
    True, float("nan"), float("inf"), 10**5000, -(10**5000), "\ud800", b"x", object(), np.ndarray, 1j, [None], [[[]]],
    np.array([[1, 2], [3, 4]]), np.array([0.5, 0.25]), np.array(["a", "openai"]), [10**5000], {"1" * 5000: 1}, [["a"]],
    [{}], endless(),
]  # fmt: skip
ARRAYS = ("banned_sequences", "banned_texts", "logit_bias")  # of sequences, of texts, of pairs


@pytest.mark.parametrize("name", [*CHECKS, "order"])
def test_what_is_no_value_is_refused_by_name_on_one_line(name: str) -> None:
    for value in HOSTILE:
        try:
            found = Policy(**{name: value})
        except ParameterError as e:
            assert e.param == name and "\n" not in str(e)
        else:  # some are right for some: True for a flag, an array for a list
            assert value is True or (isinstance(value, np.ndarray) and name in ARRAYS)
            assert Policy.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize("order", [None, 5, [["top_k"]], "top_k", [{}], np.array([1])])
def test_a_presets_order_is_checked_as_a_policys(order: Any) -> None:
    with pytest.raises(ParameterError, match="order is"):
        Policy.preset("hf", order=order)


@pytest.mark.parametrize("data", [None, 5, [], "x", [("top_k", 1)]])
def test_a_policy_comes_of_a_mapping(data: Any) -> None:
    with pytest.raises(ParameterError, match="policy is"):
        Policy.from_dict(data)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("json_object", "{}"), ("choice", "yes"), ("choice", "[1]"), ("choice", "[]"), (["regex"], "a"), ({}, "a")],
)
def test_a_grammar_that_would_not_come_back_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(ParameterError, match="grammar is"):
        Grammar(kind, text)


@pytest.mark.parametrize(
    "values",
    [
        {"dry_multiplier": 5e-324},
        {"dry_multiplier": 1e-320, "dry_base": 1.0 + 2**-52},
        {"repetition_penalty": 5e-324},
        {"logit_bias": {1: 3e38, 2: -3e38}},
        {"guidance_scale": 1e6},
    ],
)
def test_the_smallest_and_largest_values_neither_crash_nor_warn(values: dict[str, Any]) -> None:
    """A result beyond float32 is refused by name, without a word from numpy."""
    from glassbox.errors import NonFiniteLogits
    from glassbox.policy.step import Views

    rows = [[0.0, 1.0, -2.0, 3.0], [3e38, 3e38, -3e38, 0.0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for row in rows:
            views = Views(negative=np.array(row[::-1], np.float32))
            try:
                shaped = Policy(**values).shape(row, [1, 2, 1, 2], [1, 2, 1], views=views)
            except NonFiniteLogits as e:
                assert e.where == f"policy step {next(iter(values)).removesuffix('_scale')!r}"
            else:
                assert abs(shaped.probs.sum() - 1.0) < 1e-12


def test_a_dry_penalty_too_small_to_matter_changes_nothing() -> None:
    shaped = Policy(dry_multiplier=5e-324).shape([0.0, 1.0, 2.0], [0, 1, 2, 0, 1, 2], [])
    assert shaped.final.dense().tolist() == pytest.approx(Policy().shape([0.0, 1.0, 2.0]).probs.tolist(), abs=0)
