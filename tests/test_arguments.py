"""What programs pass to the API and is no such thing: an error that names the parameter, whatever the mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glassbox
from glassbox.choose import draw_seed
from glassbox.errors import ParameterError, PromptError, UnknownPoint
from glassbox.model.threads import thread_count

Use = Callable[[Any], Any]


@pytest.fixture(scope="module")
def bigram() -> Any:
    return glassbox.load("bigram")


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda m: m.generate(ids="ab"), ParameterError, "ids is 'ab', but must be a sequence of whole numbers"),
        (lambda m: m.generate(ids=[1, 1.5]), ParameterError, r"ids is \[1, 1.5\]"),
        (lambda m: m.generate(ids=["1"] * 999), ParameterError, r"ids is \['1', .{,60}Ellipsis\]"),
        (lambda m: m.generate(ids=[[1, 2]]), ParameterError, "ids is"),
        (lambda m: m.generate(ids=5), ParameterError, "ids is 5"),
        (lambda m: m.generate(ids=[2**70]), PromptError, "outside the vocabulary of 4"),
        (lambda m: m.generate(ids=[]), PromptError, "ids is empty"),
        (lambda m: m.generate(""), PromptError, "the prompt is empty"),
        (lambda m: m.generate("zzz"), PromptError, "cannot be encoded: none of its 3 bytes is in the vocabulary"),
        (lambda m: m.generate([{"role": "user"}]), ParameterError, "prompt is .* a conversation goes into messages"),
        (lambda m: m.generate(messages=[]), PromptError, "messages is empty"),
        (lambda m: m.generate("ab", policy={"temperature": 1}), ParameterError, "policy is .* must be a Policy"),
        (lambda m: m.generate("ab", policy="greedy"), ParameterError, "policy is 'greedy'"),
        (lambda m: m.generate("ab", stop=5), ParameterError, "stop is 5"),
        (lambda m: m.generate("ab", stop=["c", 5]), ParameterError, r"stop is \['c', 5\]"),
        (lambda m: m.generate("ab", stop_ids=5), ParameterError, "stop_ids is 5"),
        (lambda m: m.generate("ab", time_limit="5"), ParameterError, "time_limit is '5'"),
        (lambda m: m.logits("ab"), ParameterError, "ids is 'ab'"),
        (lambda m: m.decode("ab"), ParameterError, "ids is 'ab'"),
        (lambda m: m.decode([-1]), PromptError, "id -1 is outside"),
        (lambda m: m.encode(5), ParameterError, "text is 5, but must be a string"),
        (lambda m: m.observe([1], 5), ParameterError, "points is 5"),
        (lambda m: m.observe("ab", "embed"), ParameterError, "ids is 'ab'"),
        (lambda m: m.observe([1], "resid_pre.0"), UnknownPoint, "there are: embed, final_norm, logits$"),
    ],
)
def test_mistakes_are_named(bigram: Any, use: Use, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        use(bigram)


def test_what_is_meant_is_taken(bigram: Any) -> None:
    assert bigram.observe([1], "embed").keys() == {"embed"}
    points = ("final_norm", "logits", "embed")
    assert tuple(bigram.observe([1], points)) == points
    asked: dict[str, Any] = dict(ids=np.array([1, 2]), stop="b", max_tokens=9, time_limit=60, policy=None, seed=1)
    assert bigram.generate(**asked).prompt_ids == (1, 2)
    assert bigram.decode(i for i in (1, 2)) == "ab"


def test_a_drawn_seed_is_a_number_that_javascript_can_hold() -> None:
    assert all(draw_seed() < 2**53 for _ in range(200))


def test_an_unrecorded_run_says_so(bigram: Any, tmp_path: Any) -> None:
    assert ", not recorded: " in repr(bigram.generate("ab", max_tokens=1))
    with glassbox.open_store(tmp_path / "runs.db") as store:
        kept = bigram.generate("ab", max_tokens=1, store=store)
        assert "not recorded" not in repr(kept) + repr(store.load("last"))


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSBOX_THREADS", raising=False)
    cores = thread_count()
    monkeypatch.setenv("GLASSBOX_THREADS", "")
    assert thread_count() == cores
