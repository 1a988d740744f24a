"""Where two runs part. For every stage a pair that differs in it first, and what must be said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf

import glassbox
from glassbox import Policy, diff
from glassbox.cli.app import invoke
from glassbox.errors import PromptError
from glassbox.model.bigram import LOGITS
from glassbox.trace.apart import (
    candidates_apart,
    distributions_apart,
    logits_apart,
    shared_ids,
    softmax,
    text_apart,
    vectors_apart,
)
from glassbox.trace.diff import Diff

NAMES = ["template", "prompt", "ids", "embedding", "layers", "logits", "policy", "draw", "text", "ending"]


@pytest.fixture(scope="module")
def bigram() -> glassbox.Model:
    return glassbox.load("bigram")


@pytest.fixture(scope="module")
def run(bigram: glassbox.Model) -> glassbox.Run:
    return bigram.generate("ab", seed=7, max_tokens=4)


def checked(d: Diff) -> Diff:
    """With its JSON finite and complete."""
    got = json.loads(json.dumps(d.to_dict(), allow_nan=False))
    assert [s["stage"] for s in got["stages"]] == NAMES and got["first"] == d.first and got["equal"] == d.equal
    return d


def same(d: Diff) -> dict[str, bool | None]:
    return {name: found.same for name, found in d.stages.items()}


def captured(run: glassbox.Run, *kept: str, **changes: Any) -> dict[str, Any]:
    """What another engine might give of a run: some fields."""
    whole = run.to_dict()
    return {name: whole[name] for name in kept} | changes


# --- every stage ---


def test_a_run_is_equal_to_itself(run: glassbox.Run) -> None:
    d = checked(diff(run, run))
    assert d.equal and d.first is None and d.sentence == "equal in all 10 stages"
    assert set(same(d).values()) == {True} and d.aligned == 4


@pytest.mark.model
def test_another_template(smollm2: glassbox.Model) -> None:
    talk = [{"role": "user", "content": "Hi"}]
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    how: dict[str, Any] = dict(policy=Policy(temperature=0), max_tokens=2)
    one = smollm2.generate(messages=talk, **how)
    other = smollm2.generate(messages=talk, template=plain, **how)
    d = checked(diff(one, other))
    assert d.first == "template" and d.sentence.startswith("template differs first: the chat templates have different")
    assert d.stages["template"].evidence["text"]["a"] and d.stages["prompt"].same is False
    segments = d.stages["prompt"].evidence["segments"]
    assert any(origin == "template" for block in segments for origin, _ in block["a"])
    third = smollm2.generate(messages=talk, template=plain.replace("m.role }}:", "m.role }} :"), **how)
    assert diff(other, third).stages["template"].evidence["text"]["character"] == plain.index("}}:") + 2
    raw = smollm2.generate("Hi", **how)
    assert diff(one, raw).stages["template"].says == "B went through no chat template"
    longer = smollm2.generate(messages=[{"role": "user", "content": "Ho"}], **how)
    d = checked(diff(one, longer))
    assert d.first == "prompt" and "in message 0: 'i' against 'o'" in d.sentence


def test_another_prompt(bigram: glassbox.Model, run: glassbox.Run) -> None:
    d = checked(diff(run, bigram.generate("abc", seed=7, max_tokens=4)))
    assert d.first == "prompt" and d.stages["prompt"].evidence["character"] == 2
    assert d.stages["ids"].evidence["position"] == 2 and d.stages["ids"].evidence["counts"] == [2, 3]
    assert d.stages["draw"].says.startswith("at step 0 the same seed at another position, 2 against 3")
    rows = d.stages["logits"].evidence["rows"]
    p, q = softmax(LOGITS[2]), softmax(LOGITS[3])
    assert rows[0]["raw"]["kl"] == pytest.approx((p * np.log(p / q)).sum())
    delta = (LOGITS[3] - LOGITS[2]).astype(np.float64)
    assert rows[0]["shift"] == pytest.approx(delta.mean())
    assert rows[0]["largest"] == pytest.approx(np.abs(delta - delta.mean()).max())


def test_another_tokenizer(bigram: glassbox.Model, run: glassbox.Run) -> None:
    """The same text as other ids: of "ab" one who merges would make one id."""
    merged = captured(run, *run.to_dict(), prompt_ids=[9], prompt=[{"position": 0, "id": 9, "bytes": [97, 98]}])
    merged["provenance"] = {**merged["provenance"], "tokenizer_sha256": "other"}
    d = checked(diff(run, merged))
    assert d.first == "ids" and d.stages["prompt"].same is True
    assert d.stages["ids"].says == (
        "they differ from position 0 on: 1 'a' against 9 'ab'; the text is the same, so the tokenizers differ"
    )
    renumbered = captured(run, *run.to_dict(), prompt_ids=[5, 6])
    renumbered["prompt"] = [{"position": i, "id": 5 + i, "bytes": [97 + i]} for i in range(2)]
    renumbered["provenance"] = {**renumbered["provenance"], "tokenizer_sha256": "other"}
    d = checked(diff(run, renumbered))
    assert d.stages["ids"].same is True and "the same bytes token by token" in d.stages["ids"].says
    assert d.equal and d.aligned == 4


@pytest.mark.model
def test_another_way_to_keep_keys_and_values(smollm2: glassbox.Model, smollm2_path: Path) -> None:
    """The embedding is the same; what differs first is what attention reads from the cache."""
    rounded = glassbox.load(smollm2_path, kv="q8")
    how: dict[str, Any] = dict(seed=7, max_tokens=3)
    one, other = (m.generate("The capital of France is", **how) for m in (smollm2, rounded))
    d = checked(diff(one, other))
    assert d.first == "layers" and same(d)["embedding"] is True and same(d)["policy"] is True
    evidence = d.stages["layers"].evidence
    assert evidence["first_point"] == "attn_scores.0" and len(evidence["layers"]) == 30
    names = [f"resid_post.{i}" for i in range(30)]
    seen = [m.observe(one.prompt_ids, names) for m in (smollm2, rounded)]
    for v, name in zip(evidence["layers"], names, strict=True):
        a, b = (s[name][-1].astype(np.float64) for s in seen)
        assert v["distance"] == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a))
        assert v["cosine"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    rows = d.stages["logits"].evidence["rows"]
    a, b = (m.logits(one.prompt_ids)[-1].astype(np.float64) for m in (smollm2, rounded))
    assert rows[0]["step"] == 0 and rows[0]["largest"] == pytest.approx(np.abs(b - a - (b - a).mean()).max())
    assert 0 < rows[0]["raw"]["kl"] < 0.01


@pytest.mark.model
def test_another_model(smollm2: glassbox.Model, gemma3: glassbox.Model) -> None:
    """Other ids for the same text; what both vocabularies can say is compared."""
    one, other = (m.generate("The capital of France is", seed=7, max_tokens=2) for m in (smollm2, gemma3))
    d = checked(diff(one, other))
    assert d.first == "ids" and d.stages["ids"].evidence["same_text"]
    assert d.stages["layers"].same is None and "576 wide, B's 640" in d.stages["layers"].says
    assert "vocabularies share 46," in d.stages["logits"].evidence["notes"][0]
    assert d.stages["logits"].evidence["rows"][0]["raw"]["kl"] > 0


def test_another_order_of_the_policy(bigram: glassbox.Model) -> None:
    """C05-01's way: after 'c' the logits are 2, 1, 0, -1; the order decides who top-p 0.8 leaves."""
    same_values: dict[str, Any] = dict(temperature=0.5, top_p=0.8)
    first, last = Policy(**same_values), Policy(**same_values, order=("top_p", "temperature"))
    one, other = (bigram.generate("c", policy=p, seed=7, max_tokens=1) for p in (first, last))
    d = checked(diff(one, other))
    assert d.first == "policy" and d.stages["policy"].evidence["values"] == {}
    assert d.stages["policy"].says == (
        "temperature → top_p against top_p → temperature; at step 0 top_p removed 1 'a' in A only"
    )
    assert same(d)["logits"] is True and same(d)["draw"] is True
    kl = d.stages["policy"].evidence["rows"][0]
    assert kl["kl"] == pytest.approx(-np.log(0.880797), abs=1e-5)  # [1, 0, …] against [0.880797, 0.119203, …]
    assert kl["total_variation"] == pytest.approx(0.119203, abs=1e-5)
    back = diff(other, one).stages["policy"].evidence["rows"][0]
    assert back["kl"] is None  # what A may draw, B cannot


