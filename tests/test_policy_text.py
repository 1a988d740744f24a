"""Bias and bans by text: which ids a text becomes, when, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassbox
from glassbox.cli.app import invoke
from glassbox.errors import ParameterError
from glassbox.policy.policy import Policy
from glassbox.text.exactly import exact_ids


def encode(param: str, text: str) -> tuple[int, ...]:
    """A vocabulary of letters: a is 0."""
    return tuple(ord(c) - ord("a") for c in text)


def test_a_bias_of_several_ids_counts_for_the_last_where_the_others_stand_before() -> None:
    policy = Policy(logit_bias={(1, 2): 2.0, (0, 1, 2): 4.0, 2: 1.0, 3: -1.0})
    flat = np.zeros(5, np.float32)
    for past, expected in (([], 1.0), ([1], 3.0), ([0, 1], 7.0), ([1, 0], 1.0), ([2, 0, 1], 7.0)):
        s = policy.shape(flat, past)
        assert s.final.logits.tolist() == [0, 0, expected, -1, 0], past
        assert policy.shape(flat, past[:1], past[1:]).final.logits.tolist() == s.final.logits.tolist()
    assert policy.shape(flat, [0, 1]).ledger[1].params == {"ids": 2, "sequences": 2, "changed": 2}
    assert Policy(logit_bias={(3,): 1.0}) == Policy(logit_bias={3: 1.0})
    with pytest.raises(ParameterError, match="logit_bias is 9, but must be an id of the vocabulary"):
        Policy(logit_bias={(9, 1): 1.0}).shape(flat)


def test_texts_become_ids_before_anything_runs() -> None:
    policy = Policy(logit_bias={"a": 5, "bc": 1, 4: -1, "42": 2}, banned_texts=["d", "ed"])
    assert policy.logit_bias == ((4, -1.0), (42, 2.0), ("a", 5.0), ("bc", 1.0))  # a mapping's "42" is an id
    ready = policy.for_model(50, [], encode)
    assert ready == Policy(logit_bias={0: 5, (1, 2): 1, 4: -1, 42: 2}, banned_sequences=[[3], [4, 3]])
    assert not ready.texts and policy.texts == (
        ("logit_bias", "a"), ("logit_bias", "bc"), ("banned_texts", "d"), ("banned_texts", "ed"),
    )  # fmt: skip
    assert Policy(logit_bias=[("a", 1), (0, 2)]).for_model(5, [], encode).logit_bias == ((0, 3.0),)
    for stored in (policy, ready):
        assert Policy.from_dict(json.loads(json.dumps(stored.to_dict()))) == stored
    assert Policy(logit_bias=[("42", 2)]).logit_bias == (("42", 2.0),)  # in a pair it is the text


def test_a_text_that_is_no_ids_yet_does_not_run() -> None:
    for policy, name in ((Policy(logit_bias={"a": 1}), "logit_bias"), (Policy(banned_texts=["a"]), "banned_texts")):
        for act in (lambda p: p.shape(np.zeros(4)), lambda p: p.for_model(4, [])):
            with pytest.raises(ParameterError, match=f"{name} is 'a', but must be in ids by now") as caught:
                act(policy)
            assert caught.value.param == name
    with pytest.raises(ParameterError, match="banned_texts"):
        Policy(banned_texts=["a"], order=("temperature",))
    for bad in ("ab", [""], [1], ["\ud800"]):
        with pytest.raises(ParameterError, match="banned_texts"):
            Policy(banned_texts=bad)  # type: ignore[arg-type]


@pytest.mark.model
def test_the_ids_of_a_text_say_just_it(smollm2: glassbox.Model, gemma3: glassbox.Model) -> None:
    for model in (smollm2, gemma3):
        for text in (" Paris", "Paris", " the", "\n", "  ", "é", " 雨が降る", "🙂", "a b c", " "):
            ids = exact_ids(model.tokenizer, "logit_bias", text)
            assert b"".join(map(model.tokenizer.vocab.bytes_of, ids)) == text.encode()
    assert len(exact_ids(smollm2.tokenizer, "x", " Paris")) == 1 < len(exact_ids(smollm2.tokenizer, "x", " 雨が降る"))


@pytest.mark.model
def test_a_generation_by_text(smollm2: glassbox.Model) -> None:
    greedy: dict[str, Any] = dict(max_tokens=4, seed=1)
    prompt = "The capital of France is"
    plain = smollm2.generate(prompt, policy=Policy(temperature=0), **greedy)
    banned = smollm2.generate(prompt, policy=Policy(temperature=0, banned_texts=[plain.steps[0].text]), **greedy)
    assert banned.steps[0].id != plain.steps[0].id
    assert banned.policy.banned_sequences == ((plain.steps[0].id,),) and not banned.policy.banned_texts
    london = smollm2.generate(prompt, policy=Policy(temperature=0, logit_bias={" London": 50}), **greedy)
    assert london.text.startswith(" London") and isinstance(london.policy.logit_bias[0][0], int)
    # Of two ids only the second gets the bias, and only after the first.
    first, second, *_ = exact_ids(smollm2.tokenizer, "x", " Londonderry")
    derry = smollm2.generate(
        prompt, policy=Policy(temperature=0, logit_bias={first: 50, (first, second): 90}), **greedy
    )
    assert derry.ids[:3] == (first, second, first)


def test_a_text_that_cannot_be_said_is_named() -> None:
    model = glassbox.load("bigram")
    with pytest.raises(ParameterError, match="banned_texts is 'z', but must be text that this vocabulary can say"):
        model.generate("ab", policy=Policy(banned_texts=["z"]))


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["trace", "ab", "--model", "bigram", "--max-tokens", "4", "--seed", "5", "--json", "--store"]
    command.append(str(tmp_path / "runs.db"))
    ids = {t: glassbox.load("bigram").encode(t).ids for t in ("a", "b", "ab")}
    flags = ["--bias-text", "ab=9", "--bias-text", "a=-1.5", "--logit-bias", "3=2", "--banned-text", "b"]
    assert invoke([*command, *flags]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["policy"]["logit_bias"] == [[ids["a"][0], -1.5], [3, 2.0], [list(ids["ab"]), 9.0]]
    assert got["policy"]["banned_sequences"] == [list(ids["b"])] and got["policy"]["banned_texts"] == []
    assert got["sources"]["logit_bias"] == got["sources"]["banned_texts"] == "flag"
    assert all(s["id"] != ids["b"][0] for s in got["steps"])
    for flag, error in (("ab", "bias_text is ['ab'], but must be of the form TEXT=B"), ("=1", "logit_bias is ''")):
        assert invoke([*command, "--bias-text", flag]) == 2
        assert error in capsys.readouterr().err
