"""The `llama.cpp` preset against llama.cpp's own samplers: the same ids kept, the same probabilities.

llama.cpp adds up in float32, over as many terms as there are tokens alive. What follows from it is bounded, not
ignored: its kept set is ours for the same values, or lies between ours for values NEAR of them; and its probabilities
are ours to REAL, or, behind a dynamic temperature, whose entropy is such a sum, to what one NEAR of ours gives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import policy_llama as llama
import pytest

import glassbox
from glassbox.policy.policy import Policy

REAL = 2e-6  # of log p per nat of distance from the best, and in all
NEAR = 2e-4  # of a parameter; adding 49,152 float32 in turn could lose 3e-3, and 1.1e-4 was seen
SMALLEST = 1e-30  # float32 has 1e-38; below this a probability there is 0, or has few digits
EDGES = ("top_p", "typical_p", "top_n_sigma", "min_p", "xtc_threshold")  # parameters with an edge on a sum
GOLDEN = json.loads(llama.DATA.with_suffix(".json").read_text())


def shaped(row: np.ndarray, ids: list[int], values: dict[str, Any], scale: float = 1.0) -> Any:
    moved = {name: min(1.0, x * scale) if name in EDGES and name != "top_n_sigma" else x for name, x in values.items()}
    if "top_n_sigma" in values:
        moved["top_n_sigma"] = max(0.0, values["top_n_sigma"] * scale)
    return Policy.preset("llama.cpp", **moved).shape(row, ids, (), seed=1)


def check(
    row: np.ndarray, ids: list[int], samplers: tuple[str, ...], asked: Mapping[str, Any], kept: set[int],
    probs: Mapping[int, float],
) -> bool:  # fmt: skip
    """Whether the kept sets are the same; asserts all else."""
    values = llama.policy_values(samplers, asked)
    s = shaped(row, ids, values)
    ours = set(np.flatnonzero(s.final.alive()).tolist())
    same = ours == kept or all(s.probs[i] < SMALLEST for i in ours ^ kept)
    if not same:
        around = [set(np.flatnonzero(shaped(row, ids, values, x).final.alive()).tolist()) for x in (1 - NEAR, 1 + NEAR)]
        fewer, more = sorted(around, key=len)
        assert fewer <= kept <= more, (samplers, asked, ours ^ kept)
    best = max(probs, key=lambda i: probs[i])
    for i, p in probs.items():
        if p > SMALLEST and i in ours and best in ours:
            here = s.final_logprob(i) - s.final_logprob(best)
            allowed = REAL * (1 + abs(here)) + (NEAR * abs(here) if asked.get("dynatemp_range") else 0.0)
            assert abs(here - math.log(p / probs[best])) < allowed, (samplers, asked, i)
            if same and not asked.get("dynatemp_range"):
                assert abs(math.exp(s.final_logprob(i)) - p) < REAL, (samplers, asked, i)
    return same


def test_against_golden_cases() -> None:
    row = np.load(llama.DATA.with_suffix(".npz"))["row"]
    assert len(GOLDEN["cases"]) == len(llama.ASKED) > 40 and row.shape == (llama.VOCAB,)
    same = 0
    for (samplers, values), case in zip(llama.ASKED, GOLDEN["cases"], strict=True):
        kept = set(case["kept"]) if "kept" in case else set(range(llama.VOCAB)) - set(case["gone"])
        probs = {int(i): p for i, p in case["p"].items()}
        same += check(row, GOLDEN["ids"], samplers, values, kept, probs)
    assert same >= len(llama.ASKED) - 1  # typical 0.95 keeps 1,702 there and 1,705 here: the sum of so many in float32


def test_the_cases_cover_every_sampler_of_the_chain() -> None:
    assert {name for samplers, _ in llama.ASKED for name in samplers} == set(llama.CHAIN)
    steps = {s for name in llama.CHAIN for s in llama.OURS.get(name, (name,))}
    assert steps | {"banned_ids", "logit_bias"} == set(Policy.preset("llama.cpp").order)


@pytest.mark.oracle("xllamacpp")
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
def test_against_llama_cpp_itself(smollm2_path: Path) -> None:
    server, tokenizer = llama.Server(smollm2_path), glassbox.load_tokenizer(smollm2_path)
    same = told = 0
    for prompt in llama.PROMPTS:
        ids = list(tokenizer.encode(prompt).ids)
        row = server.shifted(ids)
        for samplers, values in llama.ASKED:
            probs = server.kept(ids, samplers, values)
            same += check(row, ids, samplers, values, set(probs), probs)
            told += 1
    assert told == len(llama.PROMPTS) * len(llama.ASKED) and same >= 0.95 * told
