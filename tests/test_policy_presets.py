"""Presets: one row of logits and one history give every engine's own answer, worked out by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassbox.errors import ParameterError, Unsupported
from glassbox.policy.policy import Policy
from glassbox.policy.presets import PRESETS
from glassbox.policy.table import STEPS

ROOT = Path(__file__).parent.parent
LOGITS = [2.0, 1.9, 1.7, 1.2, 0.9, 0.4, -0.5, -1.5]
PAST: dict[str, Any] = {"prompt_ids": [0, 1, 1, 7], "output_ids": [2, 2, 3, 7]}
ASKED: dict[str, Any] = {
    "temperature": 0.6, "top_k": 4, "top_p": 0.8, "min_p": 0.25, "repetition_penalty": 1.3, "frequency_penalty": 0.25,
    "presence_penalty": 0.3,
}  # fmt: skip

# Logits after the penalties, by hand. Repetition 1.3 on all of 0 1 2 3 7 (positive ones divided, -1.5 multiplied), then
# 0.25 times the count in the output (2 twice, 3 once, 7 once) and 0.3 once: vllm, glassbox. hf has repetition alone.
# sglang subtracts first and repeats over the output only: (1.7 - 0.5 - 0.3) / 1.3. llama.cpp and mlx count the prompt
# too (0 once, 1 twice, 7 twice). tgi subtracts 0.25 count / 8.
BY_HAND: dict[str, tuple[list[float], dict[int, float]]] = {  # and what is left in the end
    # / 0.6, then weights 1 .8797 .1795 .1434 .3450 .1500: min-p first leaves 0 1 4, of them .845 are 0 and 1
    "vllm": ([1.538462, 1.461538, 0.507692, 0.373077, 0.9, 0.4, -0.5, -2.5], {0: 0.532007, 1: 0.467993}),
    # the same, but top-k 4 first leaves 0 1 2 4 and .760 are 0 and 1: 4 stays too, and its ratio .345 is above .25
    "glassbox": (
        [1.538462, 1.461538, 0.507692, 0.373077, 0.9, 0.4, -0.5, -2.5], {0: 0.449497, 1: 0.395410, 4: 0.155093}
    ),
    "hf": (
        [1.538462, 1.461538, 1.307692, 0.923077, 0.9, 0.4, -0.5, -1.95], {0: 0.390566, 1: 0.343571, 2: 0.265863}
    ),
    # 0 and 1 are .447 + .379 = .826 of the whole, not of the best four
    "sglang": ([2, 1.9, 0.692308, 0.5, 0.9, 0.4, -0.5, -2.665], {0: 0.541570, 1: 0.458430}),
    # cut at T = 1: .288 .212 .264 of the best four are not yet .8, so all four; min-p .25 too keeps 0 1 2 4
    "llama.cpp": (
        [0.988462, 0.661538, 0.507692, 0.373077, 0.9, 0.4, -0.5, -2.75], {0: 0.409361, 1: 0.237395, 4: 0.353245}
    ),
    "mlx": (
        [0.988462, 0.661538, 0.507692, 0.373077, 0.9, 0.4, -0.5, -2.75],
        {0: 0.345831, 1: 0.200553, 2: 0.155193, 4: 0.298424},
    ),
    "tgi": (
        [1.507212, 1.399038, 1.245192, 0.891827, 0.9, 0.4, -0.5, -2.0125], {0: 0.403032, 1: 0.336543, 2: 0.260425}
    ),
}  # fmt: skip


def asked(name: str) -> dict[str, Any]:
    return {k: v for k, v in ASKED.items() if k in PRESETS[name].parameters}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_gives_its_own_answer(name: str) -> None:
    penalised, left = BY_HAND[name]
    s = Policy.preset(name, **asked(name)).shape(LOGITS, **PAST)
    last = max(i for i, r in enumerate(s.ledger) if r.name.endswith("penalty"))
    np.testing.assert_allclose(s.stages[last].logits, penalised, atol=1e-6)
    assert np.flatnonzero(s.probs).tolist() == list(left)
    np.testing.assert_allclose(s.probs[list(left)], list(left.values()), atol=1e-6)
    # What is left is in the ratio of exp(logit / T), whatever the order.
    best, *others = left
    for i in others:
        assert s.probs[i] / s.probs[best] == pytest.approx(math.exp((penalised[i] - penalised[best]) / 0.6), rel=1e-5)


def test_no_two_engines_agree() -> None:
    assert len({json.dumps(left) for _, left in BY_HAND.values()}) == len(PRESETS) == 7


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("hf", "dola guidance logit_bias repetition_penalty no_repeat_ngram banned_sequences min_tokens temperature "
               "top_h top_k top_p min_p "
               "typical epsilon eta contrastive"),
        ("vllm", "allowed_ids banned_sequences min_tokens logit_bias repetition_penalty frequency_penalty "
                 "presence_penalty temperature min_p top_k top_p"),
        ("sglang", "frequency_penalty min_tokens presence_penalty repetition_penalty logit_bias temperature top_k "
                   "top_p min_p"),
        ("llama.cpp", "logit_bias repetition_penalty frequency_penalty presence_penalty dry top_n_sigma top_k typical "
                      "top_p min_p xtc temperature"),
        ("mlx", "logit_bias repetition_penalty presence_penalty frequency_penalty top_p min_p xtc top_k temperature"),
        ("tgi", "repetition_penalty frequency_penalty temperature top_k top_p typical"),
        ("glassbox", "allowed_ids banned_ids min_tokens logit_bias repetition_penalty frequency_penalty "
                     "presence_penalty dry temperature top_k top_p min_p typical epsilon eta top_n_sigma xtc"),
    ],
)  # fmt: skip
def test_orders_are_the_documented_ones(name: str, order: str) -> None:
    asked = order.split()
    assert [step for step in Policy.preset(name).order if step in asked] == asked


def test_defaults_and_quirks() -> None:
    llama = Policy.preset("llama.cpp")
    assert (llama.temperature, llama.top_k, llama.top_p, llama.min_p) == (0.8, 40, 0.95, 0.05)
    assert Policy.preset("llama.cpp", repetition_scope=128).repetition_scope == 128
    assert Policy.preset("hf").top_k == 50 and Policy.preset("mlx").greedy
    assert Policy.preset("glassbox", temperature=0.5) == Policy(temperature=0.5)
    tiny = [Policy.preset("vllm", temperature=t).temperature for t in (0, 1e-9, 9e-6, 0.0099, 0.01, 0.02)]
    assert tiny == [0, 0.01, 0.01, 0.01, 0.01, 0.02]  # SamplingParams raises it before the sampler sees it
    assert Policy.preset("sglang", temperature=9e-7).greedy and not Policy.preset("sglang", temperature=9e-6).greedy
    ties = np.zeros(4)
    assert [Policy.preset(n, temperature=1.0, top_k=2).shape(ties).final.size for n in PRESETS] == [2, 4, 4, 2, 2, 2, 4]
    last = Policy.preset("llama.cpp", repetition_penalty=2, top_k=0, top_p=1, min_p=0, temperature=1)
    s = last.shape([1, 1, 1], prompt_ids=[0, *[1] * 62], output_ids=[2])
    assert s.final.logits.tolist() == [0.5, 0.5, 0.5]
    s = last.shape([1, 1, 1], prompt_ids=[0, *[1] * 63], output_ids=[2])
    assert s.final.logits.tolist() == [1, 0.5, 0.5]  # id 0 is 65 back


def test_mlx_excludes_strictly_and_spares_what_it_is_told() -> None:
    """p = .4 .2 .2 .1 .1: MLX removes what is above the least p > threshold, so ties with that one stay."""
    row = np.log([0.4, 0.2, 0.2, 0.1, 0.1])
    asked: dict[str, Any] = {"temperature": 1.0, "xtc_probability": 1.0}

    def kept(name: str, threshold: float, **more: Any) -> list[int]:
        s = Policy.preset(name, **asked, xtc_threshold=threshold, **more).shape(row, seed=1)
        return np.flatnonzero(s.final.alive()).tolist()

    llama: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert kept("mlx", 0.15) == [1, 2, 3, 4] and kept("llama.cpp", 0.15, **llama) == [2, 3, 4]
    half = np.log([0.5, 0.25, 0.25])  # exact in binary but for the logarithm's rounding
    for name, expected in (("mlx", [0, 1, 2]), ("llama.cpp", [2])):
        s = Policy.preset(name, **asked, xtc_threshold=0.25, **(llama if name != "mlx" else {})).shape(half, seed=1)
        assert np.flatnonzero(s.final.alive()).tolist() == expected  # p = threshold is not above it
    assert kept("mlx", 0.15, xtc_spared_ids=[0]) == [0, 1, 2, 3, 4] and kept("mlx", 0.05) == [3, 4]
    assert kept("mlx", 0.05, xtc_spared_ids=[1, 4]) == [1, 3, 4]


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("hf", "frequency_penalty", 0.1), ("hf", "xtc_probability", 0.1), ("hf", "top_k_ties", False),
        ("vllm", "typical_p", 0.9), ("vllm", "repetition_scope", "output"), ("sglang", "allowed_ids", [1]),
        ("llama.cpp", "top_h", 0.5), ("mlx", "typical_p", 0.9), ("mlx", "dynatemp_range", 0.1),
        ("llama.cpp", "xtc_spared_ids", [1]), ("mlx", "xtc_strict", False), ("tgi", "min_p", 0.1),
        ("tgi", "presence_penalty", 0.1), ("glassbox", "top_a", 0.1), ("vllm", "order", ("typical",)),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_have_is_refused_by_name(name: str, parameter: str, value: object) -> None:
    with pytest.raises(ParameterError) as caught:
        Policy.preset(name, **{parameter: value})
    assert caught.value.param == parameter and name in str(caught.value)


def test_unknown_presets_and_bad_values() -> None:
    with pytest.raises(Unsupported, match=r"preset 'ollama' is not supported \(known: glassbox, hf, vllm"):
        Policy.preset("ollama")
    with pytest.raises(ParameterError, match="temperature is -1"):
        Policy.preset("vllm", temperature=-1)
    assert Policy.preset("llama.cpp", order=("top_k", "temperature")).to_dict()["order"] == ["top_k", "temperature"]


def test_presets_name_only_what_there_is() -> None:
    for preset in PRESETS.values():
        assert set(preset.order) <= set(STEPS)
        assert {*preset.defaults, *preset.fixed, *preset.parameters} <= set(Policy().to_dict())
        assert not set(preset.defaults) - set(preset.parameters)


def test_the_document_shows_the_tables_of_the_code() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "docs.py", "--check", "policy.md"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (ROOT / "docs" / "policy.md").read_text()
    assert "run: python tools/policy_table.py" in text and all(f"\n{name}  (" in text for name in PRESETS)