def test_other_values_of_the_policy(bigram: glassbox.Model, run: glassbox.Run) -> None:
    d = checked(diff(run, bigram.generate("ab", seed=7, max_tokens=4, policy=Policy(top_p=0.9))))
    assert d.first == "policy" and d.stages["policy"].evidence["values"] == {"top_p": [1.0, 0.9]}
    off = replace(run, request=replace(run.request, policy=Policy(order=("top_k", "temperature"))))
    assert diff(run, off).equal  # an order of steps that are off does nothing


def test_another_seed(bigram: glassbox.Model, run: glassbox.Run) -> None:
    other = bigram.generate("ab", seed=8, max_tokens=4)
    d = checked(diff(run, other))
    assert d.first == "draw" and d.stages["draw"].says.startswith("at step 0 seed 7 against 8: A 0.0")
    at = next(i for i, (x, y) in enumerate(zip(run.ids, other.ids, strict=True)) if x != y)
    assert d.aligned == at + 1 and d.stages["text"].evidence["step"] == at
    greedy = [bigram.generate("ab", seed=s, policy=Policy(temperature=0), max_tokens=4) for s in (7, 8)]
    d = diff(*greedy)
    assert d.equal and d.stages["draw"].says == "nothing was drawn"


def test_another_token_for_no_reason_given(run: glassbox.Run) -> None:
    forced = replace(run, steps=(*run.steps[:3], replace(run.steps[3], id=0, bytes=b" ")))
    d = checked(diff(run, forced))
    assert d.first == "text" and d.stages["text"].says == "from step 3 on: 2 'b' against 0 ' '"


