"""Interventions: zero, scale or replace an inner value; against a forward pass in numpy that does the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_forward as reference

import glassbox
from glassbox import Intervention
from glassbox.cli.app import invoke
from glassbox.errors import GlassboxError, ParameterError, UnknownPoint
from glassbox.generation import logits_hash
from glassbox.model.model import forward
from glassbox.policy.policy import Policy
from glassbox.types import F32
from glassbox.weights.gguf import Gguf

PROMPT = "The capital of France is"
POLICY = Policy(temperature=0.9, top_p=0.95)


def values(model: glassbox.Model, ids: list[int], done: list[Intervention], points: tuple[str, ...] = ()) -> Any:
    cache = model.model.new_cache()
    try:
        return forward(model.model, ids, cache, points, rows="all", interventions=tuple(done))
    finally:
        cache.release()


def zero_head(file: Gguf, monkeypatch: pytest.MonkeyPatch, layer: int, head: int, first: int = 0) -> None:
    """The output projection of one layer sees nothing of one head, at positions from `first` on."""
    mixed: list[np.ndarray] = []
    einsum = np.einsum

    def watched(what: str, *arrays: np.ndarray) -> np.ndarray:
        out = einsum(what, *arrays)
        if what == "ths,shw->thw":
            if len(mixed) == layer:
                out[first:, head] = 0
            mixed.append(out)
        return out

    monkeypatch.setattr(np, "einsum", watched)


@pytest.mark.parametrize(("layer", "head", "first"), [(5, 3, 0), (0, 8, 0), (20, 0, 4)])
@pytest.mark.slow
def test_a_head_set_to_zero_is_numpys_forward_without_it(
    smollm2: glassbox.Model, smollm2_gguf: Gguf, monkeypatch: pytest.MonkeyPatch, layer: int, head: int, first: int
) -> None:
    ids = list(smollm2.encode(PROMPT + " Paris.").ids)
    done = [Intervention(f"attn_out.{layer}.head{head}", "zero", positions=(first, None))]
    found, _ = values(smollm2, ids, done)
    plain, _ = values(smollm2, ids, [])
    zero_head(smollm2_gguf, monkeypatch, layer, head, first)
    monkeypatch.setattr(reference, "F", np.float64)  # in float32 what numpy sums depends on the machine's BLAS
    expected = reference.forward(smollm2_gguf, ids)["logits"]
    assert np.abs(found - expected).max() <= 1e-4
    assert np.abs(found - plain).max() > 1e-2  # it makes a difference
    assert np.array_equal(found[:first], plain[:first])


@pytest.mark.slow
def test_a_head_of_a_model_with_norms_behind_attention(
    gemma3: glassbox.Model, gemma3_gguf: Gguf, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = list(gemma3.encode(PROMPT).ids)
    found, _ = values(gemma3, ids, [Intervention("attn_out.2", "zero", head=1)])
    zero_head(gemma3_gguf, monkeypatch, 2, 1)
    monkeypatch.setattr(reference, "F", np.float64)
    expected = reference.forward(gemma3_gguf, ids)["logits"]
    assert np.abs(found - expected).max() <= 1e-3  # logits reach 30 here
    assert (found.argmax(-1) == expected.argmax(-1)).all()


@pytest.mark.parametrize(
    "point", ["attn_out.4", "attn_out.4.head2", "mlp_out.7", "resid_pre.3", "resid_mid.3", "q.1.head0"]
)
def test_scaled_by_one_is_not_changed_in_any_bit(smollm2: glassbox.Model, point: str) -> None:
    ids = list(smollm2.encode(PROMPT).ids)
    plain, _ = values(smollm2, ids, [])
    assert np.array_equal(values(smollm2, ids, [Intervention(point, "scale", 1.0)])[0], plain)
    assert not np.array_equal(values(smollm2, ids, [Intervention(point, "scale", 0.5)])[0], plain)


@pytest.mark.parametrize(
    "point", ["attn_out.4", "mlp_out.7", "resid_pre.3", "resid_mid.9", "resid_post.12", "mlp_act.2"]
)
def test_what_is_put_there_is_what_stands_there(smollm2: glassbox.Model, point: str) -> None:
    ids = list(smollm2.encode(PROMPT).ids)
    plain = values(smollm2, ids, [], (point,))[1][point]
    other: F32 = np.random.default_rng(7).normal(0, 1, plain.shape[1:]).astype(np.float32)
    rows = np.stack([other, 2 * other])
    for done, expected in (
        (Intervention(point, "zero", positions=(1, 3)), np.zeros_like(rows)),
        (Intervention(point, "scale", -2.5, positions=(1, 3)), plain[1:3] * np.float32(-2.5)),
        (Intervention(point, "replace", other, positions=(1, 3)), np.stack([other, other])),
        (Intervention(point, "replace", rows, positions=(1, 3)), rows),
    ):
        seen = values(smollm2, ids, [done], (point,))[1][point]
        assert np.array_equal(seen[1:3], expected)
        assert np.array_equal(seen[0], plain[0])  # earlier positions do not see later ones


def test_a_value_put_back_gives_the_same_logits(smollm2: glassbox.Model) -> None:
    """Replacing a residual with what it is anyway, from the run itself: activation patching's first check."""
    ids = list(smollm2.encode(PROMPT).ids)
    logits, points = values(smollm2, ids, [], ("resid_post.10",))
    own = Intervention("resid_post.10", "replace", points["resid_post.10"], positions=(0, len(ids)))
    assert np.array_equal(values(smollm2, ids, [own])[0], logits)


