"""Runs of every kind come again: grammars, mirostat, further passes, samples, beams, failures, judged prompts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf
from test_generation import broken

import glassbox
from glassbox import Beam, Model, Policy, Run
from glassbox.cli.app import invoke
from glassbox.errors import EmptySupport, GlassboxError, GrammarError, NonFiniteLogits, OutOfMemory
from glassbox.generation import logits_hash
from glassbox.trace.again import Again

T = gguf.GGMLQuantizationType
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}}, "required": ["a"]}
WARM = dict(temperature=6.0, top_p=0.97)  # the random model is very sure of itself


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows of 8 positions, so that the prompt's pages would be given back."""
    return random_gguf.write(tmp_path_factory.mktemp("m") / "m.gguf", "gemma3", "gemma3", [T.Q8_0, T.F32], tied=False)


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return glassbox.load(path, threads=2)


POLICIES: dict[str, Policy] = {
    "schema": Policy(**WARM, grammar={"json_schema": SCHEMA}),
    "regex": Policy(**WARM, grammar={"regex": "[a-f]{3,9}(,[0-9]+)*"}, min_tokens=2),
    "choice": Policy(grammar={"choice": ["abab", "abc", "xyz"]}),
    "mirostat": Policy(mirostat_tau=2.0, mirostat_eta=0.3),
    "guidance": Policy(**WARM, guidance_scale=1.7, negative_ids=(5, 9, 12, 5, 40, 41, 42, 43, 44)),
    "guidance, no prompt": Policy(guidance_scale=0.5),
    "dola": Policy(**WARM, dola_layers="high"),
    "dola, two layers": Policy(dola_layers=(0, 3), repetition_penalty=1.2),
    "contrastive": Policy(penalty_alpha=0.6, top_k=5),
    "all passes": Policy(1.1, 6, guidance_scale=1.5, dola_layers="low", penalty_alpha=0.4, mirostat_tau=3.0),
    "texts": Policy(banned_texts=("ab", "!"), logit_bias={"x": 2.5, "yz": -3.0}),
    "min tokens": Policy(logit_bias={95: 12.0}, min_tokens=7),
}
PROMPT = [int(i) for i in np.random.default_rng(3).integers(0, 90, 45)]  # more than a page, more than the windows


def asked(policy: Policy, **more: Any) -> dict[str, Any]:
    return dict(ids=PROMPT, policy=policy, seed=11, max_tokens=14) | more


@pytest.mark.parametrize("name", POLICIES)
def test_any_policy_comes_again(model: Model, tmp_path: Path, name: str) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = model.generate(**asked(POLICIES[name], store=store))
        held = model.model.new_cache().pool.used
        found = store.load(run.run_id)
        replayed = found.replay(model)
        assert replayed.equal, str(replayed.difference)
        assert replayed.compared == len(run.steps) > 1 and model.model.new_cache().pool.used == held
        tampered = replace(found, request=replace(found.request, seed=12))
        assert not tampered.replay(model).equal or name in ("contrastive", "all passes", "choice")


def values(shaped: Any) -> Any:
    return shaped.ledger, shaped.final.dense().tobytes()


@pytest.mark.parametrize("name", POLICIES)
def test_again_shapes_as_the_run_did_in_any_order(model: Model, name: str) -> None:
    """Forwards, backwards, the same step twice; and between them another policy, whose passes are its own."""
    run = model.generate(**asked(POLICIES[name]))
    last = len(run.steps) - 1
    other = Policy(guidance_scale=2.0, dola_layers=(1,))
    with run.again() as again:
        rows = again.logits()
        for step in (0, 1, 2 % (last + 1), last, last, 0, 1):
            shaped = again.shaped(step, rows[step])
            assert shaped.ledger == run.steps[step].ledger
            assert shaped.candidates(8, include=(run.ids[step],)) == run.steps[step].candidates
            assert shaped.final_logprob(run.ids[step]) == run.steps[step].choice.logprob_final
            with Again(run, model) as fresh:
                one, two = again.shaped(step, rows[step], other), fresh.shaped(step, rows[step], other)
            assert values(one) == values(two)
        assert [logits_hash(row) for row in again.logits()] == [s.logits_hash for s in run.steps]
    assert model.engine.prefixes is not None
    model.engine.prefixes.clear()
    assert model.model.new_cache().pool.used == 0


