"""A run made again from its trace: equal, or the first difference, its size and its cause."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf
from test_cli import Cli
from test_cli import cli as cli
from test_generation import broken

import glassbox
from glassbox.api import Model
from glassbox.errors import NonFiniteLogits, NotReproduced, PromptError
from glassbox.events import Step
from glassbox.generation import Generation
from glassbox.policy.policy import Policy
from glassbox.stop import Ending
from glassbox.trace.record import Run
from glassbox.trace.replayed import COMPARED, Replayed

T = gguf.GGMLQuantizationType
KINDS = [T.Q8_0, T.Q4_1, T.F32]
SAMPLED = Policy(temperature=0.9, top_k=30, top_p=0.95, repetition_penalty=1.1)
# A template that asks for the time and says it in one letter, so that the clock counts.
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ strftime_now('%Y') }}"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_gguf.write(tmp_path_factory.mktemp("m") / "m.gguf", "gemma3", "gemma3", KINDS)


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return glassbox.load(path, threads=2)


def ran(model: Model, **more: Any) -> Run:
    asked = dict(prompt="abcabc", policy=SAMPLED, seed=7, max_tokens=20, ignore_eos=True) | more
    return model.generate(**asked)


def spoiled(run: Run, at: int, **changes: Any) -> Run:
    """The run with a step that says something else."""
    steps = list(run.steps)
    own = {f.name for f in fields(Step)}
    mine = {k: v for k, v in changes.items() if k in own}
    choice = replace(steps[at].choice, **{k: v for k, v in changes.items() if k not in own or k == "id"})
    steps[at] = replace(steps[at], choice=choice, **mine)
    return replace(run, steps=tuple(steps))


# --- what comes again ---

ASKED: dict[str, dict[str, Any]] = {
    "sampled": {},
    "greedy": dict(policy=Policy(temperature=0)),
    "a stop string": dict(stop=["a", "b", "c", "Q"], max_tokens=200),
    "a stop id": dict(stop_ids=list(range(40)), max_tokens=200),
    "the context": dict(max_tokens=None),
    "the end of the text": dict(policy=Policy(logit_bias={95: 8}), ignore_eos=False, max_tokens=200),
    "ids": dict(prompt=None, ids=[5, 95, 7]),
    "chat": dict(prompt=None, messages=[{"role": "user", "content": "a b"}], template=TEMPLATE),
    "chat with variables": dict(
        prompt=None,
        messages=[{"role": "user", "content": "a b"}],
        template=TEMPLATE + "{{ more }}",
        template_kwargs={"more": "abc"},
    ),
    "speculation": dict(policy=Policy(temperature=0.3, no_repeat_ngram_size=0), speculate=True),
    "penalties and xtc": dict(policy=Policy(xtc_probability=0.5, dry_multiplier=0.8, frequency_penalty=0.4)),
}


@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("keep", [dict(), dict(level="ids", retain="ids")], ids=["look", "ids"])
def test_runs_come_again(model: Model, tmp_path: Path, what: str, keep: dict[str, Any]) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = ran(model, store=store, **ASKED[what], **keep)
        assert ran(model, store=store, **ASKED[what], **keep).usage.cached_tokens > 0  # the same out of the cache
        for summary in store.runs():
            found = store.load(summary.id)
            replayed = found.replay(model)
            assert replayed.equal and replayed.difference is None, str(replayed.difference)
            assert replayed.compared == len(run.steps) > 0
            assert (replayed.logprob_delta, replayed.causes, replayed.mismatches) == (0, (), ())


def test_unfinished_runs_come_again_as_far_as_they_came(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that does not depend on the machine: a limit is over after five tokens.
    late_after_five = property(lambda made: made.request.time_limit is not None and made.steps >= 5)
    monkeypatch.setattr(Generation, "late", late_after_five)
    with glassbox.open_store(tmp_path / "runs.db") as store:
        with model.stream("abc", policy=SAMPLED, seed=3, max_tokens=50, store=store, stop=["no"]) as stream:
            for step in stream:
                if step.step == 6:
                    break
        cancelled = store.load(stream.run.run_id)
        late = ran(model, max_tokens=200, time_limit=60, store=store)
        assert cancelled.finish_reason == "cancelled" and cancelled.replay(model).compared == 7
        assert late.finish_reason == "time" and late.replay().equal and late.replay().compared == 5
        assert cancelled.replay(model).equal
        # As a killed process leaves it: no ending.
        interrupted = replace(cancelled, status="interrupted", outcome=None, steps=cancelled.steps[:3])
        assert interrupted.replay().equal and interrupted.replay().compared == 3
        nothing = replace(late, status="interrupted", outcome=None, steps=())
        assert nothing.replay().equal and nothing.replay().compared == 0
        faulty = broken()
        with pytest.raises(NonFiniteLogits):
            faulty.generate("ab", seed=1, store=store)
        failed = store.load()
        assert failed.status == "error" and failed.replay(faulty).equal and failed.replay(faulty).compared == 3


def test_what_was_not_kept_cannot_come_again(model: Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        ran(model, store=store, retain="none")
        with pytest.raises(PromptError, match="recorded without its ids"):
            store.load().replay(model)


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_keys_and_values_are_kept_as_they_were(path: Path, model: Model, tmp_path: Path, kv: str) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = ran(glassbox.load(path, kv=kv), prompt="abc" * 20, store=store)
        found = store.load()
        assert found.provenance.kv == run.provenance.kv == kv and found.to_dict()["provenance"]["kv"] == kv
        assert found.replay().equal and found.opened is not None  # opened by name, and it stays at hand
        with pytest.raises(NotReproduced, match=f"the kind of keys and values was {kv}, and is f32") as caught:
            found.replay(model)
        assert (caught.value.field, caught.value.recorded, caught.value.found) == ("kv", kv, "f32")
        forced = found.replay(model, force=True)
        assert forced.difference is not None and forced.difference.field == "logits_hash"
        assert forced.causes == (f"the kind of keys and values was {kv}, and is f32",)


@pytest.mark.model
def test_a_chat_of_a_real_model_comes_again(smollm2: Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        talk = [{"role": "user", "content": "Name three rivers."}]
        smollm2.generate(messages=talk, policy=Policy(temperature=0.8, top_p=0.95), seed=2, max_tokens=12, store=store)
        assert store.load().replay(smollm2).equal


# --- what does not ---

SPOILED: dict[str, dict[str, Any]] = {
    "logits_hash": dict(logits_hash="00" * 8), "logprob_raw": dict(logprob_raw=-1e-9), "rank_raw": dict(rank_raw=90),
    "entropy": dict(entropy=0.25), "u": dict(u=0.125), "cdf_lo": dict(cdf_lo=-0.5), "cdf_hi": dict(cdf_hi=1.5),
    "logprob_final": dict(logprob_final=-99.0), "ties": dict(ties=5), "bytes": dict(bytes=b"?"),
    "text": dict(text="?"), "text_offset": dict(text_offset=-1),
}  # fmt: skip


@pytest.mark.parametrize("field", SPOILED)
def test_the_first_step_that_differs_is_named(model: Model, field: str) -> None:
    run = spoiled(ran(model), 5, **SPOILED[field])
    run = spoiled(run, 9, rank_raw=91)
    replayed = run.replay()
    d = replayed.difference
    assert not replayed.equal and d is not None
    assert (d.step, d.field) == (5, field)
    assert d.recorded == (list(b"?") if field == "bytes" else SPOILED[field][field])
    assert replayed.diverged is None and replayed.compared == 20
    assert replayed.causes == (COMPARED[field],)
    assert str(d).startswith(f"step 5: {field} was {d.recorded!r}, and is ")


def test_of_a_ledger_the_row_and_what_differs_in_it(model: Model) -> None:
    run = ran(model)
    at = next(i for i, row in enumerate(run.steps[4].ledger) if row.name == "top_k")
    rows = list(run.steps[4].ledger)
    rows[at] = replace(rows[at], params={"top_k": 31})
    d = spoiled(run, 4, ledger=tuple(rows)).replay().difference
    assert d is not None and (d.step, d.field) == (4, "ledger")
    assert (d.recorded, d.replayed) == (
        {"name": "top_k", "params": {"top_k": 31}}, {"name": "top_k", "params": {"top_k": 30}}
    )  # fmt: skip
    some = list(run.steps[4].candidates)
    some[2] = replace(some[2], p_final=0.5)
    d = spoiled(run, 4, candidates=tuple(some)).replay().difference
    assert d is not None and d.field == "candidates" and d.recorded == {"id": some[2].id, "p_final": 0.5}


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (replace(SAMPLED, top_k=29), "ledger"),
        (replace(SAMPLED, temperature=0.91), "ledger"),
        (replace(SAMPLED, order=tuple(reversed(SAMPLED.order))), "ledger"),
    ],
)
def test_another_policy_is_seen_at_the_first_step(model: Model, policy: Policy, field: str) -> None:
    run = ran(model)
    d = replace(run, request=replace(run.request, policy=policy)).replay().difference
    assert d is not None and (d.step, d.field, d.hint) == (0, field, "the policy")


def test_another_seed_and_another_id(model: Model) -> None:
    run = ran(model)
    d = replace(run, request=replace(run.request, seed=8)).replay().difference
    assert d is not None and (d.step, d.field) == (0, "u") and "seed" in d.hint
    other = spoiled(run, 6, id=(run.ids[6] + 1) % 90).replay()
    assert other.difference is not None and (other.difference.step, other.difference.field) == (6, "id")
    assert other.diverged == 6 and other.compared == 7


@pytest.mark.parametrize(
    ("changes", "step", "field"),
    [
        (dict(max_tokens=19), 19, "id"),  # it would have ended before
        (dict(max_tokens=21), None, "stop_reason"),
        (dict(stop_ids=()), None, None),
    ],
)
def test_another_limit_is_seen_at_the_end(model: Model, changes: Any, step: int | None, field: str | None) -> None:
    run = ran(model)
    d = replace(run, request=replace(run.request, **changes)).replay().difference
    assert (d and d.step, d and d.field) == (step, field)


def test_another_ending_and_another_text(model: Model) -> None:
    run = ran(model)
    assert run.outcome is not None
    for changes, field in ((dict(ending=Ending("max_tokens", 21)), "stop_reason"), (dict(text="?"), "text")):
        d = replace(run, outcome=replace(run.outcome, **changes)).replay().difference
        assert d is not None and (d.step, d.field) == (None, field)


def test_another_model_is_refused_and_when_forced_measured(model: Model, tmp_path: Path) -> None:
    other = glassbox.load(random_gguf.write(tmp_path / "o.gguf", "gemma3", "gemma3", KINDS, seed=1), threads=1)
    run = ran(model)
    with pytest.raises(NotReproduced) as caught:
        run.replay(other)
    e = caught.value
    assert (e.field, e.recorded, e.found, e.exit_code) == ("model", model.sha256, other.sha256, 1)
    assert str(e).startswith(f"run {run.run_id} cannot be computed again: the sha256 of the model was {model.sha256}")
    forced = run.replay(other, force=True)
    d = forced.difference
    assert d is not None and (d.step, d.field) == (0, "logits_hash") and not forced.equal
    assert [m.field for m in forced.mismatches] == ["model"] and "sha256 of the model" in forced.causes[0]
    right = apart(run, other, forced.compared)
    assert forced.logprob_delta == pytest.approx(right[0], rel=1e-12) and right[0] > 0.1
    assert forced.logit_delta == right[1]
    assert json.dumps(forced.to_dict(), allow_nan=False)


def apart(run: Run, other: Model, steps: int) -> tuple[float, float]:
    """The largest |Δ| of recorded logprobs and of recorded logits, another way: from all logits of the other model."""
    n = len(run.prompt_ids)
    rows = other.logits([*run.prompt_ids, *run.ids])[n - 1 : -1].astype(np.float64)
    logprobs = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
    worst, worst_logit = 0.0, 0.0
    for t, step in enumerate(run.steps[:steps]):
        pairs = [(step.id, step.choice.logprob_raw), *((c.id, np.log(c.p_raw)) for c in step.candidates)]
        worst = max(worst, *(abs(p - logprobs[t, i]) for i, p in pairs))
        worst_logit = max(worst_logit, *(abs(c.logit - rows[t, c.id]) for c in step.candidates))
    return worst, worst_logit


@pytest.mark.parametrize(
    ("field", "column"), [("engine", "engine"), ("tokenizer", "tokenizer_sha256"), ("model", "model_sha256")]
)
def test_a_mismatch_is_refused_and_if_it_did_not_matter_that_is_said(model: Model, field: str, column: str) -> None:
    run = ran(model)
    changed = replace(run, provenance=replace(run.provenance, **{column: "another"}))
    with pytest.raises(NotReproduced, match="was another, and is") as caught:
        changed.replay()
    assert caught.value.field == field and caught.value.recorded == "another"
    forced = changed.replay(force=True)
    assert forced.equal and [m.field for m in forced.mismatches] == [field] and forced.causes == ()


def test_another_version_is_no_reason_to_refuse_but_a_cause(model: Model) -> None:
    run = ran(model)
    old = replace(run, provenance=replace(run.provenance, glassbox="0.0.1", threads=77))
    assert old.replay().equal and [m.field for m in old.replay().mismatches] == ["glassbox"]
    replayed = spoiled(old, 2, entropy=0.5).replay()
    assert not replayed.equal and replayed.causes[0].startswith("the version was 0.0.1, and is")


def test_the_prompt_must_come_again_from_its_text(model: Model) -> None:
    run = ran(model, **ASKED["chat"])
    assert run.provenance.clock is not None and run.replay().equal
    # With another clock the template says another year.
    later = replace(run, provenance=replace(run.provenance, clock="2031-01-02T03:04:05"))
    with pytest.raises(NotReproduced, match="the prompt that its text gives was id") as caught:
        later.replay()
    assert caught.value.field == "prompt"
    forced = later.replay(force=True)
    assert forced.difference is None and not forced.equal and forced.causes[0].startswith("the prompt that its text")

    assert run.request.chat is not None
    chat = {**run.request.chat, "source": TEMPLATE.replace("{{ m", "x{{ m")}
    other = replace(run, request=replace(run.request, chat=chat))
    assert [m.field for m in other.replay(force=True).mismatches] == ["template", "prompt"]
    same = {**run.request.chat, "source": TEMPLATE + "{# another, but of the same effect #}"}
    harmless = replace(run, request=replace(run.request, chat=same)).replay()
    assert harmless.equal and [m.field for m in harmless.mismatches] == ["template"]
    gone = {**run.request.chat, "source": "{{ raise_exception('no') }}"}
    with pytest.raises(NotReproduced, match=r"refused \(.*no"):
        replace(run, request=replace(run.request, chat=gone)).replay()

    raw = ran(model)
    encoding = replace(raw.request.encoding, text="abcab!")
    with pytest.raises(NotReproduced, match="at position"):
        replace(raw, request=replace(raw.request, encoding=encoding)).replay()


# --- the command line ---


def test_the_command_says_equal_or_where_not(cli: Cli, tmp_path: Path) -> None:
    cli.stored("trace", "ab", "--model", "bigram", "--max-tokens", "4", "--seed", "7")
    out, _ = cli.stored("replay")
    assert out == "equal    4 of 4 steps, every bit; length\n"
    told = json.loads(cli.stored("replay", "last", "--json")[0])
    assert told["equal"] is True and told["compared"] == told["steps"] == 4 and told["difference"] is None

    import sqlite3

    with closing(sqlite3.connect(cli.store)) as conn, conn:
        conn.execute("UPDATE position SET u = 0.5 WHERE step = 2")
    conn.close()
    _, err = cli.stored("replay", code=2)
    assert "is damaged at step 2" in err
    out, _ = cli.stored("replay", "--force", code=1)
    assert "differs  step 2: u was 0.5, and is" in out and "because  the seed, the sequence or the position" in out
    told = json.loads(cli.stored("replay", "--force", "--json", code=1)[0])
    assert (told["difference"]["step"], told["difference"]["field"]) == (2, "u")


def test_the_command_refuses_another_model(cli: Cli, path: Path) -> None:
    cli.stored("trace", "ab", "--model", "bigram", "--max-tokens", "4", "--seed", "7")
    _, err = cli.stored("replay", "--model", str(path), code=1)
    assert "the sha256 of the model was bigram, and is" in err and err.count("\n") == 1
    out, _ = cli.stored("replay", "--model", str(path), "--force", code=1)
    assert (
        "differs  step 0: logits_hash" in out and "logprobs up to" in out and "because  the sha256 of the model" in out
    )
    _, err = cli.stored("replay", "zzz", code=2)
    assert "no run 'zzz'" in err


def test_a_replay_is_plain_data(model: Model) -> None:
    replayed = ran(model).replay()
    assert isinstance(replayed, Replayed) and replayed.run.steps
    assert json.loads(json.dumps(replayed.to_dict(), allow_nan=False))["equal"] is True
