"""Beam search: against transformers' own results, a slow oracle, exhaustive search, greedy, and the cases of C14."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import oracle_beam
import pytest
import tiny_weights

import glassbox
from glassbox import Beam, Policy
from glassbox.beam import MOST, BeamRow, Beams, Hypothesis, Pool
from glassbox.engine import CHUNK, MOST_RUNNING
from glassbox.errors import EmptySupport, OutOfMemory, ParameterError
from glassbox.model.model import TransformerModel
from glassbox.text.absent import NoTokenizer

GOLDEN = json.loads((Path(__file__).parent / "data" / "beams.json").read_text())
CASES = tiny_weights.load()[0]
TOKENS = 9
CLOSE = 1e-4


def tiny(case: str, *, eos: tuple[int, ...] = (), threads: int = 1, **how: Any) -> glassbox.Model:
    model = TransformerModel(tiny_weights.checkpoint(case, CASES), threads=threads, **how)
    return glassbox.Model(case, model, NoTokenizer(eos), {}, "0" * 64)


def searched(model: glassbox.Model, ids: list[int], beam: Beam, **how: Any) -> Beams:
    """The search, after a look at what must hold of each: the run is the best hypothesis, and no page is left."""
    run = model.beam_search(ids=ids, beam=beam, reuse=False, **{"max_tokens": TOKENS} | how)
    assert run.beams is not None
    best = run.beams.hypotheses[0]
    assert run.ids == best.ids
    assert [s.choice.logprob_final for s in run.steps] == list(best.logprobs)
    assert not model.engine.running and model.model.new_cache().pool.used == 0
    return run.beams


def same(got: tuple[Hypothesis, ...], ids: list[list[int]], scores: list[float]) -> None:
    assert [h.score for h in got] == pytest.approx(scores, abs=CLOSE)
    assert [list(h.ids) for h in got] == ids


def beam_of(s: dict[str, Any]) -> Beam:
    return Beam(
        s["num_beams"], length_penalty=s["length_penalty"], early_stopping=s["early_stopping"], returned=s["returned"]
    )


@pytest.mark.parametrize("case", sorted(GOLDEN))
def test_finds_what_transformers_finds(case: str) -> None:
    """Widths, length penalties below and above 0, the three ways to stop early, several returned."""
    golden = GOLDEN[case]
    model = tiny(case, eos=tuple(golden["eos"]))
    for s in golden["searches"]:
        same(searched(model, golden["prompt"], beam_of(s)).hypotheses, s["ids"], s["scores"])


def test_the_goldens_reach_what_they_are_for() -> None:
    """Some hypotheses end by themselves and some at the limit, and each setting changes what is found first."""
    found = [(ids, g["eos"]) for g in GOLDEN.values() for s in g["searches"] for ids in s["ids"]]
    assert 0.2 < np.mean([ids[-1] in eos for ids, eos in found]) < 0.9
    names = ("num_beams", "length_penalty", "early_stopping")
    first = {(case, *(s[n] for n in names)): s["ids"][0] for case, g in GOLDEN.items() for s in g["searches"]}
    for i, name in enumerate(names, start=1):
        pairs = itertools.combinations(first, 2)
        alike = [(a, b) for a, b in pairs if a[:i] + a[i + 1 :] == b[:i] + b[i + 1 :]]
        assert any(first[a] != first[b] for a, b in alike), name


def logprobs_of(model: glassbox.Model, prompt: list[int], policy: Policy) -> oracle_beam.Logprobs:
    """The whole sequence through the model anew, the policy's distribution in full."""

    def logprobs(output: tuple[int, ...]) -> np.ndarray:
        row = model.logits([*prompt, *output])[-1]
        with np.errstate(divide="ignore"):
            return np.log(policy.shape(row, prompt, output).probs)

    return logprobs


