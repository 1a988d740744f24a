"""What a trace holds of the model's insides is the model's own, of the ids it names: against a forward pass in plain
numpy, and against transformers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf
import reference_forward as reference
import tiny_weights

import glassbox
from glassbox.model.model import TransformerModel
from glassbox.model.points import all_points
from glassbox.policy.policy import Policy
from glassbox.text.absent import NoTokenizer
from glassbox.weights.gguf import Gguf, read_gguf

SEED = 20261130
F32 = gguf.GGMLQuantizationType.F32
CASES, LOGITS = tiny_weights.load()
CLOSE = 1e-3  # |d| that case C15-07 allows


@pytest.fixture(params=["llama", "gemma3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[glassbox.Model, Gguf]:
    """The second with windows, norms behind its branches, and an embedding that is scaled."""
    path = random_gguf.write(tmp_path / "m.gguf", request.param, request.param, [F32], window=8)
    return glassbox.load(path, threads=2), read_gguf(path)


def near(got: np.ndarray, right: np.ndarray) -> None:
    """The same shape, and values but for the order of sums."""
    assert got.shape == right.shape
    assert np.abs(got - right).max() <= 2e-4 * max(1.0, float(np.abs(right).max()))


def test_every_row_is_of_its_id_cached_or_not(opened: tuple[glassbox.Model, Gguf], tmp_path: Path) -> None:  # C15-05
    model, file = opened
    prompt = [int(i) for i in np.random.default_rng(SEED).integers(0, 90, 40)]
    asked: dict[str, Any] = dict(ids=prompt, policy=Policy(temperature=0), max_tokens=4, ignore_eos=True)
    with glassbox.open_store(tmp_path / "runs.db") as store:
        cold, warm = (store.load(model.generate(**asked, store=store).run_id) for _ in range(2))
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 39)
    right = reference.forward(file, [*prompt, *warm.ids])
    layers = model.model.layers
    points = [p for p in all_points(layers) if p.split(".")[0] in ("embed", "resid_pre", "resid_post", "final_norm")]
    points += [f"resid_mid.{i}" for i in range(layers)] + ["logits"]
    for run in (cold, warm):
        assert run.prompt_ids == tuple(prompt) and [p.id for p in run.prompt] == prompt
        seen = model.observe(run.prompt_ids, points)
        for step in (0, 3):
            found = run.tensors(step, points, all_positions=True, model=model)
            for name in points:
                assert len(found[name]) == len(prompt) + step and len(seen[name]) == len(prompt), name
                near(found[name], right[name][: len(prompt) + step])
                near(seen[name], right[name][: len(prompt)])
    assert [p.kv for p in warm.prompt] == ["reused"] * 39 + ["computed"]


def test_names_of_layers_say_which(opened: tuple[glassbox.Model, Gguf]) -> None:  # C15-05
    """Layer 0 begins with the embedding, the last one ends before the final norm, and none is called by its neighbour's
    name."""
    model, file = opened
    ids = [int(i) for i in np.random.default_rng(SEED).integers(0, 90, 30)]
    assert isinstance(model.model, TransformerModel)
    spec, last = model.model.spec, model.model.layers - 1
    streams = [*(f"resid_pre.{i}" for i in range(last + 1)), f"resid_post.{last}"]
    seen = model.observe(ids, ["embed", "final_norm", *streams, *(f"resid_post.{i}" for i in range(last))])
    table = reference.tensor(file, "token_embd")
    near(seen["embed"], table[ids] * np.float32(spec.embed_scale))
    assert seen["resid_pre.0"].tobytes() == seen["embed"].tobytes()
    for i in range(last):
        assert seen[f"resid_pre.{i + 1}"].tobytes() == seen[f"resid_post.{i}"].tobytes()
    normed = reference.rms_norm(seen[f"resid_post.{last}"], reference.tensor(file, "output_norm"), spec.norm_eps)
    near(seen["final_norm"], normed)
    assert np.abs(seen["final_norm"] - seen[f"resid_post.{last}"]).max() > 0.1
    for a, b in pairwise(streams):
        assert np.abs(seen[a] - seen[b]).max() > 0.01, (a, b)


def own(got: np.ndarray, right: np.ndarray) -> None:
    """Logits [..., V] within the case's bound, and shifted by no constant: the mean of a row's differences is far below
    what one of them may be."""
    assert got.shape == right.shape
    d = got.astype(np.float64) - right
    assert np.abs(d).max() <= CLOSE
    assert np.abs(d.mean(-1)).max() <= CLOSE / 4


def test_logits_in_a_trace_are_the_models_own(opened: tuple[glassbox.Model, Gguf]) -> None:  # C15-07
    model, file = opened
    ids = [int(i) for i in np.random.default_rng(SEED + 1).integers(0, 90, 30)]
    policy = Policy(temperature=0.7, top_k=5, repetition_penalty=1.3)  # what it does is not in the logits
    run = model.generate(ids=ids, policy=policy, seed=3, max_tokens=12, ignore_eos=True)
    assert run.prompt_ids == tuple(ids) and run.steps[0].position == len(ids)
    right = reference.forward(file, [*ids, *run.ids])["logits"]
    own(model.observe(ids, "logits")["logits"], right[: len(ids)])
    own(model.logits(ids), right[: len(ids)])
    for step in run.steps:
        row = right[step.position - 1]
        own(run.tensor(step.step, "logits"), row)
        for c in step.candidates:
            assert abs(c.logit - row[c.id]) <= CLOSE


@pytest.mark.parametrize("case", sorted(CASES))
def test_logits_of_every_architecture_are_its_own(case: str) -> None:  # C15-07
    """With biases, tied heads, soft caps, experts: against transformers."""
    memory = tiny_weights.checkpoint(case, CASES)
    model = glassbox.Model(case, TransformerModel(memory, threads=1), NoTokenizer(()), {}, case)
    ids = tiny_weights.ids_of(case, model.model.vocab_size)
    run = model.generate(ids=ids, policy=Policy(temperature=0), max_tokens=1)
    assert run.prompt_ids == tuple(ids)
    own(run.tensor(0, "logits", all_positions=True), LOGITS[case])
    assert all(abs(c.logit - LOGITS[case][-1][c.id]) <= CLOSE for c in run.steps[0].candidates)


@pytest.mark.model
def test_logits_of_a_real_model_are_its_own(smollm2: glassbox.Model, golden: dict[str, Any]) -> None:  # C15-07
    for p in golden["smollm2"]["prompts"]:
        run = smollm2.generate(ids=p["ids"], policy=Policy(temperature=0), max_tokens=1, ignore_eos=True)
        assert list(run.prompt_ids) == p["ids"]  # a BOS is nobody's but the text's
        own(run.tensor(0, "logits")[p["logit_ids"]], p["logits"])
        right = dict(zip(map(int, p["logit_ids"]), p["logits"], strict=True))
        listed = [c for c in run.steps[0].candidates if c.id in right]
        assert len(listed) == len(run.steps[0].candidates)
        assert all(abs(c.logit - right[c.id]) <= CLOSE for c in listed)