def test_a_token_that_was_put_there_is_the_reason(run: glassbox.Run) -> None:
    other = next(i for i in range(4) if i != run.ids[1])
    d = checked(diff(run, run.branch(1, token_id=other)))
    assert d.first == "text" and d.stages["text"].says.endswith(f"against {other} '{' abc'[other]}', put there")
    d = checked(diff(run.branch(1, token_id=other), run))
    assert f"'{' abc'[other]}', put there, against {run.ids[1]} " in d.stages["text"].says


def test_beam_searches(bigram: glassbox.Model, run: glassbox.Run) -> None:
    """Settings, and the first candidate that differs; a search beside a draw; what does not say."""
    how = dict(policy=Policy(1.5), max_tokens=4)
    one, two = (bigram.beam_search("ab", beam=glassbox.Beam(3, returned=r), **how) for r in (1, 1))
    d = checked(diff(one, two))
    assert (
        d.equal and d.stages["draw"].says == f"nothing was drawn: the same {len(one.tried)} candidates of a beam search"
    )
    wider = checked(diff(one, bigram.beam_search("ab", beam=glassbox.Beam(4), **how))).stages["draw"]
    assert wider.same is False and wider.evidence["beams"] == {"width": [3, 4]}
    assert wider.says.startswith("width 3 against 4; at step ")
    at = next(i for i, row in enumerate(one.tried) if row.step == 2)
    rows = list(one.tried)
    rows[at] = replace(rows[at], score=-9.0)
    other = checked(diff(one, replace(one, tried=tuple(rows))))
    evidence = other.stages["draw"].evidence
    assert other.first == "draw" and (evidence["candidate"], evidence["step"]) == (at, 2)
    assert f"B {rows[at].id} after beam {rows[at].parent}, score -9.0, " in other.stages["draw"].says
    drawn = checked(diff(run, one)).stages["draw"]
    assert drawn.same is False and drawn.says == "B is of a beam search, A is not"
    capture = captured(one, "prompt_ids", "steps", "text")
    assert checked(diff(one, capture)).stages["draw"].same is None
    assert checked(diff(one, captured(one, "prompt_ids", "steps", "beams"))).stages["draw"].same is True


def test_runs_of_other_kinds_are_compared_whole(tmp_path: Path) -> None:
    """Distributions of policies that go by more than their row of logits: a grammar, mirostat, further passes."""
    path = random_gguf.write(tmp_path / "m.gguf", "llama", "llama", [gguf.GGMLQuantizationType.F32], tied=False)
    model = glassbox.load(path, threads=1)
    for policy in (
        Policy(3.0, grammar={"regex": "[a-f]+"}), Policy(mirostat_tau=3.0), Policy(guidance_scale=1.5),
        Policy(dola_layers="low"), Policy(penalty_alpha=0.6, top_k=4),
    ):  # fmt: skip
        one, other = (model.generate("abc", policy=p, seed=3, max_tokens=6) for p in (policy, Policy()))
        assert checked(diff(one, one)).equal
        d = checked(diff(one, other))
        assert d.first == "policy" and not isinstance(d.stages["policy"].evidence["rows"], str)
        with one.again() as again:
            p, q = (again.shaped(0, again.logits(0, 0)[0], x).probs for x in (policy, Policy()))
        row = d.stages["policy"].evidence["rows"][0]
        assert row["total_variation"] == pytest.approx(0.5 * np.abs(p - q).sum()) and row["total_variation"] > 0