POLICIES = {
    "plain": Policy(),
    "warm": Policy(temperature=1.7, top_k=9),
    "own past": Policy(repetition_penalty=1.2, no_repeat_ngram_size=2, presence_penalty=0.3),
    "biased": Policy(logit_bias=((5, -100.0), (9, 1.5)), banned_ids=(7,), min_tokens=4, eos_ids=(3, 17)),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("case", ["llama-b", "gemma3-b", "mixtral-a"])
def test_finds_what_the_oracle_finds(case: str, name: str) -> None:
    """With every policy each beam has its own history; groups too, of which transformers v5 has none any more."""
    policy, eos = POLICIES[name], (3, 17)
    model, prompt = tiny(case, eos=eos), tiny_weights.ids_of(case, 100)[:8]
    for width, groups, apart, early, penalty in [
        (3, 1, 0.0, False, 1.0), (4, 2, 0.7, True, 1.0), (6, 3, 0.4, "never", 2.0), (4, 4, 1.5, False, -1.0),
    ]:  # fmt: skip
        beam = Beam(width, penalty, early, groups, apart, returned=width)
        right = oracle_beam.search(
            logprobs_of(model, prompt, policy), width=width, eos=eos, max_tokens=6, length_penalty=penalty,
            early_stopping=early, groups=groups, diversity=apart,
        )  # fmt: skip
        got = searched(model, prompt, beam, policy=policy, max_tokens=6)
        same(got.hypotheses, [list(f.ids) for f in right], [f.score for f in right])


def test_groups_differ_by_the_penalty() -> None:
    """Without a penalty the groups would be alike; with a large one no two take the same first token."""
    found = searched(tiny("llama-a"), [1, 2, 3], Beam(4, groups=4, diversity_penalty=50.0, returned=4))
    assert len({row.id for row in found.at(0) if row.state == "live"}) == 4


def test_a_token_costs_a_group_for_each_beam_before_it_that_took_it() -> None:
    """Of three ids, two beams of the first group often take the same."""
    found = searched(tiny("llama-a"), [1, 2, 3], Beam(4, groups=2, diversity_penalty=0.5),
                     policy=Policy(allowed_ids=(5, 6, 7)))  # fmt: skip
    most = 0
    for row in found.rows:
        before = [r.score for r in found.path(row)[:-1]][-1:] or [0.0]
        taken = [r.id for r in found.at(row.step) if r.group < row.group and r.state == "live"].count(row.id)
        assert row.score == pytest.approx(before[0] + row.logprob - 0.5 * taken)
        most = max(most, taken)
    assert most == 2


def test_equals_exhaustive_search() -> None:
    """4 ** 3 sequences before the last token: 64 beams lose none of them."""
    model = glassbox.load("bigram")
    right = []
    for ids in itertools.product(range(4), repeat=4):
        rows = model.logits([1, *ids[:-1]]).astype(np.float64)
        right.append((float((rows[range(4), ids] - np.log(np.exp(rows).sum(axis=1))).sum()), ids))
    right.sort(reverse=True)
    run = model.beam_search(ids=[1], beam=Beam(64, length_penalty=0.0, returned=64), max_tokens=4)
    assert run.beams is not None
    got = run.beams.hypotheses
    assert [h.score for h in got] == pytest.approx([s for s, _ in right[:64]], abs=1e-9)
    last = right[63][0] + 1e-9  # sequences tie: of those that tie with the last, any may be there
    assert {h.ids for h in got if h.score > last} == {ids for s, ids in right if s > last}


@pytest.mark.parametrize("case", ["llama-a", "gemma3-b", "gpt2-b"])
def test_one_beam_is_greedy_bit_for_bit(case: str) -> None:
    model, prompt = tiny(case, eos=(5,)), tiny_weights.ids_of(case, 100)[:20]
    for more in (Policy(), Policy(repetition_penalty=1.3), Policy(temperature=0.5)):
        greedy = model.generate(ids=prompt, policy=Policy(temperature=0, repetition_penalty=more.repetition_penalty))
        run = model.beam_search(ids=prompt, beam=1, policy=more)
        assert [(s.id, s.logits_hash, s.choice.logprob_raw) for s in run.steps] == [
            (s.id, s.logits_hash, s.choice.logprob_raw) for s in greedy.steps
        ]
        assert run.stop_reason == greedy.stop_reason


def test_threads_neighbours_and_pages_change_no_bit() -> None:
    """Alone with one thread; with two threads, beside other sequences, over a cached prompt, across a page's end."""
    prompt = tiny_weights.ids_of("gemma3-b", 100)[:30]  # a page holds 32
    beam = Beam(4, returned=4)
    alone = searched(tiny("gemma3-b"), prompt, beam, max_tokens=12)
    model = tiny("gemma3-b", threads=2)
    others = [model.stream(ids=prompt[i:], seed=i, max_tokens=20, ignore_eos=True) for i in range(3)]
    for stream in others:
        next(stream)
    run = model.beam_search(ids=prompt, beam=beam, max_tokens=12)
    assert run.beams is not None and run.beams.rows == alone.rows
    for i, stream in enumerate(others):
        assert len([stream.run.steps[0], *stream]) == 20
        own = tiny("gemma3-b").generate(ids=prompt[i:], seed=i, max_tokens=20, ignore_eos=True)
        assert [s.logits_hash for s in own.steps] == [s.logits_hash for s in stream.run.steps]


def test_a_beams_steps_can_be_recomputed_alone() -> None:
    """Each step's hash is that of the logits over the whole sequence: forked pages hold what they should."""
    from glassbox.generation import logits_hash

    model, prompt = tiny("llama-b"), tiny_weights.ids_of("llama-b", 100)[:31]
    run = model.beam_search(ids=prompt, beam=5, max_tokens=10)
    logits = model.logits([*prompt, *run.ids[:-1]])[len(prompt) - 1 :]
    assert [s.logits_hash for s in run.steps] == [logits_hash(row) for row in logits]


@pytest.mark.parametrize(
    ("early", "penalty", "total", "over"),
    [
        ("never", 1.0, -39.0, False), ("never", 1.0, -40.0, True),  # at best it has 10 tokens
        ("never", -1.0, -1.5, False), ("never", -1.0, -2.0, True),  # at best it has 2: more make it worse
        (False, 1.0, -7.5, False), (False, 1.0, -8.0, True),  # by a guess, as if it ended now; equal is no better
        (True, 1.0, -1.0, True),
    ],
)  # fmt: skip
def test_a_full_group_goes_on_while_a_live_one_can_be_better(
    early: bool | str, penalty: float, total: float, over: bool
) -> None:
    """One of score -4 has ended; what is live has 2 tokens of 10."""
    pool = Pool[str](Beam(1, length_penalty=penalty, early_stopping=early), longest=10)
    pool.settle(-1000.0, 2)
    assert not pool.over  # nothing has ended
    pool.add([(-4.0, "ended")])
    pool.settle(total, 2)
    assert pool.over == over


def test_length_and_sum_both_count_the_end() -> None:  # C14-04
    """[a, b, EOS] with -0.5 -0.5 -0.2 is -0.4, and [a, b, c] with -0.5 -0.5 -0.25 is -0.41667: the first wins."""
    rows = (
        BeamRow(0, 0, 0, 0, None, 10, -0.5, -0.5, "live"),
        BeamRow(1, 0, 0, 0, 0, 11, -0.5, -1.0, "live"),
        BeamRow(2, 0, 0, None, 0, 2, -0.2, -1.2, "finished"),
        BeamRow(2, 1, 0, None, 0, 12, -0.25, -1.25, "finished"),
    )
    found = Beams(Beam(2, returned=2), rows)
    assert [h.ids for h in found.hypotheses] == [(10, 11, 2), (10, 11, 12)]
    assert [h.score for h in found.hypotheses] == pytest.approx([-0.4, -0.4166667])
    assert [h.total for h in found.hypotheses] == pytest.approx([-1.2, -1.25])
    assert "counted in both" in found.to_dict()["rule"]


def test_every_candidate_names_its_parent() -> None:  # C14-05
    """With three endings a group looks at four candidates a beam, and a beam may give more than the width of them."""
    case = "llama-a"
    prompt = tiny_weights.ids_of(case, 100)[:8]
    model = tiny(case, eos=(3, 17, 29))
    policy = Policy(temperature=0.3)
    run = model.beam_search(ids=prompt, beam=Beam(3, returned=3), policy=policy, max_tokens=8)
    assert run.beams is not None
    logprobs, most = logprobs_of(model, prompt, policy), 0
    for row in run.beams.rows:
        path = run.beams.path(row)
        before = tuple(r.id for r in path[:-1])
        assert row.logprob == pytest.approx(logprobs(before)[row.id], abs=1e-6)
        assert row.score == pytest.approx(sum(r.logprob for r in path))
        assert (row.parent is None) == (row.step == 0)
    for step in range(1, run.beams.steps):
        parents = [row.parent for row in run.beams.at(step)]
        most = max(most, *(parents.count(p) for p in parents))
    assert most > 4


def test_the_policy_holds_in_every_beam() -> None:  # C14-06
    case = "llama-a"
    prompt = tiny_weights.ids_of(case, 100)[:8]
    plain = searched(tiny(case), prompt, Beam(3))
    hit = plain.at(0)[0].id  # what would come first is what is forbidden
    for policy in (
        Policy(banned_ids=(hit,), logit_bias=((5, -100.0),), repetition_penalty=1.2),
        Policy(banned_sequences=((hit,),)),
        Policy(logit_bias=((hit, -100.0),)),
    ):
        found = searched(tiny(case), prompt, Beam(3, returned=3), policy=policy)
        assert hit not in {row.id for row in found.rows if row.state != "dropped"}
        assert all(hit not in h.ids for h in found.hypotheses)


def test_stops_are_those_of_any_sequence() -> None:
    model = glassbox.load("bigram")
    run = model.beam_search("a", beam=Beam(4, early_stopping=True, returned=4), stop=["c a"], max_tokens=12)
    assert run.beams is not None
    said = [model.decode(h.ids) for h in run.beams.hypotheses]
    assert [h.text for h in run.beams.hypotheses] == [text.partition("c a")[0] for text in said]
    assert all(text.endswith("c a") and "c a" not in text[:-1] for text in said)
    assert run.stop_reason == {"kind": "stop_string", "text": "c a"} and "c a" not in run.text
    run = model.beam_search("a", beam=Beam(4, returned=4), stop_ids=[2], max_tokens=12)
    assert run.beams is not None
    assert any(h.ids[-1] == 2 for h in run.beams.hypotheses) and all(2 not in h.ids[:-1] for h in run.beams.hypotheses)
    short = model.beam_search("a", beam=3, max_tokens=1)
    assert short.stop_reason == {"kind": "max_tokens", "limit": 1}
    small = tiny("llama-a")
    full = small.beam_search(ids=[1] * 60, beam=3, max_tokens=None)
    assert full.stop_reason == {"kind": "context_end", "limit": 64} and len(full.ids) == 4


def test_each_token_knows_where_its_text_lies() -> None:
    """Of every hypothesis, in characters of prompt and output: each token of this model is one."""
    run = glassbox.load("bigram").beam_search("ab", beam=Beam(3), max_tokens=5)
    assert [s.text_offset for s in run.steps] == [2, 3, 4, 5, 6] and len(run.text) == 5


def test_what_was_found_is_kept_when_time_is_up() -> None:
    model = tiny("llama-a")
    stream = model.stream(ids=[1, 2, 3], beam=Beam(3, returned=2), max_tokens=50, time_limit=1e-9)
    assert list(stream) == [] and stream.run.finish_reason == "time"
    stream = model.stream(ids=[1, 2, 3], beam=Beam(3, returned=2), max_tokens=50, ignore_eos=True)
    generation = stream._generation
    model.engine.add(generation)
    for _ in range(5):
        model.engine.step()
    stream.close()
    run = stream.run
    assert run.finish_reason == "cancelled" and run.beams is not None
    assert len(run.ids) == 5 and run.ids == run.beams.hypotheses[0].ids
    assert not run.beams.hypotheses[0].finished
    model.engine.drop(generation)
    assert model.model.new_cache().pool.used == 0


def test_an_error_or_an_interrupt_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama-a")
    assert model.engine.prefixes is not None
    with pytest.raises(EmptySupport):
        model.beam_search(ids=[1, 2], beam=3, policy=Policy(allowed_ids=(5,), no_repeat_ngram_size=1), max_tokens=5)
    real, calls = model.model.forward_parts, iter(range(100))

    def interrupted(*parts: Any) -> Any:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return real(*parts)

    monkeypatch.setattr(model.model, "forward_parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.beam_search(ids=[1, 2, 3], beam=4, max_tokens=20)
    model.engine.prefixes.clear()
    assert not model.engine.running and model.model.new_cache().pool.used == 0


def test_a_beam_that_the_policy_leaves_nothing_does_not_end_the_others() -> None:
    """Three ids, none twice: after three tokens nothing is left, but by then hypotheses have ended."""
    policy = Policy(allowed_ids=(5, 6, 7), no_repeat_ngram_size=1)
    found = searched(
        tiny("llama-a", eos=(7,)), [1, 2], Beam(2, length_penalty=5.0, early_stopping="never"), policy=policy
    )
    assert found.hypotheses[0].ids[-1] == 7


def test_a_search_that_the_policy_leaves_nothing_has_what_ended_before() -> None:
    """7 ends a text; behind 5 neither may follow. Nothing of that is an error, as where no hypothesis has ended."""
    how: dict[str, Any] = dict(allowed_ids=(5, 7), no_repeat_ngram_size=1)
    found = searched(
        tiny("llama-a", eos=(7,)), [1, 2], Beam(2, returned=2), policy=Policy(banned_sequences=((5, 7),), **how)
    )
    assert [h.ids for h in found.hypotheses] == [(7,)]
    with pytest.raises(EmptySupport):
        searched(tiny("llama-a", eos=(7,)), [1, 2], Beam(2), policy=Policy(banned_ids=(7,), **how))


def test_memory_is_looked_at_before() -> None:
    model = tiny("llama-a", kv_limit=200_000)
    model.generate(ids=[1], max_tokens=60, reuse=False)
    with pytest.raises(OutOfMemory, match="a beam search of 60 sequences") as e:
        model.beam_search(ids=[1], beam=60, max_tokens=60)
    assert e.value.needed > e.value.available == 200_000


@pytest.mark.parametrize(
    ("how", "param"),
    [
        ({"width": 0}, "width"), ({"width": MOST + 1}, "width"), ({"width": True}, "width"), ({"width": 2.0}, "width"),
        ({"length_penalty": float("nan")}, "length_penalty"), ({"length_penalty": 11}, "length_penalty"),
        ({"early_stopping": "yes"}, "early_stopping"), ({"early_stopping": 1}, "early_stopping"),
        ({"groups": 3}, "groups"), ({"groups": 5}, "groups"), ({"groups": 2}, "diversity_penalty"),
        ({"diversity_penalty": 1.0}, "diversity_penalty"), ({"diversity_penalty": -1.0}, "diversity_penalty"),
        ({"returned": 5}, "returned"), ({"returned": 0}, "returned"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(how: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterError) as e:
        Beam(**{"width": 4} | how)
    assert e.value.param == param


@pytest.mark.parametrize(
    ("how", "param"),
    [
        ({"policy": Policy(temperature=0)}, "temperature"),
        ({"policy": Policy(xtc_probability=0.5)}, "xtc_probability"),
        ({"speculate": True}, "speculate"),
        ({"beam": "4"}, "beam"),
    ],
)
def test_what_does_not_go_with_beams_is_refused(how: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterError) as e:
        glassbox.load("bigram").beam_search("a", **{"beam": 4} | how)
    assert e.value.param == param


def test_all_beams_fit_into_a_pass() -> None:
    assert MOST == MOST_RUNNING <= CHUNK
