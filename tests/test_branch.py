"""Branches: the same token gives the parent again; anything else is a run of its own, with the same draws."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassbox
from glassbox.cli.app import invoke
from glassbox.errors import ParameterError, PromptError
from glassbox.events import Step
from glassbox.policy.policy import Policy
from glassbox.trace.record import Run

PROMPT = "The capital of France is"
POLICY = Policy(temperature=0.9, top_p=0.95, repetition_penalty=1.1)


@pytest.fixture(scope="module")
def bigram() -> glassbox.Model:
    return glassbox.load("bigram")


@pytest.fixture(scope="module")
def parent(smollm2: glassbox.Model) -> Run:
    return smollm2.generate(PROMPT, policy=POLICY, seed=3, max_tokens=12)


def bits(steps: tuple[Step, ...]) -> list[Step]:
    """All of each step but how long it took."""
    return [replace(s, model_ns=0, policy_ns=0, drafted=False) for s in steps]


def check_same(made: Run, parent: Run) -> None:
    assert made.ids == parent.ids and made.text == parent.text
    assert bits(made.steps) == bits(parent.steps)  # ids, draws, intervals, hashes, ledgers, candidates, text
    assert made.outcome is not None and parent.outcome is not None
    assert made.outcome.ending == parent.outcome.ending and made.usage.completion_tokens == len(parent.ids)


@pytest.mark.parametrize("at", range(12))
def test_the_token_that_was_chosen_gives_the_run_again(parent: Run, at: int) -> None:
    made = parent.branch(at, token_id=parent.ids[at])
    check_same(made, parent)
    assert made.run_id != parent.run_id
    assert made.request.branch is not None
    assert (made.request.branch.parent, made.request.branch.step) == (parent.run_id, at)


@pytest.mark.parametrize("stop", [["Paris"], ["capital of"], [" F", "nce"]])
def test_stops_and_held_back_text_go_on_where_they_were(smollm2: glassbox.Model, stop: list[str]) -> None:
    run = smollm2.generate("Paris, France. Berlin,", policy=Policy(0.0), seed=1, max_tokens=24, stop=stop)
    for at in range(len(run.steps)):
        check_same(run.branch(at, token_id=run.ids[at]), run)


def test_characters_of_several_tokens_are_not_cut(smollm2: glassbox.Model) -> None:
    run = smollm2.generate("😀 🐦 🦤", policy=Policy(temperature=0.8, top_k=20), seed=5, max_tokens=16, ignore_eos=True)
    for at in range(len(run.steps)):
        check_same(run.branch(at), run)


@given(seed=st.integers(0, 2**64 - 1), at=st.integers(0, 9), other=st.integers(0, 3))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_another_token_is_what_a_prompt_with_it_would_give(
    bigram: glassbox.Model, seed: int, at: int, other: int
) -> None:
    """The draws belong to positions: behind the forced id the branch is the run of a prompt that ends with it."""
    asked: dict[str, Any] = {"policy": Policy(temperature=1.5), "seed": seed, "ignore_eos": True}
    run = bigram.generate("ab", max_tokens=10, **asked)
    made = run.branch(at, token_id=other)
    assert made.ids[:at] == run.ids[:at] and made.ids[at] == other and len(made.ids) == 10
    assert bits(made.steps[:at]) == bits(run.steps[:at])
    if at < 9:
        rest = bigram.generate(ids=[*run.prompt_ids, *made.ids[: at + 1]], max_tokens=9 - at, **asked)
        assert rest.ids == made.ids[at + 1 :]
        assert [s.choice for s in rest.steps] == [s.choice for s in made.steps[at + 1 :]]


def test_a_forced_token_is_told_with_the_draw_that_was_not_followed(parent: Run) -> None:
    best = parent.steps[4].candidates[0].id
    other = next(c.id for c in parent.steps[4].candidates if c.id != parent.ids[4] and c.removed_by is None)
    made = parent.branch(4, token_id=other)
    choice, was = made.steps[4].choice, parent.steps[4].choice
    assert choice.id == other and choice.u == was.u and choice.counter == was.counter
    assert choice.u is not None and not choice.cdf_lo <= choice.u < choice.cdf_hi
    p = next(c.p_final for c in parent.steps[4].candidates if c.id == other)
    assert choice.cdf_hi - choice.cdf_lo == pytest.approx(p, abs=1e-12)
    assert made.steps[4].logits_hash == parent.steps[4].logits_hash
    assert made.request.forced(4) and not made.request.forced(3)
    greedy = parent.branch(4, token_id=49_000, policy=Policy(0.0))
    assert greedy.ids[4] == 49_000 != best and greedy.steps[4].choice.logprob_final == float("-inf")
    assert (greedy.steps[4].choice.cdf_lo, greedy.steps[4].choice.cdf_hi) == (1.0, 1.0)


def test_another_policy_begins_where_what_if_says(parent: Run) -> None:
    other = Policy(temperature=0.3)
    first = parent.what_if(other).first
    assert first is not None and first.choice is not None
    made = parent.branch(0, policy=other)
    assert made.ids[: first.step] == parent.ids[: first.step] and made.ids[first.step] == first.choice.id
    late = parent.branch(9, policy=other)
    assert bits(late.steps[:9]) == bits(parent.steps[:9]) and late.policy == other
    assert [late.request.under(s)[0] for s in (0, 8, 9, 11)] == [POLICY, POLICY, other, other]


def test_a_branch_of_a_branch_knows_what_made_each_step(parent: Run) -> None:
    one = parent.branch(8, policy=Policy(temperature=0.5), seed=11)
    two = one.branch(10, policy=Policy(temperature=1.2))
    three = two.branch(4, token_id=7)
    assert [two.request.under(s)[1] for s in (7, 8, 10)] == [3, 11, 11]
    assert [two.request.under(s)[0].temperature for s in (7, 8, 9, 10)] == [0.9, 0.5, 0.5, 1.2]
    assert [three.request.under(s)[0].temperature for s in (3, 4)] == [0.9, 1.2]
    with two.again() as again:
        for step, row in enumerate(again.rows()):
            assert again.shaped(step, row).final_logprob(two.ids[step]) == two.steps[step].choice.logprob_final


def test_it_goes_on_behind_the_end_where_the_text_had_not_ended(smollm2: glassbox.Model, parent: Run) -> None:
    long = smollm2.generate(PROMPT, policy=POLICY, seed=3, max_tokens=20)
    made = parent.branch(12, max_tokens=20)
    check_same(made, long)
    with pytest.raises(ParameterError, match="max_tokens"):
        parent.branch(12)
    with pytest.raises(ParameterError, match="at is 13"):
        parent.branch(13)


def test_pages_of_the_prefix_are_shared(parent: Run, smollm2: glassbox.Model) -> None:
    long = smollm2.generate("word " * 80, policy=POLICY, seed=3, max_tokens=40, ignore_eos=True)
    made = long.branch(39)
    assert made.usage.cached_tokens == len(long.prompt_ids)
    assert {token.kv for token in made.prompt} == {"reused"}


def test_the_store_keeps_the_tree(smollm2: glassbox.Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = smollm2.generate(PROMPT, policy=POLICY, seed=3, max_tokens=8, store=store)
        one = run.branch(3, token_id=run.ids[0], store=store)
        two = one.branch(5, policy=Policy(temperature=0.2), seed=9, store=store)
        three = run.branch(text="Hello", store=store)
        for made in (one, two, three):
            assert store.load(made.run_id) == made and store.verify(made.run_id) is None
        assert store.branches(run.run_id) == [(one.run_id, 3), (three.run_id, None)]
        assert store.branches(one.run_id) == [(two.run_id, 5)]
        parents = {r.id: (r.parent, r.parent_step) for r in store.runs()}
        assert parents[two.run_id] == (one.run_id, 5) and parents[run.run_id] == (None, None)


def test_text_that_the_parents_trace_did_not_keep_is_worked_out_anew(smollm2: glassbox.Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = smollm2.generate(PROMPT, policy=POLICY, seed=3, max_tokens=6, store=store, retain="ids")
        parent = replace(store.load(), opened=run.opened)
        assert parent.ids == run.ids and not any(s.text or s.bytes for s in parent.steps)
        made = parent.branch(4)
        assert [(s.text, s.bytes) for s in made.steps] == [(s.text, s.bytes) for s in run.steps]
        assert "".join(s.text for s in made.steps) == made.text


def test_an_edited_prompt_is_encoded_anew(smollm2: glassbox.Model, parent: Run) -> None:
    made = parent.branch(text="The capital of Spain is", max_tokens=4)
    same = smollm2.generate("The capital of Spain is", policy=POLICY, seed=3, max_tokens=4)
    assert made.ids == same.ids and made.prompt_ids == same.prompt_ids
    assert made.request.branch is not None and made.request.branch.step is None
    messages = [{"role": "user", "content": "Name a bird."}]
    chat = smollm2.generate(messages=messages, policy=POLICY, seed=3, max_tokens=3)
    again = chat.branch(messages=messages)
    assert again.ids == chat.ids and again.prompt_ids == chat.prompt_ids


def test_bad_input_names_the_parameter(bigram: glassbox.Model, parent: Run) -> None:
    for asked, word in (
        ({"at": -1}, "at"),
        ({"at": True}, "at"),
        ({"at": 2, "token_id": 49_152}, "token_id"),
        ({"at": 2, "text": "x"}, "text"),
        ({"at": 2, "seed": -1}, "seed"),
        ({"at": 5, "max_tokens": 5}, "max_tokens"),
        ({"at": 2, "policy": 3}, "policy"),
        ({"at": 2, "policy": Policy(), "sources": 3}, "sources"),
        ({"at": 2, "interventions": None}, "interventions"),
        ({"at": 2, "interventions": [3]}, "interventions"),
    ):
        with pytest.raises(ParameterError, match=word):
            parent.branch(**asked)
    with pytest.raises(PromptError, match="another model"):
        parent.branch(2, opened=bigram)


@pytest.mark.model
def test_the_command(commands: glassbox.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "runs.db")
    messages = [{"role": "user", "content": "Name a bird."}]
    with glassbox.open_store(path) as store:
        run = commands.generate(messages=messages, policy=POLICY, seed=3, max_tokens=6, store=store)
    branch = ["branch", run.run_id, "--store", path]
    capsys.readouterr()
    assert invoke([*branch, "--at", "2", "--token", str(run.ids[2]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [s["id"] for s in told["steps"]] == list(run.ids) and told["parent"] == run.run_id
    assert told["parent_step"] == 2 and told["forced"] == [2]
    assert invoke([*branch, "--at", "2", "--token", "0", "--temperature", "0"]) == 0
    assert "forced" in capsys.readouterr().out
    assert invoke(["show", "last", "--at", "2", "--store", path]) == 0
    assert "draw     put there: nothing was drawn" in capsys.readouterr().out
    other = next(c.id for c in run.steps[2].candidates if c.id != run.ids[2])
    assert invoke([*branch, "--at", "2", "--token", str(other), "--max-tokens", "3"]) == 0
    assert invoke(["show", "last", "--at", "2", "--store", path]) == 0
    assert f"draw     {run.steps[2].choice.u:.6f} not followed, the token was put there" in capsys.readouterr().out
    assert invoke([*branch, "--message-edit", "0=Name a fish.", "--max-tokens", "2"]) == 0
    capsys.readouterr()
    assert invoke(["runs", "--store", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("Name a bird.") and [line.partition("└ ")[2] for line in lines[2:]] == [
        "at step 2", "at step 2", "at step 2", "Name a fish.",
    ]  # fmt: skip
    assert invoke(["show", run.run_id, "--store", path]) == 0
    assert capsys.readouterr().out.count("branches ") == 4
    assert invoke(["show", "last", "--store", path]) == 0
    assert f"branch   of {run.run_id} with another prompt" in capsys.readouterr().out
    for wrong in (
        ["--at", "9"],
        ["--at", "1", "--token", "-1"],
        ["--message-edit", "7=x"],
        ["--text", "a", "--at", "1"],
        [],
    ):
        assert invoke([*branch, *wrong]) == 2


def test_another_prompt_is_asked_as_the_run_was(bigram: glassbox.Model) -> None:
    asked: dict[str, Any] = dict(salt="mine", include_stop=True, prompt_logprobs=True, stop=["zz"], stop_ids=[3])
    run = bigram.generate("ab", seed=3, max_tokens=4, **asked)
    made = run.branch(text="ba").request
    assert {name: getattr(made, name) for name in asked} == {name: getattr(run.request, name) for name in asked}


def test_steps_before_a_branch_are_shaped_by_the_parents_policy(bigram: glassbox.Model) -> None:
    run = bigram.generate("ab", policy=Policy(temperature=1.5), seed=3, max_tokens=8, ignore_eos=True)
    made = run.branch(5, policy=Policy(temperature=0.4))
    with made.again(bigram) as again:
        for step in made.steps:
            shaped = again.shaped(step.step, again.logits(step.step, step.step)[0])
            assert shaped.final_logprob(step.id) == step.choice.logprob_final