def test_another_ending(bigram: glassbox.Model, run: glassbox.Run) -> None:
    d = checked(diff(run, bigram.generate("ab", seed=7, max_tokens=2)))
    assert d.first == "text" and d.stages["text"].says == "the same 2 tokens, then one goes on: 4 against 2"
    assert d.stages["ending"].says == "length (max_tokens 4) against length (max_tokens 2)"
    stopped = bigram.generate("ab", seed=7, max_tokens=4, stop_ids=[run.ids[-1]], include_stop=True)
    d = checked(diff(run, stopped))
    assert d.first == "ending" and d.stages["ending"].says.startswith("length (max_tokens 4) against stop (stop_id ")


# --- C04-06 ---


def test_a_constant_shift_is_no_difference(bigram: glassbox.Model, run: glassbox.Run) -> None:
    """Other bits, the same probabilities: told beside, and nothing differs."""
    shifted = run.to_dict()
    for step in shifted["steps"]:
        step["logits_hash"] = None
        for c in step["candidates"]:
            c["logit"] -= 240
    d = checked(diff(run, shifted))
    assert d.equal and d.stages["logits"].says == "what is listed is the same but for a constant, -240"


def test_logits_apart() -> None:
    a = np.array([3, 2, 1], np.float32)
    assert logits_apart(a, a - 240) == {"shift": -240.0, "largest": 0.0, "only_shift": True}
    assert logits_apart(a, a) == {"shift": 0.0, "largest": 0.0, "only_shift": False}
    got = logits_apart(a, np.array([3, 2, 4], np.float32))
    assert got == {"shift": 1.0, "largest": 2.0, "only_shift": False}
    lower = np.array([-np.inf, 2, 1], np.float32)
    assert logits_apart(lower, lower + 5) == {"shift": 5.0, "largest": 0.0, "only_shift": True}
    assert not logits_apart(lower, a + 5)["only_shift"]
    assert np.allclose(softmax(np.array([1000, 1001, 1002], np.float32)), [0.090031, 0.244728, 0.665241], atol=1e-6)


def test_distributions_and_vectors_apart() -> None:
    p, q = np.array([0.5, 0.5, 0]), np.array([0.25, 0.75, 0])
    assert distributions_apart(p, q)["kl"] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert distributions_apart(p, q)["total_variation"] == 0.25
    assert distributions_apart(q, np.array([1.0, 0, 0])) == {"kl": None, "total_variation": 0.75}
    got = vectors_apart(np.array([3, 4], np.float32), np.array([4, 3], np.float32))
    assert got == {"equal": False, "distance": pytest.approx(np.sqrt(2) / 5), "cosine": pytest.approx(24 / 25)}
    nothing = np.zeros(2, np.float32)
    assert vectors_apart(nothing, nothing) == {"equal": True, "distance": None, "cosine": None}


def test_small_comparisons() -> None:
    a, b = shared_ids([b"a", b"b", b"", b"a"], [b"x", b"b", b"a", b"a", b""])
    assert a.tolist() == [1, 0] and b.tolist() == [1, 2]
    assert text_apart("same", "same") is None
    assert text_apart("abcd", "abXcd") == {"character": 2, "before": "ab", "a": "", "b": "X"}
    assert text_apart("aa", "aaa") == {"character": 2, "before": "aa", "a": "", "b": "a"}
    assert candidates_apart({1: {"p_raw": 0.5}}, {2: {"p_raw": 0.5}}) == {"listed_in_both": 0}


# --- what is only partly there ---


