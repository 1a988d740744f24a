"""Several samples of one prompt at once: each its own draws, each the bits it has alone, the prompt computed once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_beam import tiny

import glassbox
from glassbox.cli.app import invoke
from glassbox.errors import EmptySupport, ParameterError
from glassbox.model.bigram import BigramModel
from glassbox.model.execute import Part
from glassbox.policy.policy import Policy

PROMPT = [(7 * i) % 100 for i in range(41)]  # a page of 32 and a part of the next


def bits(run: Any) -> list[Any]:
    return [(s.id, s.logits_hash, s.choice.u) for s in run.steps]


def test_sample_0_is_the_single_run_and_the_others_differ() -> None:
    for case in ("llama-a", "gemma3-b"):
        runs = tiny(case, threads=2).samples(ids=PROMPT, n=5, seed=11, max_tokens=12)
        assert bits(runs[0]) == bits(tiny(case).generate(ids=PROMPT, seed=11, max_tokens=12))
        assert [r.request.sequence for r in runs] == [0, 1, 2, 3, 4]
        assert len({r.ids for r in runs}) == 5
        assert runs[0].steps[0].logits_hash == runs[4].steps[0].logits_hash
        for i, run in enumerate(runs):
            alone = tiny(case).generate(ids=PROMPT, seed=11, sequence=i, max_tokens=12, reuse=False)
            assert bits(run) == bits(alone)
            assert {s.choice.counter for s in run.steps} == {(11, i, s.position) for s in run.steps}


def test_the_prompt_is_computed_once() -> None:
    """All but its last id: that one's logits are needed. And they go through the model together."""
    model = tiny("llama-a")
    real, passes = model.model.forward_parts, []

    def counted(parts: list[Part], *more: Any) -> Any:
        passes.append([len(p.ids) for p in parts])
        return real(parts, *more)

    model.model.forward_parts = counted  # type: ignore[method-assign]
    runs = model.samples(ids=PROMPT, n=4, seed=1, max_tokens=8)
    assert [r.usage.cached_tokens for r in runs] == [0, 40, 40, 40]
    assert sum(map(sum, passes)) == len(PROMPT) + 3 + 4 * 7
    assert max(map(len, passes)) == 4 and len(passes) <= 8 + 3
    assert model.engine.prefixes is not None and not model.engine.running
    model.engine.prefixes.clear()
    assert model.model.new_cache().pool.used == 0


def test_one_seed_is_drawn_for_all() -> None:
    runs = glassbox.load("bigram").samples("ab", n=3, max_tokens=3)
    assert len({r.seed for r in runs}) == 1 and len({r.request.group for r in runs}) == 1
    (one,) = glassbox.load("bigram").samples("ab", n=1, max_tokens=3)
    assert one.request.group is None and one.request.sequence == 0


def test_the_store_knows_that_they_belong_together(tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "s.db") as store:
        runs = glassbox.load("bigram").samples("ab", n=3, seed=2, max_tokens=3, store=store)
        lines = store.runs()
        assert [line.id for line in lines] == [r.run_id for r in reversed(runs)]
        assert [line.sequence for line in lines] == [2, 1, 0]
        assert {line.group for line in lines} == {runs[0].request.group} != {None}
        assert [store.load(r.run_id) for r in runs] == runs


def test_more_than_run_at_a_time() -> None:
    runs = glassbox.load("bigram").samples("ab", n=70, seed=2, max_tokens=3)
    assert [len(r.ids) for r in runs] == [3] * 70


def test_an_error_ends_all_and_leaves_nothing() -> None:
    model = tiny("llama-a")
    with pytest.raises(EmptySupport):
        model.samples(ids=[1], n=3, policy=Policy(allowed_ids=(5, 6), no_repeat_ngram_size=1), max_tokens=5)
    assert model.engine.prefixes is not None and not model.engine.running and not model.engine.waiting
    model.engine.prefixes.clear()
    assert model.model.new_cache().pool.used == 0


@pytest.mark.parametrize("n", [0, -1, True, 1.0, 1001, "2"])
def test_how_many_is_a_number(n: Any) -> None:
    with pytest.raises(ParameterError) as e:
        glassbox.load("bigram").samples("ab", n=n)
    assert e.value.param == "n"


def test_samples_are_not_searched() -> None:
    with pytest.raises(ParameterError) as e:
        glassbox.load("bigram").samples("ab", n=2, beam=glassbox.Beam(2))
    assert e.value.param == "beam"


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    asked = ["trace", "ab", "--model", "bigram", "--seed", "3", "--max-tokens", "5", "--store", str(tmp_path / "s.db")]

    def glass(*more: str) -> str:
        command = [sys.executable, "-m", "glassbox", *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    samples = json.loads(glass(*asked, "--n", "3", "--json"))["samples"]
    one = json.loads(glass(*asked, "--json"))
    assert [s["sequence"] for s in samples] == [0, 1, 2]
    assert [s["logits_hash"] for s in samples[0]["steps"]] == [s["logits_hash"] for s in one["steps"]]
    text = glass(*asked, "--n", "3")
    for s in samples:
        total = sum(step["logprob_final"] for step in s["steps"])
        assert f"sample {s['sequence']}  run" in text and f"sum of logprobs {total:.4f}" in text
        assert s["text"] in text
    assert f"{samples[0]['group']}, sample 2" in glass("runs", "--store", str(tmp_path / "s.db"))


def test_each_end_is_told_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What they share before the first pass, an end before the passes that the others still need."""
    seen, said, work = list[int](), "", BigramModel.forward_parts

    def watched(*arguments: Any) -> Any:
        nonlocal said
        said += capsys.readouterr().out
        assert "prompt " in said and "seed     3" in said
        seen.append(said.count("ended    sample"))
        return work(*arguments)

    monkeypatch.setattr(BigramModel, "forward_parts", watched)
    asked = ["trace", "ab", "--model", "bigram", "--seed", "3", "--max-tokens", "30", "--stop", "b", "--n", "4"]
    assert invoke([*asked, "--store", str(tmp_path / "s.db")]) == 0
    said += capsys.readouterr().out
    assert seen == sorted(seen) and seen[0] == 0 and len(set(seen)) > 1
    live, report = said.split("sample 0  run")
    assert live.count("ended    sample") == 4 and report.count("stop     stop (stop_string 'b')") == 4
    assert all(len(line) <= 80 for line in said.splitlines())


def test_numbers_of_samples_end_with_64_bits() -> None:
    """Refused before the first is drawn, not by the last one's draw."""
    model = glassbox.load("bigram")
    with pytest.raises(ParameterError, match="sequence is 18446744073709551615, but must be"):
        model.samples("ab", n=2, sequence=2**64 - 1, max_tokens=3)
    last = model.samples("ab", n=2, sequence=2**64 - 2, seed=1, max_tokens=3)[1]
    assert last.request.sequence == 2**64 - 1 and len(last.steps) == 3
