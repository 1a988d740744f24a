"""The parts of a logit sum to it, for every architecture; and are what a calculation in float64 gives."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_weights

from glassbox.model.model import TransformerModel, forward
from glassbox.trace.attribution import attribute, points

CASES, LOGITS = tiny_weights.load()
CLOSE = 1e-4


def seen_of(model: TransformerModel, ids: list[int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits [V] and inner values, each [1, …], at the last id."""
    cache = model.new_cache()
    forward(model, ids[:-1], cache)
    wanted = [*points(model.layers), f"resid_post.{model.layers - 1}"]
    logits, seen = forward(model, ids[-1:], cache, wanted)
    cache.release()
    return logits[0], seen


@pytest.mark.parametrize("case", sorted(CASES))
def test_parts_sum_to_the_logits(case: str) -> None:
    model = TransformerModel(tiny_weights.checkpoint(case, CASES), threads=1)
    logits, seen = seen_of(model, tiny_weights.ids_of(case, model.vocab_size))
    best, second = np.argsort(-logits)[:2].tolist()
    for ids in ((best, second), (7, 90)):
        a = attribute(model, seen, logits, ids)
        expected = 2 * model.layers + 1 + model.spec.norm_bias
        assert len(a.parts) == expected and abs(a.residue) <= CLOSE
        sums = np.array([sum(p.chosen for p in a.parts), sum(p.rival for p in a.parts)])
        cap = model.spec.logit_cap
        whole = cap * np.tanh(sums / cap) if cap else sums
        assert np.abs(whole - logits[list(ids)]).max() <= CLOSE  # the model's own kernels, the cap after the sum
        assert np.abs(whole - LOGITS[case][-1, list(ids)]).max() <= 2 * CLOSE  # transformers
        attention = next(p for p in a.parts if p.name == f"attn_out.{a.layer}")
        assert abs(sum(p.difference for p in a.heads) - attention.difference) <= CLOSE
        assert abs(attention.difference) == max(abs(p.difference) for p in a.parts if p.name.startswith("attn_out"))


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_parts_sum_to_the_logits_of_real_models(name: str, request: pytest.FixtureRequest) -> None:
    opened = request.getfixturevalue(name)
    ids = opened.encode("The capital of France is").ids
    logits, seen = seen_of(opened.model, list(ids))
    two = np.argsort(-logits)[:2].tolist()
    a = attribute(opened.model, seen, logits, two)
    assert abs(a.residue) <= CLOSE
    assert abs(a.difference - (float(logits[two[0]]) - float(logits[two[1]]))) <= 1e-6
    attention = next(p for p in a.parts if p.name == f"attn_out.{a.layer}")
    assert abs(sum(p.difference for p in a.heads) - attention.difference) <= CLOSE


def test_parts_are_those_of_a_blackboard() -> None:
    """gpt2: a LayerNorm with bias. Each part by the definition, one after another, in float64."""
    file = tiny_weights.checkpoint("gpt2-a", CASES)
    model = TransformerModel(file, threads=1)
    logits, seen = seen_of(model, tiny_weights.ids_of("gpt2-a", model.vocab_size))
    t = {name.removeprefix("transformer."): a.astype(np.float64) for name, a in file.arrays.items()}
    x = seen["resid_post.1"][0].astype(np.float64)
    deviation = np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
    a = attribute(model, seen, logits, (5, 11))
    for part in a.parts[:-1]:
        y = seen[part.name][0].astype(np.float64)
        normed = (y - y.mean()) / deviation * t["ln_f.weight"]
        assert part.chosen == pytest.approx(normed @ t["wte.weight"][5], abs=1e-6)
        assert part.rival == pytest.approx(normed @ t["wte.weight"][11], abs=1e-6)
    assert a.parts[-1].name == "bias" and a.parts[-1].chosen == pytest.approx(t["ln_f.bias"] @ t["wte.weight"][5])
    z, w = seen[f"z.{a.layer}"][0].astype(np.float64), t[f"h.{a.layer}.attn.c_proj.weight"]  # [H·W, D]
    direction = t["wte.weight"][5] - t["wte.weight"][11]
    for h in range(4):
        y = z[h] @ w[16 * h : 16 * h + 16]
        right = (y - y.mean()) / deviation * t["ln_f.weight"] @ direction
        assert a.heads[h].difference == pytest.approx(right, abs=1e-6)