def test_another_grammar_than_the_output_follows_is_refused(model: Model) -> None:
    run = model.generate(**asked(POLICIES["choice"]))
    with run.again() as again:
        row = again.logits(1, 1)[0]
        with pytest.raises(GrammarError, match="at output token 0"):
            again.shaped(1, row, Policy(grammar={"regex": "[0-9]+"}))


def test_samples_come_again_each_with_its_own_draws(model: Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        runs = model.samples("abc", n=4, seed=5, policy=POLICIES["regex"], max_tokens=9, store=store)
        assert len({r.ids for r in runs}) > 1
        for run in runs:
            found = store.load(run.run_id)
            assert found.request.group == runs[0].request.group is not None
            assert found.replay(model).equal and found.replay(model).compared == len(run.steps)
        other = replace(runs[1], request=replace(runs[1].request, sequence=2)).replay(model)
        assert other.difference is not None and other.difference.field == "u"


@pytest.mark.parametrize("name", [*POLICIES, "beams"])
def test_inner_values_of_any_kind_of_run(model: Model, tmp_path: Path, name: str) -> None:
    """What `observe` gives for the same ids; the hash of the logits is the proof."""
    with glassbox.open_store(tmp_path / "runs.db") as store:
        how = dict(policy=POLICIES[name]) if name != "beams" else dict(beam=Beam(3))
        model.generate(**asked(Policy(), store=store) | how)
        run = store.load()
    whole = model.observe([*PROMPT, *run.ids[:1]], ["resid_post.2", "logits"])
    values = run.tensors(1, ["resid_post.2", "logits"], model=model)
    assert all(np.array_equal(values[p], whole[p][-1]) for p in values)
    assert logits_hash(values["logits"]) == run.steps[1].logits_hash


def test_the_command_says_what_was_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "runs.db")
    bigram = glassbox.load("bigram")
    with glassbox.open_store(path) as store:
        run = bigram.beam_search("ab", beam=2, max_tokens=3, store=store)
        assert invoke(["replay", "--store", path]) == 0
        said = f"equal    3 of 3 steps and {len(run.tried)} candidates of the beams, every bit; length"
        assert " ".join(said.split()) in " ".join(capsys.readouterr().out.split())
        failing(bigram, store, EmptySupport, prompt="b", policy=Policy(allowed_ids=(1,), no_repeat_ngram_size=1))
        assert invoke(["replay", "--store", path]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert out.startswith("equal 1 of 1 steps, every bit; the same error, EmptySupport: no token allowed at step 1")


# --- beams ---

BEAMS: dict[str, dict[str, Any]] = {
    "plain": dict(beam=Beam(3, returned=3)),
    "groups": dict(beam=Beam(4, 0.5, "never", groups=2, diversity_penalty=0.4, returned=2), policy=Policy(1.5, 20)),
    "grammar and stops": dict(
        beam=Beam(4, returned=4), policy=Policy(grammar={"regex": "[a-e]+!"}, min_tokens=3), stop=["ab", "d"],
        include_stop=True,
    ),
    "own past": dict(beam=Beam(3), policy=Policy(repetition_penalty=1.3, no_repeat_ngram_size=2)),
    "prompt judged": dict(beam=Beam(2), prompt_logprobs=True),
    "one beam": dict(beam=Beam(1), policy=Policy(0.5)),
}  # fmt: skip


@pytest.mark.parametrize("keep", [dict(), dict(level="ids", retain="ids")], ids=["look", "ids"])
@pytest.mark.parametrize("name", BEAMS)
def test_a_beam_search_comes_again_with_all_its_candidates(
    model: Model, tmp_path: Path, name: str, keep: dict[str, Any]
) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = model.generate(**asked(Policy(), store=store) | BEAMS[name] | keep)
        held = model.model.new_cache().pool.used
        found = store.load(run.run_id)
        replayed = found.replay(model)
        assert replayed.equal and replayed.rows == len(found.tried) > 0, str(replayed.difference)
        assert replayed.compared == len(run.steps) > 0 and replayed.to_dict()["beam_rows"] == replayed.rows
        assert model.model.new_cache().pool.used == held and not model.engine.running


@pytest.mark.parametrize(
    ("changes", "diverged"),
    [
        (dict(score=-1.5), False), (dict(logprob=-0.25), False), (dict(id=7), True), (dict(parent=2), True),
        (dict(state="dropped"), False), (dict(text="?"), False), (dict(beam=None), True),
    ],
)  # fmt: skip
def test_a_candidate_that_differs_is_named(model: Model, changes: dict[str, Any], diverged: bool) -> None:
    run = model.generate(**asked(Policy(), beam=Beam(3)))
    at = next(i for i, row in enumerate(run.tried) if row.step == 4 and row.state == "live")
    rows = list(run.tried)
    right = rows[at]
    rows[at] = replace(right, **changes)
    d = replace(run, tried=tuple(rows)).replay(model).difference
    (name,) = changes
    assert d is not None and (d.step, d.field) == (4, "beam")
    assert (d.recorded, d.replayed) == (
        {"rank": right.rank} | changes,
        {"rank": right.rank, name: getattr(right, name)},
    )
    replayed = replace(run, tried=tuple(rows)).replay(model)
    assert (replayed.diverged == 4) == diverged


def test_rows_and_steps_of_a_search_that_are_missing_are_named(model: Model) -> None:
    run = model.generate(**asked(Policy(), beam=Beam(3)))
    gone = [i for i, row in enumerate(run.tried) if row.step == 2]
    d = replace(run, tried=run.tried[: gone[-1]] + run.tried[gone[-1] + 1 :]).replay(model).difference
    assert d is not None and (d.step, d.field, d.recorded) == (2, "beam", None)
    d = replace(run, steps=run.steps[:-1]).replay(model).difference
    assert d is not None and (d.step, d.field) == (13, "id")
    d = replace(run, request=replace(run.request, beam=Beam(3, 2.0), max_tokens=13)).replay(model).difference
    assert d is not None and d.step == 12
    longer = replace(run, tried=(*run.tried, replace(run.tried[-1], step=14, rank=0))).replay(model).difference
    assert longer is not None and (longer.step, longer.field) == (14, "beam")


def test_rows_that_a_store_lost_are_no_difference(model: Model) -> None:
    """Where it says that it lost some, what is there is compared."""
    run = model.generate(**asked(Policy(), beam=Beam(3)))
    lost = replace(run, problem="incomplete", steps=run.steps[:5], tried=tuple(r for r in run.tried if r.step != 6))
    replayed = lost.replay(model)
    assert replayed.equal and replayed.compared == 5 and replayed.rows == len(lost.tried) < len(run.tried)


def test_a_search_that_was_cut_comes_again_as_far_as_it_came(model: Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        how = asked(Policy(), beam=Beam(3), ignore_eos=True, max_tokens=50, store=store)
        for passes in (0, 1, 5):
            stream = model.stream(**how)
            model.engine.add(stream._generation)
            for _ in range(passes):
                model.engine.step()
            stream.close()
            model.engine.drop(stream._generation)
            found = store.load(stream.run.run_id)
            assert found.finish_reason == "cancelled" and found.beams is not None and found.beams.steps == passes
            replayed = found.replay(model)
            assert replayed.equal and replayed.compared == passes and replayed.rows == len(found.tried)
        interrupted = replace(found, outcome=None, status="interrupted", steps=())  # as a killed process leaves it
        assert interrupted.replay(model).equal and interrupted.replay(model).rows == len(found.tried)
        wrong = replace(found, steps=(*found.steps[:-1], replace(found.steps[-1], entropy=0.5))).replay(model)
        assert wrong.difference is not None and (wrong.difference.step, wrong.difference.field) == (4, "entropy")


# --- how likely the prompt was ---


def test_the_logprobs_of_a_prompt_are_compared(model: Model, tmp_path: Path) -> None:
    long = PROMPT * 4  # more rows than are held at once
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = model.generate(**asked(Policy(), ids=long, prompt_logprobs=True, max_tokens=3, store=store))
        found = store.load(run.run_id)
    assert found.replay(model).equal
    for at in (1, 70, len(long) - 1):
        prompt = list(found.prompt)
        prompt[at] = replace(prompt[at], logprob=-0.125)
        d = replace(found, prompt=tuple(prompt)).replay(model).difference
        assert d is not None and (d.step, d.field) == (None, "prompt_logprobs")
        assert d.recorded == {"position": at, "logprob": -0.125}
        assert d.replayed == {"position": at, "logprob": run.prompt[at].logprob}
        assert str(d).startswith("the prompt: prompt_logprobs was")


# --- runs that failed ---


def failing(model: Model, store: Any, error: type[GlassboxError], **how: Any) -> Run:
    with pytest.raises(error):
        model.generate(**how, store=store)
    return store.load()  # type: ignore[no-any-return]


FAILURES: dict[str, dict[str, Any]] = {
    "in the midst": dict(policy=Policy(allowed_ids=(5, 6, 7), no_repeat_ngram_size=1)),
    "at once": dict(policy=Policy(forced_ids=(5,), banned_ids=(5,))),
    "a grammar with no way on": dict(policy=Policy(grammar={"choice": ["ab", "abc"]}, banned_ids=(66,), min_tokens=3)),
    "beams": dict(policy=Policy(allowed_ids=(5, 6, 7), no_repeat_ngram_size=1), beam=Beam(2)),
    "with passes": dict(policy=Policy(allowed_ids=(5, 6, 7), no_repeat_ngram_size=1, guidance_scale=2.0)),
}


@pytest.mark.parametrize("keep", [dict(), dict(level="ids", retain="ids")], ids=["look", "ids"])
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_comes_again(model: Model, tmp_path: Path, name: str, keep: dict[str, Any]) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        how = dict(ids=[1, 2, 3], seed=4, max_tokens=9, ignore_eos=True) | FAILURES[name] | keep
        run = failing(model, store, EmptySupport, **how)
    replayed = run.replay(model)
    assert replayed.equal and replayed.compared == len(run.steps), str(replayed.difference)
    if not keep:
        assert run.failed
        d = replace(run, failed=run.failed[:-1]).replay(model).difference
        assert d is not None and (d.step, d.field) == (len(run.steps), "ledger")
        last = replace(run.failed[-1], alive_before=run.failed[-1].alive_before + 1)
        d = replace(run, failed=(*run.failed[:-1], last)).replay(model).difference
        assert d is not None and d.recorded["alive_before"] == d.replayed["alive_before"] + 1
        d = replace(run, error="EmptySupport: for another reason").replay(model).difference
        assert d is not None and d.field == "error"
    mild = replace(run, request=replace(run.request, policy=Policy())).replay(model)
    assert not mild.equal  # it goes on


def test_numbers_that_are_none_come_again(tmp_path: Path) -> None:
    faulty = broken()
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = failing(faulty, store, NonFiniteLogits, prompt="ab", seed=1)
    assert run.replay(faulty).equal and run.replay(faulty).compared == 3 and "first seen at logits" in str(run.error)
    d = replace(run, error=f"{run.error}!").replay(faulty).difference
    assert d is not None and (d.step, d.field) == (3, "error")


def test_what_ended_for_want_of_memory_is_compared_as_far_as_it_came(model: Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = model.generate(**asked(Policy(), store=store))
    broke_off = replace(run, outcome=None, status="error", error="OutOfMemory: a page", steps=run.steps[:4])
    assert broke_off.replay(model).equal and broke_off.replay(model).compared == 4
    full = glassbox.load(str(model.path), threads=1, kv_limit=1)
    with suppress(OutOfMemory):  # that the replay itself has none is no difference
        pytest.fail(str(run.replay(full)))
