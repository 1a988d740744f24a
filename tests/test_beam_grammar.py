"""Beams in a grammar: against exhaustive search; and each beam's state against a sequence that was never forked."""

from __future__ import annotations

import time
from collections import Counter
from functools import cache
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf

import glassbox
from glassbox import Beam, Model, Policy, Run
from glassbox.choose import Choice
from glassbox.generation import Generation

CHOICES = ["ab", "abab", "abc", "b", "bab!", "cab"]
EOS = 95


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return glassbox.load(
        random_gguf.write(path, "gemma3", "gemma3", [gguf.GGMLQuantizationType.F32], tied=False), threads=1
    )


def every_way(model: Model, prompt: list[int], temperature: float) -> dict[tuple[int, ...], float]:
    """Each sequence of ids that says one of CHOICES, with its log probability: by strings alone, no parser."""
    tokens = {i: model.tokenizer.vocab.bytes_of(i).decode() for i in range(EOS)}
    found: dict[tuple[int, ...], float] = {}

    def go(ids: tuple[int, ...], total: float) -> None:
        said = "".join(tokens[i] for i in ids)
        allowed = [i for i, t in tokens.items() if any(c.startswith(said + t) for c in CHOICES)]
        if said in CHOICES and not allowed:  # nothing but an end could follow
            found[ids] = total
            return
        allowed += [EOS] if said in CHOICES else []
        z = model.logits([*prompt, *ids])[-1][allowed].astype(np.float64) / temperature
        p = z - np.logaddexp.reduce(z)
        for i, logprob in zip(allowed, p.tolist(), strict=True):
            if i == EOS:
                found[*ids, EOS] = total + logprob
            else:
                go((*ids, i), total + logprob)

    go((), 0.0)
    return found


@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.7])
def test_equals_exhaustive_search_over_what_a_grammar_allows(model: Model, penalty: float) -> None:
    prompt = [3, 5, 70, 41, 5, 66]
    right = every_way(model, prompt, 2.0)
    assert len(right) == 13  # "ab" is one token or two: ab 2, abab 4, abc 2, b 1, bab! 2, cab 2
    run = model.beam_search(
        ids=prompt, beam=Beam(32, penalty, returned=32), max_tokens=9,
        policy=Policy(2.0, grammar={"choice": CHOICES}),
    )  # fmt: skip
    assert run.beams is not None
    got = {h.ids: h for h in run.beams.hypotheses}
    assert set(got) == set(right)
    for ids, total in right.items():
        assert got[ids].total == pytest.approx(total, abs=1e-5)
        assert got[ids].score == pytest.approx(total / len(ids) ** penalty, abs=1e-5)
        assert got[ids].text == "".join(model.tokenizer.vocab.bytes_of(i).decode() for i in ids if i != EOS)
    best = max(right, key=lambda ids: right[ids] / len(ids) ** penalty)
    assert run.ids == best and run.replay(model).equal


def unforked(model: Model, run: Run) -> Counter[str]:
    """Every candidate of a search against a sequence of its own, fed with the same ids from the beginning. How they
    ended is counted."""
    assert run.beams is not None
    logits = cache(lambda ids: model.logits(ids)[-1])
    ended: Counter[str] = Counter()
    for row in run.beams.rows:
        path = run.beams.path(row)
        alone = Generation(run.request, model.tokenizer, model.model.new_cache(), model.context)
        for n, r in enumerate(path):
            assert not alone.done
            shaped = alone.shape(logits(tuple(alone.ids)))
            logprob = shaped.final_logprob(r.id)
            choice = Choice(r.id, None, 0.0, 1.0, None, shaped.raw_logprob(r.id), logprob, shaped.raw_rank(r.id), 0)
            step = alone.take(choice, shaped, 0, time.perf_counter_ns())
            assert (r.logprob, r.text, r.bytes) == (logprob, step.text, step.bytes)
            if path == run.beams.winner:
                kept = run.steps[n]
                assert (kept.text_offset, kept.ledger, kept.candidates) == (
                    step.text_offset, step.ledger, step.candidates,
                )  # fmt: skip
        assert alone.done if row.state == "finished" else not alone.done or row.state == "dropped"
        if alone.outcome is not None:
            ended[alone.outcome.ending.kind] += 1
        if path == run.beams.winner:
            assert alone.outcome is not None and alone.outcome.text == run.text
    return ended


@pytest.mark.parametrize("include", [False, True])
def test_each_beam_has_a_past_of_its_own(model: Model, include: bool) -> None:
    """Stop strings that are begun and not ended, a grammar, min_tokens, penalties and n-grams: none leaks."""
    policy = Policy(
        6.0, grammar={"regex": "[a-c ]{3,7}!?"}, min_tokens=4, repetition_penalty=1.2, no_repeat_ngram_size=4
    )  # fmt: skip
    run = model.beam_search(
        "abc", beam=Beam(5, 1.5, "never", returned=5), policy=policy, max_tokens=9, stop=["b c", "ca", "aab"],
        include_stop=include,
    )  # fmt: skip
    assert run.beams is not None
    assert {"stop_string", "grammar", "eos"} <= set(unforked(model, run))
    assert all(len(h.ids) >= 4 for h in run.beams.hypotheses)
    assert run.replay(model).equal


@pytest.mark.model
def test_characters_of_several_tokens_are_each_beams_own(smollm2: Model) -> None:
    """Detokenizers hold bytes of characters that are not whole, the parser too."""
    grammar: dict[str, Any] = {"choice": ["🦊🐙", "🦊é", "日本", "日🐙", "é"]}
    run = smollm2.beam_search("Animals:", beam=Beam(4, returned=4), policy=Policy(grammar=grammar), max_tokens=12)
    assert run.beams is not None and unforked(smollm2, run)["grammar"] >= 2
    assert {h.text for h in run.beams.hypotheses if h.finished} <= set(grammar["choice"])
    assert run.replay(smollm2).equal
