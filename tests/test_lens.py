"""The lens is the end of the model: its last layer's logits are the model's own, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_weights

import glassbox
from glassbox.model.model import TransformerModel, forward
from glassbox.model.peek import rows_of, vector_at
from glassbox.weights.quant import decode

CASES, _ = tiny_weights.load()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_last_layer_gives_the_logits_of_every_architecture(case: str, threads: int) -> None:
    model = TransformerModel(tiny_weights.checkpoint(case, CASES), threads=threads)
    ids, last = tiny_weights.ids_of(case, model.vocab_size), f"resid_post.{model.layers - 1}"
    logits, seen = forward(model, ids, model.new_cache(), ["embed", last], rows="all")
    assert model.lens(seen[last]).tobytes() == logits.tobytes()
    assert model.lens(seen[last][7:8]).tobytes() == logits[7:8].tobytes()
    both = model.lens(np.concatenate([seen["embed"], seen[last]] * 2))  # more than one pass takes
    assert both[40:80].tobytes() == both[120:].tobytes() == logits.tobytes()
    assert not np.array_equal(both[:40], logits)
    assert model.lens(seen[last][:0]).shape == (0, model.vocab_size)


def test_rows_and_vectors_are_those_of_the_file() -> None:
    file = tiny_weights.checkpoint("gpt2-a", CASES)
    model = TransformerModel(file, threads=1)
    table = file.arrays["transformer.wte.weight"]
    assert np.array_equal(rows_of(model.team, model.weights.head, [3, 127, 0]), table[[3, 127, 0]])
    norm = model.weights.final_norm
    assert np.array_equal(vector_at(norm.weight, 64), file.arrays["transformer.ln_f.weight"])
    assert np.array_equal(vector_at(norm.bias, 64), file.arrays["transformer.ln_f.bias"])
    assert not vector_at(0, 5).any()


def test_rows_of_codes_are_what_the_codes_say(smollm2: glassbox.Model) -> None:
    from glassbox.weights.gguf import read_gguf

    file = read_gguf(smollm2.path)
    t = file.tensors["token_embd.weight"]
    right = decode(t.format, file.raw(t.name), t.shape)[[0, 49151, 260]]
    assert np.array_equal(rows_of(smollm2.model.team, smollm2.model.weights.head, [0, 49151, 260]), right)


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_last_layer_gives_the_logits_of_real_models(name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    ids, last = model.encode("The capital of France is").ids, f"resid_post.{model.model.layers - 1}"
    seen = model.observe(ids, [last, "logits"])
    assert model.model.lens(seen[last]).tobytes() == seen["logits"].tobytes()


def test_rows_of_any_number_and_of_any_layer() -> None:
    model = TransformerModel(tiny_weights.checkpoint("gemma2-b", CASES), threads=1)
    many = np.random.default_rng(1).standard_normal((300, model.spec.width)).astype(np.float32)
    whole = model.lens(many)
    assert whole.shape == (300, model.vocab_size) and model.lens(many[:0]).shape == (0, model.vocab_size)
    assert np.array_equal(whole[140:150], model.lens(many[140:150]))
