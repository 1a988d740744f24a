"""The logit lens: the end of the forward pass by itself, on any residual vectors."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_weights

from glassbox.model.model import TransformerModel, forward

CASES, LOGITS = tiny_weights.load()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", sorted(CASES))
def test_of_the_last_layer_it_gives_the_models_own_logits(case: str, threads: int) -> None:
    model = TransformerModel(tiny_weights.checkpoint(case, CASES), threads=threads)
    last = f"resid_post.{model.layers - 1}"
    ids = tiny_weights.ids_of(case, model.vocab_size)
    logits, points = forward(model, ids, model.new_cache(), [last], rows="all")
    assert np.array_equal(model.lens(points[last]), logits)
    assert np.array_equal(model.lens(points[last][7:8]), logits[7:8])  # whoever else is looked at


def test_rows_of_any_number_and_of_any_layer() -> None:
    model = TransformerModel(tiny_weights.checkpoint("gemma2-b", CASES), threads=1)
    many = np.random.default_rng(1).standard_normal((300, model.spec.width)).astype(np.float32)
    whole = model.lens(many)
    assert whole.shape == (300, model.vocab_size) and model.lens(many[:0]).shape == (0, model.vocab_size)
    assert np.array_equal(whole[140:150], model.lens(many[140:150]))
