"""Guidance, DoLa and contrastive search against transformers' models: the same ids, token by token."""

from __future__ import annotations

import json
from typing import Any

import passes_hf
import pytest
import tiny_weights
from test_contrast import model_of, run

from glassbox.policy.policy import Policy

GOLDEN = json.loads(passes_hf.PATH.read_text())["models"]
CASES, _ = tiny_weights.load()


def check(case: str, sets: dict[str, Any]) -> None:
    model = model_of(case)
    prompt = tiny_weights.ids_of(case, model.vocab_size)[: passes_hf.PROMPT]
    for name, right in sets.items():
        if not right["ids"]:  # transformers has no low layer in a model of three
            continue
        values = dict(passes_hf.SETS[name])
        if "penalty_alpha" not in values:
            values["temperature"] = 0.0
        steps = run(model, Policy.preset("hf", **{"top_k": 0, **values}), prompt, passes_hf.N)
        assert [s.id for s in steps] == right["ids"], name
        for i, step in enumerate(steps):
            params = {r.name: r.params for r in step.ledger}
            if "layers" in right and len(set(right["layers"])) > 1:
                assert params["dola"]["layer"] == right["layers"][i]
            if "scores" in right:
                assert params["contrastive"]["score"] == pytest.approx(right["scores"][i], abs=2e-5)


@pytest.mark.parametrize("case", sorted(GOLDEN))
def test_against_golden_runs(case: str) -> None:
    check(case, GOLDEN[case])


@pytest.mark.oracle("torch", "transformers")
def test_against_transformers_itself() -> None:
    check("stablelm-a", passes_hf.made("stablelm-a", CASES))
