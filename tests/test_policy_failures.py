"""A step that cannot be made: the error says why and since where, and the trace keeps what the policy did till then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_weights
from safetensors.numpy import save_file

import glassbox
from glassbox.cli.app import invoke
from glassbox.errors import EmptySupport, NonFiniteLogits
from glassbox.model.finite import bad_tensor, first_point
from glassbox.model.model import TransformerModel
from glassbox.policy.policy import RAW, Policy

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "tiny.json").read_text())


def test_each_mask_of_an_empty_step_is_in_the_error() -> None:  # C04-03
    policy = Policy(allowed_ids=[1, 2], banned_sequences=[[2]], min_tokens=3, eos_ids=[1])
    with pytest.raises(EmptySupport) as caught:
        policy.shape(np.log([0.1, 0.2, 0.3, 0.4]), [0])
    e = caught.value
    assert str(e) == "no token allowed at step 0: constraints allowed_ids, banned_sequences and min_tokens"
    assert [(r.name, r.alive_after, r.removed_ids) for r in e.ledger] == [
        (RAW, 4, ()), ("allowed_ids", 2, (3, 0)), ("banned_sequences", 1, (2,)), ("min_tokens", 0, (1,)),
    ]  # fmt: skip
    assert e.ledger[-1].mass_removed == 1.0 and e.ledger[-1].entropy == 0.0


@pytest.mark.parametrize("level", ["look", "ids"])
def test_a_trace_shows_each_mask_of_the_step_that_failed(
    level: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, at = glassbox.load("bigram"), str(tmp_path / "runs.db")
    ids = list(range(model.model.vocab_size))
    policy = Policy(temperature=0, allowed_ids=[1, 2], banned_sequences=[[1, 1], [2, 1], [1, 2], [2, 2]])
    with glassbox.open_store(at) as store:
        with pytest.raises(EmptySupport, match="no token allowed at step 1: constraints allowed_ids and banned_seq"):
            model.generate(ids=[ids[0]], policy=policy, seed=1, store=store, level=level)
        run = store.load("last")
        assert store.verify() is None
    assert run.status == "error" and [s.id in (1, 2) for s in run.steps] == [True]  # never an id that is not allowed
    if level == "ids":
        assert run.failed == ()
        return
    assert [(r.name, r.alive_after) for r in run.failed] == [(RAW, 4), ("allowed_ids", 2), ("banned_sequences", 0)]
    assert run.failed[-1].removed_count == 2 and sorted(run.failed[-1].removed_ids) == [1, 2]
    with pytest.raises(EmptySupport) as caught:
        policy.shape(model.logits([ids[0], *run.ids])[-1], [ids[0]], run.ids)
    assert run.failed == caught.value.ledger
    assert invoke(["show", run.run_id, "--json", "--store", at]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in shown["failed_ledger"]] == [RAW, "allowed_ids", "banned_sequences"]
    assert invoke(["show", run.run_id, "--store", at]) == 0
    text = capsys.readouterr().out
    assert "step 1: the policy came so far" in text and "banned_sequences" in text and "2 → 0" in text


NAN = {  # a tensor with one NaN -> (the first point that shows it)
    "llama-a:model.layers.1.mlp.down_proj.weight": "mlp_out.1",
    "llama-a:model.layers.0.self_attn.q_proj.weight": "q.0",
    "llama-a:model.layers.1.post_attention_layernorm.weight": "mlp_norm.1",
    "gemma2-a:model.norm.weight": "final_norm",
}


@pytest.mark.parametrize("where", NAN)
def test_non_finite_logits_are_traced_to_a_point_and_a_tensor(where: str, tmp_path: Path) -> None:  # C04-04
    case, name = where.split(":")
    file = tiny_weights.checkpoint(case, CASES)
    arrays = {k: np.array(v) for k, v in file.arrays.items()}
    arrays[name].reshape(-1)[3] = np.nan
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(file.config))
    model = glassbox.load(tmp_path, threads=1)
    with glassbox.open_store(tmp_path / "runs.db") as store:
        with pytest.raises(NonFiniteLogits) as caught:
            model.generate(ids=[1, 2, 3], seed=1, max_tokens=3, store=store)
        run = store.load("last")
    e = caught.value
    assert (e.at, e.seen, e.tensor) == (0, NAN[where], name)
    assert str(e).startswith(f"non-finite logits at step 0 after the forward pass at id {e.position}, first seen at")
    assert str(e).endswith(f"the weights '{name}' are not finite")
    assert run.status == "error" and run.error == f"NonFiniteLogits: {e}" and not run.steps


def test_a_sound_layer_is_not_blamed() -> None:
    """Infinity that arises on the way: no tensor is at fault, the point is named all the same."""
    file = tiny_weights.checkpoint("llama-a", CASES)
    arrays = {**file.arrays, "model.layers.1.mlp.down_proj.weight": np.full_like(
        file.arrays["model.layers.1.mlp.down_proj.weight"], 3e38)}  # fmt: skip
    memory = tiny_weights.Memory(file.config, arrays)
    model = TransformerModel(memory, threads=1)
    assert first_point(model, [1, 2, 3]) == "mlp_out.1" and bad_tensor(memory, "mlp_out.1") is None
