"""The `hf` preset against transformers' own processors: the same ids kept, the same probabilities."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import policy_hf
import pytest

from glassbox.policy.policy import Policy

GOLDEN = json.loads(policy_hf.PATH.read_text())


def check(case: dict[str, Any]) -> None:
    logits, prompt, output = policy_hf.row(case)
    policy = Policy.preset("hf", **{"top_k": 0, **case["values"]})
    s = policy.shape(logits, prompt, output)
    kept = np.flatnonzero(s.final.alive())
    assert kept.tolist() == case["kept"], case["values"]
    np.testing.assert_allclose(s.probs[kept], case["p"], rtol=0, atol=1e-12)


def test_the_golden_cases_cover_every_parameter() -> None:
    asked = {name for case in GOLDEN["cases"] for name in case["values"]}
    own = set(Policy.preset("hf").to_dict()) & {p for v in policy_hf.SETS for p in v}
    assert asked == own - {"forced_ids"} and len(GOLDEN["cases"]) == 3 * (len(policy_hf.SETS) - 1)


def test_against_golden_cases() -> None:
    for case in GOLDEN["cases"]:
        check(case)


@pytest.mark.oracle("torch", "transformers")
@pytest.mark.parametrize("seed", range(40))
def test_against_transformers_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    picked = [policy_hf.SETS[i] for i in rng.integers(0, len(policy_hf.SETS), 3)]
    values = {k: x for v in picked for k, x in v.items() if k not in ("allowed_ids", "forced_ids")}
    check(policy_hf.processed({"seed": seed, "size": policy_hf.SIZES[seed % 3], "values": values}))
