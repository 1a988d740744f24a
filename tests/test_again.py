"""A run under its model once more gives the bits of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glassbox
from glassbox.errors import ParameterError
from glassbox.generation import logits_hash
from glassbox.policy.policy import Policy
from glassbox.trace.again import Again


@pytest.mark.parametrize("first", [0, 3, 9])
def test_the_logits_of_any_steps_have_the_hashes_of_the_run(smollm2: glassbox.Model, first: int) -> None:
    run = smollm2.generate("The capital of France is", policy=Policy(temperature=0.9), seed=3, max_tokens=10)
    with run.again() as again:
        rows = again.logits(first)
        assert [logits_hash(row) for row in rows] == [s.logits_hash for s in run.steps[first:]]
        assert again.shaped(first, rows[0]).final_logprob(run.ids[first]) == run.steps[first].choice.logprob_final


def test_inner_values_are_those_that_observe_gives(smollm2: glassbox.Model) -> None:
    run = smollm2.generate("The capital of France is", policy=Policy(temperature=0.9), seed=3, max_tokens=6)
    points = ["resid_post.10", "attn_probs.3", "logits"]
    whole = smollm2.observe([*run.prompt_ids, *run.ids[:-1]], points)
    held = smollm2.model.new_cache().pool.used
    with Again(run, smollm2) as again:
        for step in (5, 0, 2):
            at = again.position(step)
            for name, value in again.observe(step, points).items():
                expected = whole[name][at : at + 1]
                assert np.array_equal(value, expected[..., : value.shape[-1]]), (name, step)
        with pytest.raises(ParameterError, match="step is 6"):
            again.position(6)
    assert smollm2.model.new_cache().pool.used == held


def test_a_run_from_a_store_opens_its_model_by_name(smollm2_path: Path, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        model = glassbox.load(smollm2_path)
        run = model.generate("Hello", policy=Policy(temperature=0.9), seed=3, max_tokens=2, store=store)
        found = store.load(run.run_id)
        assert found == run and found.opened is None
        with found.again() as again:
            assert logits_hash(again.logits(1)[0]) == run.steps[1].logits_hash
