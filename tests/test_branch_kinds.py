"""Branches, replays and interventions of runs whose policy looks back, needs more passes, or is one of several."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import random_gguf
from test_branch import check_same

import glassbox
from glassbox.api import Model
from glassbox.beam import Beam
from glassbox.errors import GrammarError, ParameterError, PromptError
from glassbox.generation import logits_hash
from glassbox.model.intervene import Intervention
from glassbox.policy.grammar import Grammar
from glassbox.policy.policy import Policy
from glassbox.trace.branch import branch
from glassbox.trace.record import Run

T = gguf.GGMLQuantizationType
SAMPLED = Policy(temperature=0.9, top_p=0.95, repetition_penalty=1.1)
DONE = (Intervention("attn_out.0.head1", "zero"), Intervention("mlp_out.1", "scale", 0.5, positions=(4, None)))
KINDS: dict[str, dict[str, Any]] = {
    "a sample": dict(policy=SAMPLED, sequence=2, group="g"),
    "a grammar": dict(policy=Policy(temperature=1.0, grammar=Grammar("regex", "[a-c ]*"))),
    "mirostat": dict(policy=Policy(mirostat_tau=3.0, mirostat_eta=0.3)),
    "guidance": dict(policy=Policy(temperature=0.9, guidance_scale=1.5, negative_ids=(5, 6, 7))),
    "layers": dict(policy=Policy(temperature=0.9, dola_layers=(0,))),
    "contrast": dict(policy=Policy(penalty_alpha=0.6, top_k=4)),
    "at least": dict(policy=Policy(min_tokens=6), stop=["a", "b", "c"], ignore_eos=False),
    "kept stops": dict(policy=SAMPLED, stop=["a", "c"], include_stop=True),
    "logprobs of the prompt": dict(policy=SAMPLED, prompt_logprobs=True),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    kinds = [T.Q8_0, T.Q4_1, T.F32]
    return glassbox.load(random_gguf.write(tmp_path_factory.mktemp("m") / "m.gguf", "llama", "llama", kinds), threads=2)


def ran(model: Model, **more: Any) -> Run:
    return model.generate(**(dict(prompt="abcabc", policy=SAMPLED, seed=7, max_tokens=12, ignore_eos=True) | more))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("done", [(), DONE], ids=["as it is", "changed"])
def test_the_token_that_was_chosen_gives_the_run_again(model: Model, kind: str, done: tuple[Intervention, ...]) -> None:
    run = ran(model, interventions=done, **KINDS[kind])
    assert len(run.ids) > 2
    for at in {0, 1, len(run.ids) // 2, len(run.ids) - 1}:
        made = run.branch(at, token_id=run.ids[at])
        check_same(made, run)
        assert [t.logprob for t in made.prompt] == [t.logprob for t in run.prompt]
        assert made.request.sequence == run.request.sequence and made.request.group is None


REPLAYED = [k for k in KINDS if k not in ("guidance", "layers", "contrast")]


@pytest.mark.parametrize("kind", REPLAYED)
@pytest.mark.parametrize("done", [(), DONE], ids=["as it is", "changed"])
def test_a_branch_comes_again(model: Model, tmp_path: Path, kind: str, done: tuple[Intervention, ...]) -> None:
    """Under another policy and seed from a step on, with a forced token, once more branched, and from the store."""
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = ran(model, interventions=done, store=store, **KINDS[kind])
        other = Policy(temperature=1.2, top_k=20, min_p=0.01)
        first = run.branch(2, policy=other, seed=11, max_tokens=14, store=store)
        forced = next(i for i in range(30, 60) if i != first.ids[3])
        again = first.branch(3, token_id=forced, policy=SAMPLED, store=store)
        last = again.branch(5, interventions=[Intervention("resid_mid.0", "scale", 0.9)], store=store)
        assert again.ids[:3] == first.ids[:3] and again.ids[3] == forced and first.ids[:2] == run.ids[:2]
        for made in (run, first, again, last):
            found = store.load(made.run_id).replay(model)
            assert found.equal and found.compared == len(made.steps), found.difference


def test_a_change_is_needed_for_the_replay(model: Model) -> None:
    """The same run, said to have been made without what was done, does not come again."""
    run = ran(model, interventions=DONE)
    plain = replace(run, request=replace(run.request, interventions=()))
    found = plain.replay(model)
    assert found.difference is not None and (found.difference.step, found.difference.field) == (0, "logits_hash")


def test_inner_values_of_a_changed_run(model: Model) -> None:
    run = ran(model, interventions=DONE)
    heads = run.tensor(3, "z.0", model=model)
    assert not heads[1].any() and heads[0].any()  # the head that was put to zero, in the pass that has the hash
    whole = run.tensors(3, ["z.0"], all_positions=True, model=model)["z.0"]
    assert not whole[:, 1].any() and whole[-1].tobytes() == heads.tobytes()
    plain = ran(model)
    assert plain.tensor(3, "z.0", model=model)[1].any()  # pages kept of one are not those of the other
    told = run.explain(3, model)
    assert told.proven and any("inner values were changed" in note for note in told.notes)


def test_diff_names_what_was_changed(model: Model) -> None:
    run, changed = ran(model), ran(model, interventions=DONE[:1])
    found = glassbox.diff(run, changed)
    said = found.stages
    assert not said["layers"].same and "nothing against zero attn_out.0.head1" in said["layers"].says
    other = run.branch(4, policy=Policy(temperature=1.3))
    found = glassbox.diff(run, other)
    said = found.stages
    assert not said["policy"].same and "temperature 0.9 against 1.3" in said["policy"].says


def test_beams_are_searched_in_a_changed_model(model: Model) -> None:
    """Interventions hold for every beam: the best hypothesis has the logprobs of a pass with them."""
    asked: dict[str, Any] = dict(policy=Policy(), beam=Beam(3), max_tokens=6)
    plain, changed = ran(model, **asked), ran(model, interventions=DONE, **asked)
    assert plain.steps[0].logits_hash != changed.steps[0].logits_hash
    with changed.again(model) as again:
        assert [logits_hash(row) for row in again.logits()] == [s.logits_hash for s in changed.steps]


def test_a_beam_search_has_no_steps_to_branch_from(model: Model) -> None:
    run = ran(model, policy=Policy(), beam=Beam(2), max_tokens=6)
    with pytest.raises(PromptError, match="is a beam search"):
        branch(run, model, 2)
    with pytest.raises(PromptError, match="is a beam search"):
        run.what_if(SAMPLED)
    edited = run.branch(text="abcabd")
    assert edited.request.beam == Beam(2) and edited.beams is not None
    assert edited.ids == ran(model, prompt="abcabd", policy=Policy(), beam=Beam(2), max_tokens=6).ids


def test_an_id_that_the_grammar_has_no_place_for_is_refused(model: Model) -> None:
    run = ran(model, **KINDS["a grammar"])
    outside = next(i for i in range(model.model.vocab_size) if model.tokenizer.vocab.bytes_of(i) == b"z")
    with pytest.raises(GrammarError):
        run.branch(2, token_id=outside)
    with pytest.raises((GrammarError, ParameterError)):  # what was made before does not follow this one
        ran(model, prompt="zz").branch(3, policy=Policy(grammar=Grammar("regex", "[0-9]+")))


def test_mirostat_goes_on_behind_an_id_that_nothing_gave_a_chance(model: Model, tmp_path: Path) -> None:
    """Its surprise is infinite, so from there on the best token stands alone."""
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = ran(model, policy=Policy(mirostat_tau=3.0, mirostat_eta=0.3, banned_ids=(50,)), store=store)
        made = run.branch(3, token_id=50, store=store)
        assert all(step.choice.id == step.candidates[0].id for step in made.steps[4:])
        assert store.load(made.run_id).replay(model).equal
        json.dumps(store.load(made.run_id).to_dict(), allow_nan=False)


def test_the_speed_of_a_branch_is_of_its_own_tokens(model: Model) -> None:
    made = ran(model).branch(8)
    assert made.speed is not None and made.timings is not None and made.speed.gap_s is not None
    own = (made.timings.last_token_ns or 0) - (made.timings.first_token_ns or 0)
    assert made.speed.gap_s == pytest.approx(own / 3 / 1e9)