def test_runs_that_kept_less(bigram: glassbox.Model, run: glassbox.Run, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        kept = {}
        for level, retain in (("ids", "text"), ("look", "ids"), ("look", "none")):
            made = bigram.generate("ab", seed=7, max_tokens=4, store=store, level=level, retain=retain)  # type: ignore[arg-type]
            kept[level, retain] = store.load(made.run_id)
    d = checked(diff(run, kept["ids", "text"]))
    assert d.equal and not d.not_compared
    d = checked(diff(run, kept["look", "ids"]))
    assert d.equal and d.not_compared == ("prompt",) and "B has no prompt_text" in d.stages["prompt"].says
    assert d.stages["text"].says == "the same 4 tokens, the text was not kept"
    d = checked(diff(run, kept["look", "none"]))
    assert d.equal and {"prompt", "ids", "embedding", "layers", "logits", "draw", "text"} == set(d.not_compared)
    assert d.sentence.startswith("equal as far as they could be compared; not compared: prompt, ids")


@pytest.mark.model
@pytest.mark.parametrize("retain", ["ids", "none"])
def test_what_a_template_was_given_is_no_difference_where_it_was_not_kept(
    smollm2: glassbox.Model, tmp_path: Path, retain: str
) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Name a bird."}], "seed": 7, "max_tokens": 2}
    with glassbox.open_store(tmp_path / "runs.db") as store:
        less = store.load(smollm2.generate(store=store, retain=retain, **asked).run_id)  # type: ignore[arg-type]
    for pair in ((smollm2.generate(**asked), less), (less, smollm2.generate(**asked))):
        d = checked(diff(*pair))
        assert d.equal and d.stages["template"].same is None
        assert "gave the template was not kept" in d.stages["template"].says
    assert checked(diff(less, less)).equal


def test_an_interrupted_run(bigram: glassbox.Model, run: glassbox.Run) -> None:
    cut = replace(run, steps=run.steps[:2], outcome=None, status="interrupted")
    d = checked(diff(run, cut))
    assert d.first == "text" and d.aligned == 2 and same(d)["logits"] is True
    assert d.stages["ending"].says == "length (max_tokens 4) against interrupted"
    nothing = replace(run, steps=(), outcome=None, status="interrupted")
    d = checked(diff(run, nothing))
    assert same(d)["logits"] is None and "no step that both have" in d.stages["logits"].says


def test_a_capture_from_elsewhere(bigram: glassbox.Model, run: glassbox.Run, tmp_path: Path) -> None:
    """Text, ids and the logprobs of what was chosen: no hash, no ledger, no draw."""
    steps = [{"id": s.id, "logprob_raw": round(s.choice.logprob_raw, 5)} for s in run.steps]
    given = captured(run, "prompt_text", "prompt_ids", "text", "finish_reason", steps=steps, model="elsewhere")
    path = tmp_path / "capture.json"
    path.write_text(json.dumps(given))
    assert diff(run, captured(run, "text")).stages["text"].says == "the texts are the same"
    assert diff(run, {"text": "other"}).stages["text"].same is False
    d = checked(diff(run, path))
    assert d.equal and d.not_compared == ("template", "embedding", "layers", "policy", "draw")
    assert d.stages["logits"].says.startswith("no hash to prove it, but what 4 steps list is within ")
    assert d.stages["draw"].says == "not compared: the steps of B have no u"
    assert d.stages["layers"].says == "not compared: B is a capture, with no run to compute again"
    steps[2]["logprob_raw"] -= 0.25
    d = checked(diff(run, given))
    assert d.first == "logits" and "from step 2 on: what is listed differs, by 0.25" in d.stages["logits"].says
    assert "before it, template, embedding, layers could not be compared" in d.sentence


def test_a_model_that_is_not_here(run: glassbox.Run, bigram: glassbox.Model) -> None:
    other = bigram.generate("abc", seed=7, max_tokens=4)
    gone = replace(other, opened=None, request=replace(other.request, model="/no/such/model.gguf"))
    d = checked(diff(run, gone))
    assert (
        d.first == "prompt" and d.stages["layers"].says == "not compared: B's model, /no/such/model.gguf, is not here"
    )
    assert d.stages["logits"].same is False and "their hashes differ, by" in d.stages["logits"].says
    foreign = replace(other, provenance=replace(other.provenance, model_sha256="another"))
    assert "B was made by another model than the bigram that is here" in diff(run, foreign).stages["layers"].says


def test_what_its_model_does_not_give_again_is_not_compared(run: glassbox.Run) -> None:
    """Its steps have other hashes than these logits: what is computed now is not what was computed then."""
    strange = replace(run, steps=(replace(run.steps[0], logits_hash="0" * 16), *run.steps[1:]))
    d = checked(diff(run, strange))
    assert d.stages["layers"].same is None and d.stages["layers"].says == (
        "not compared: B's model does not give the recorded logits again: it was run in another way"
    )


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ([1], "B is not a run"), ({"prompt_ids": "12"}, "prompt_ids must be a list of whole numbers"),
        ({"steps": [{"id": "x"}]}, r"steps\[0\].id must be a whole number"), ({"policy": 3}, "policy must be an obj"),
        ({"steps": [3]}, "steps must be a list of objects"), ({"prompt_text": ["a"]}, "prompt_text must be a text"),
    ],
)  # fmt: skip
def test_what_is_no_run(run: glassbox.Run, what: Any, words: str) -> None:
    with pytest.raises(PromptError, match=words):
        diff(run, what)