def test_others_in_the_engine_are_not_touched_and_no_page_is_shared(smollm2: glassbox.Model) -> None:
    prompt = "The capital of France is Paris, and the capital of Germany is Berlin. " * 4
    asked: dict[str, Any] = {"policy": POLICY, "seed": 3, "max_tokens": 8}
    done = [Intervention("attn_out.5.head3", "zero"), Intervention("mlp_out.2", "scale", 0.5)]
    alone, changed = smollm2.generate(prompt, **asked), smollm2.generate(prompt, **asked, interventions=done)
    assert [s.logits_hash for s in changed.steps] != [s.logits_hash for s in alone.steps]
    assert changed.usage.cached_tokens == 0 < smollm2.generate(prompt, **asked, interventions=done).usage.cached_tokens
    streams = [smollm2.stream(prompt, **asked), smollm2.stream(prompt, **asked, interventions=done)]
    for pair in zip(*streams, strict=True):
        assert len(pair) == 2
    assert [s.logits_hash for s in streams[0].run.steps] == [s.logits_hash for s in alone.steps]
    assert [s.logits_hash for s in streams[1].run.steps] == [s.logits_hash for s in changed.steps]


def test_a_recorded_intervention_is_done_again(smollm2: glassbox.Model, tmp_path: Path) -> None:
    row = np.linspace(-1, 1, 576).astype(np.float32)
    done = [Intervention("attn_out.5.head3", "zero"), Intervention("resid_mid.2", "replace", row, positions=(2, 4))]
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = smollm2.generate(PROMPT, policy=POLICY, seed=3, max_tokens=6, interventions=done, store=store)
        found = store.load(run.run_id)
        assert found == run and list(found.request.interventions) == done
        assert store.verify(run.run_id) is None
    with found.again(smollm2) as again:
        assert [logits_hash(r) for r in again.rows()] == [s.logits_hash for s in run.steps]
    assert found.branch(3, opened=smollm2).ids == run.ids