def test_nothing_to_compare(run: glassbox.Run, tmp_path: Path) -> None:
    d = checked(diff({}, {}))
    assert d.equal and d.sentence == "nothing could be compared"
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(PromptError, match="is not JSON"):
        diff(run, tmp_path / "x.json")
    with pytest.raises(OSError, match="No such file"):
        diff(run, tmp_path / "none.json")


# --- the command ---


def test_the_command(bigram: glassbox.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = str(tmp_path / "one.db"), str(tmp_path / "two.db")
    with glassbox.open_store(one) as store:
        a = bigram.generate("ab", seed=7, max_tokens=4, store=store)
        b = bigram.generate("abc", seed=7, max_tokens=4, policy=Policy(temperature=0.5, top_k=2), store=store)
    with glassbox.open_store(two) as store:
        c = bigram.generate("ab", seed=7, max_tokens=4, store=store)
    assert invoke(["diff", a.run_id, a.run_id, "--store", one]) == 0
    assert "result   equal in all 10 stages" in capsys.readouterr().out
    assert invoke(["diff", a.run_id, c.run_id, "--store", one, "--store-b", two]) == 0
    capsys.readouterr()
    assert invoke(["diff", a.run_id, b.run_id, "--store", one]) == 1
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80 and "\x1b" not in out
    for piece in ("result   prompt differs first", "= template", "≠ prompt", "≠ policy", "ids around position 2"):
        assert piece in out, piece
    path = tmp_path / "c.json"
    path.write_text(json.dumps(c.to_dict()))
    assert invoke(["diff", a.run_id, str(path), "--store", one, "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["equal"] and got["first"] is None and [s["stage"] for s in got["stages"]] == NAMES
    for wrong, words in ((str(tmp_path / "no.json"), "No such file"), ("zzz", "no run 'zzz'")):
        assert invoke(["diff", a.run_id, wrong, "--store", one]) == 2
        assert words in capsys.readouterr().err


STRANGE: list[Any] = [None, True, 0, -1, 1 << 70, 0.5, float("nan"), float("inf"), "", "x", [], [1], ["x"], [None], {}]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every value inside, at most two of each list."""
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:2] if isinstance(value, list) else ()
    return [p for key, item in inner for p in ((*path, key), *places(item, (*path, key)))]


@pytest.mark.slow
def test_strange_values_are_refused_or_compared(bigram: glassbox.Model) -> None:
    run = bigram.generate("ab", seed=7, max_tokens=2, policy=Policy(top_k=2))
    whole = json.dumps(run.to_dict())
    for path in places(json.loads(whole)):
        for strange in STRANGE:
            changed = json.loads(whole)
            inside = changed
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = strange
            for pair in ((run, changed), (changed, changed)):
                try:
                    checked(diff(*pair))
                except PromptError as e:
                    assert str(e).isprintable() and len(str(e)) < 300


def test_one_model_is_opened_once(bigram: glassbox.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        made = [bigram.generate(text, seed=7, max_tokens=2, store=store) for text in ("ab", "abc")]
        one, other = (store.load(run.run_id) for run in made)
    opened: list[str] = []

    def opening(name: str, **how: Any) -> glassbox.Model:
        opened.append(name)
        return bigram

    monkeypatch.setattr(glassbox.Run, "opening", staticmethod(opening))
    d = checked(diff(one, other))
    assert d.stages["embedding"].same is False and opened == ["bigram"]
    assert d.stages["ids"].same is False and diff(one, one).equal and opened == ["bigram"]
    checked(diff(one, replace(other, provenance=replace(other.provenance, kv="f16"))))
    assert opened == ["bigram"] * 2  # one that keeps keys and values in another way is another


def test_long_values_are_cut_in_words_only(bigram: glassbox.Model, run: glassbox.Run) -> None:
    sequences = tuple((0, 0, i % 4, i // 4 % 4, i // 16) for i in range(40))
    other = bigram.generate("ab", seed=7, max_tokens=4, policy=Policy(banned_sequences=sequences))
    d = checked(diff(run, other))
    assert d.first == "policy" and len(d.stages["policy"].says) < 150
    assert len(d.stages["policy"].evidence["values"]["banned_sequences"][1]) == 40