def test_a_branch_changes_nothing_of_what_it_inherits(smollm2: glassbox.Model) -> None:
    run = smollm2.generate(PROMPT, policy=POLICY, seed=3, max_tokens=8)
    made = run.branch(4, interventions=[Intervention("mlp_out.3", "zero")])
    begin = len(run.prompt_ids) + 3
    assert made.request.interventions[0].positions == (begin, None)
    with made.again() as again:
        assert [logits_hash(r) for r in again.rows()] == [s.logits_hash for s in made.steps]
    assert made.steps[4].logits_hash != run.steps[4].logits_hash
    with pytest.raises(ParameterError, match="positions"):
        run.branch(4, interventions=[Intervention("mlp_out.3", "zero", positions=(begin - 1, None))])


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"point": "attn_out.5.head9", "op": "zero"}, ParameterError),
        ({"point": "mlp_out.5.head1", "op": "zero"}, ParameterError),
        ({"point": "mlp_out.30", "op": "zero"}, UnknownPoint),
        ({"point": "attn_probs.3", "op": "zero"}, UnknownPoint),
        ({"point": "logits", "op": "zero"}, UnknownPoint),
        ({"point": "mlp_out.3", "op": "add"}, ParameterError),
        ({"point": "mlp_out.3", "op": "zero", "value": 1}, ParameterError),
        ({"point": "mlp_out.3", "op": "scale"}, ParameterError),
        ({"point": "mlp_out.3", "op": "scale", "value": float("nan")}, ParameterError),
        ({"point": "mlp_out.3", "op": "replace", "value": [1.0, 2.0]}, ParameterError),
        ({"point": "mlp_out.3", "op": "replace", "value": "x"}, ParameterError),
        ({"point": "mlp_out.3", "op": "zero", "positions": (3, 3)}, ParameterError),
        ({"point": "mlp_out.3", "op": "zero", "positions": 4}, ParameterError),
        ({"point": 3, "op": "zero"}, ParameterError),
        ({"point": "attn_out.5.head" + "9" * 5000, "op": "zero"}, UnknownPoint),
        ({"point": "attn_out.5", "op": "zero", "head": True}, ParameterError),
        ({"point": "attn_out.5", "op": "zero", "head": "1"}, ParameterError),
        ({"point": "mlp_out.3", "op": "scale", "value": 10**400}, ParameterError),
    ],
)
def test_bad_input_is_refused(smollm2: glassbox.Model, asked: dict[str, Any], kind: type[GlassboxError]) -> None:
    with pytest.raises(kind):
        smollm2.generate(PROMPT, interventions=[Intervention(**asked)], max_tokens=1)


@pytest.mark.parametrize("given", [None, 3, Intervention("mlp_out.3", "zero")])
def test_what_is_no_list_is_refused(smollm2: glassbox.Model, given: Any) -> None:
    with pytest.raises(ParameterError, match="a list of"):
        smollm2.generate(PROMPT, interventions=given, max_tokens=1)


def test_equal_ones_are_the_same_in_every_bit() -> None:
    """What is equal shares a pass, and a forward pass that was made for it: 0.0 and -0.0 must not."""
    scaled = Intervention("mlp_out.3", "scale", -0.0)
    assert str(scaled.value) == "0.0" and scaled == Intervention("mlp_out.3", "scale", 0.0)
    head = Intervention("attn_out.3", "zero", head=np.int64(2))  # type: ignore[arg-type]
    assert json.dumps(head.to_dict()["head"]) == "2"


def test_the_lab_has_no_inner_values() -> None:
    with pytest.raises(UnknownPoint):
        glassbox.load("bigram").generate("ab", interventions=[Intervention("mlp_out.0", "zero")], max_tokens=1)


@pytest.mark.model
def test_the_command(commands: glassbox.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "runs.db")
    np.save(tmp_path / "row.npy", np.ones(576, np.float32))
    trace = ["trace", PROMPT, "--raw", "--temperature", "0", "--max-tokens", "2", "--store", path]
    flags = ["--ablate", "attn_out.5.head3", "--scale", "mlp_out.2=0.5", "--replace", f"resid_mid.1={tmp_path}/row.npy"]
    assert invoke([*trace, *flags, "--positions", "1:3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(i["point"], i["head"], i["op"], i["positions"]) for i in told["interventions"]] == [
        ("attn_out.5", 3, "zero", [1, 3]),
        ("mlp_out.2", None, "scale", [1, 3]),
        ("resid_mid.1", None, "replace", [1, 3]),
    ]
    assert invoke(["show", "last", "--store", path]) == 0
    assert "zero attn_out.5.head3 at positions 1:3" in capsys.readouterr().out
    assert invoke(["branch", "last", "--at", "1", "--ablate", "mlp_out.3", "--store", path]) == 0
    assert "zero mlp_out.3 at positions 5:" in capsys.readouterr().out
    for wrong in (
        ["--ablate", "x.1"],
        ["--scale", "mlp_out.2"],
        ["--replace", "mlp_out.2=/nosuch.npy"],
        ["--positions", "1:2"],
    ):
        assert invoke([*trace, *wrong]) == 2
