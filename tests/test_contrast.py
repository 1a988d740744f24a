"""The steps that go by more than one row of logits, and mirostat: by hand, in generation, and with neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tiny_weights

from glassbox.cache.pages import Cache
from glassbox.engine import Engine
from glassbox.errors import OutOfMemory, ParameterError
from glassbox.events import Step
from glassbox.generation import Generation
from glassbox.model.bigram import METADATA, BigramModel
from glassbox.model.model import TransformerModel, forward
from glassbox.opening import prefix_store
from glassbox.passes import dola_layers, passes_for, unit
from glassbox.policy.policy import Policy
from glassbox.policy.step import Views
from glassbox.request import Request
from glassbox.text.segments import Segment
from glassbox.text.tokenizer import Encoding, Tokenizer

CASES, _ = tiny_weights.load()
TOKENIZER = Tokenizer.from_gguf({**METADATA, "tokenizer.ggml.tokens": [f"t{i}" for i in range(123)],
                                 "tokenizer.ggml.token_type": [1] * 123})  # fmt: skip
POLICIES = {
    "guidance": Policy(guidance_scale=1.6, negative_ids=(5, 40, 7), temperature=0.0),
    "dola": Policy(dola_layers=(0, 1), temperature=0.0),
    "contrastive": Policy(penalty_alpha=0.6, top_k=5),
}


def model_of(case: str, threads: int = 1, **how: int) -> TransformerModel:
    return TransformerModel(tiny_weights.checkpoint(case, CASES), threads=threads, **how)


def sequence(model: TransformerModel, policy: Policy, ids: list[int], n: int = 10, seed: int = 3) -> Generation:
    encoding = Encoding(
        ids=tuple(ids), spans=((0, 0),) * len(ids), kinds=("normal",) * len(ids), segments=(0,) * len(ids),
        segment_list=(Segment("ids", None, "", trusted=True),), text="",
    )  # fmt: skip
    request = Request("m", encoding, policy, seed, n, ignore_eos=True)
    return Generation(request, TOKENIZER, model.new_cache(), model.context, passes_for(model, policy, ids))


def run(model: TransformerModel, policy: Policy, ids: list[int], n: int = 10) -> list[Step]:
    return list(Engine(model).stream(sequence(model, policy, ids, n)))


def rows(model: TransformerModel, ids: list[int], look: list[str]) -> tuple[Any, dict[str, Any]]:
    """All at once, without a cache that was there before."""
    cache = Cache(model.pool)
    found = forward(model, ids, cache, look, rows="all")
    cache.release()
    return found


def log_softmax(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64) - x.max()
    return np.asarray(y - np.log(np.exp(y).sum()))


def next_guided(model: TransformerModel, policy: Policy, prompt: list[int], output: list[int]) -> int:
    c = log_softmax(rows(model, prompt + output, [])[0][-1])
    n = log_softmax(rows(model, [*policy.negative_ids, *output], [])[0][-1])
    return int((n + policy.guidance_scale * (c - n)).argmax())


def next_dola(model: TransformerModel, policy: Policy, prompt: list[int], output: list[int]) -> int:
    points = [f"resid_pre.{i}" for i in policy.dola_layers]
    logits, seen = rows(model, prompt + output, points)
    p, best, far = log_softmax(logits[-1]), np.empty(0), -1.0
    for q in (log_softmax(model.lens(seen[x][-1:])[0]) for x in points):
        m = np.logaddexp(p, q) - math.log(2)
        apart = float((np.exp(m) * (m - (p + q) / 2)).sum())
        best, far = (p - q, apart) if apart > far else (best, far)
    return int(np.where(p >= p.max() + math.log(0.1), best, -np.inf).argmax())


def next_contrastive(model: TransformerModel, policy: Policy, prompt: list[int], output: list[int]) -> int:
    ids = prompt + output
    p = np.exp(log_softmax(rows(model, ids, [])[0][-1]))
    found = []
    for i in np.argsort(-p, kind="stable")[: policy.top_k].tolist():
        h = rows(model, [*ids, i], ["final_norm"])[1]["final_norm"].astype(np.float64)
        h /= np.linalg.norm(h, axis=1, keepdims=True)
        found.append(
            ((1 - policy.penalty_alpha) * p[i] - policy.penalty_alpha * (h[:-1] @ h[-1]).max(), -len(found), i)
        )
    return int(max(found)[2])


ORACLES = {"guidance": next_guided, "dola": next_dola, "contrastive": next_contrastive}


@pytest.mark.parametrize("case", ["llama-b", "gemma2-b", "mistral-b"])  # the last two with windows that are passed
@pytest.mark.parametrize("name", POLICIES)
def test_generation_equals_an_uncached_oracle(name: str, case: str) -> None:
    model, prompt, output = model_of(case), tiny_weights.ids_of(case, 123)[:9], []
    for step in run(model, POLICIES[name], prompt):
        assert step.id == ORACLES[name](model, POLICIES[name], prompt, output)
        output.append(step.id)
        params = next(r for r in step.ledger if r.name == name).params
        assert {"guidance": "guidance_scale", "dola": "layer", "contrastive": "similarity"}[name] in params
    assert model.pool.used == 0


@pytest.mark.parametrize("name", POLICIES)
def test_neighbours_threads_and_reuse_change_no_bit(name: str) -> None:
    prompt = [*tiny_weights.ids_of("llama-b", 123), 3, 4]
    right = [(s.id, s.logits_hash, s.ledger) for s in run(model_of("llama-b"), POLICIES[name], prompt)]
    model = model_of("llama-b", threads=2)
    engine = Engine(model, prefix_store(model, "m"))
    for _ in range(2):
        every = [sequence(model, p, prompt) for p in (*POLICIES.values(), Policy())]
        for g in every:
            engine.add(g)
        while not all(g.done for g in every):
            engine.step()
        mine = every[list(POLICIES).index(name)]
        assert [(s.id, s.logits_hash, s.ledger) for s in mine.inbox if isinstance(s, Step)] == right
    assert engine.prefixes is not None
    engine.prefixes.clear()
    assert model.pool.used == 0


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("after", [1, 3])
def test_cancelled_it_holds_no_page(name: str, after: int) -> None:
    model = model_of("mistral-b")
    stream = Engine(model).stream(sequence(model, POLICIES[name], list(range(1, 30))))
    for _ in range(after):
        next(stream)
    stream.close()
    assert model.pool.used == 0


def test_the_pages_of_a_negative_prompt_are_counted_before_they_are_taken() -> None:
    """2 ids and 31 tokens lie in 2 pages, and so do 3 ids and 31 tokens; each may come to need one more."""
    need = 6 * model_of("llama-b").pool.shape.page_bytes(0)
    assert len(run(model_of("llama-b", kv_limit=need), POLICIES["guidance"], [4, 8], 31)) == 31
    with pytest.raises(OutOfMemory, match=f"a sequence of up to 33 positions needs {need:,} bytes"):
        run(model_of("llama-b", kv_limit=need - 1), POLICIES["guidance"], [4, 8], 31)


def test_mirostat_is_llama_cpps_over_a_whole_sequence() -> None:
    rng, mu, tau, eta = np.random.default_rng(8), 10.0, 5.0, 0.1
    policy = Policy.preset("llama.cpp", mirostat_tau=tau, mirostat_eta=eta, temperature=0.8)
    assert policy.order == ("logit_bias", "temperature", "mirostat") and policy.top_k == 0
    drawn: list[float] = []
    for _ in range(60):
        logits = (rng.standard_normal(500) * 2).astype(np.float32)
        p = np.exp(log_softmax(logits.astype(np.float64) / 0.8))
        order = np.argsort(-p, kind="stable")
        over = np.flatnonzero(-np.log2(p[order]) > mu)
        size = max(1, int(over[0]) if len(over) else len(p))
        s = policy.shape(logits, [1], [0] * len(drawn), logprobs=drawn)
        assert sorted(order[:size].tolist()) == np.flatnonzero(s.final.alive()).tolist()
        assert s.ledger[-1].params["mu"] == pytest.approx(mu, abs=1e-9)
        chosen = int(order[rng.integers(size)])
        surprise = -math.log2(p[chosen] / p[order[:size]].sum())
        assert s.final_logprob(chosen) == pytest.approx(-surprise * math.log(2), abs=1e-12)
        mu -= eta * (surprise - tau)
        drawn.append(s.final_logprob(chosen))


def test_a_generation_hands_mirostat_what_it_drew() -> None:
    steps = run(model_of("llama-b"), Policy(mirostat_tau=2.0, mirostat_eta=0.3), [4, 8, 15], 12)
    mu = 4.0
    for s in steps:
        assert s.ledger[-1].params["mu"] == pytest.approx(mu, abs=1e-9)
        mu -= 0.3 * (-s.choice.logprob_final / math.log(2) - 2.0)


def test_a_longer_prompt_of_its_own_ends_the_context_sooner() -> None:
    model = model_of("llama-b")
    policy = Policy(guidance_scale=1.6, negative_ids=(5, 40, 7, 9, 5, 40), temperature=0.0)
    made = sequence(model, policy, [4, 8], n=model.context)
    steps = list(Engine(model).stream(made))
    assert made.outcome is not None and made.outcome.ending.kind == "context_end"
    assert len(steps) == model.context - 6  # the negative prompt and the output fill it


def test_what_cannot_be_is_refused_by_name() -> None:
    bigram = BigramModel()
    for param, policy in (("dola_layers", POLICIES["dola"]), ("penalty_alpha", POLICIES["contrastive"])):
        with pytest.raises(ParameterError, match="has no layers") as caught:
            passes_for(bigram, policy, [1])  # type: ignore[arg-type]
        assert caught.value.param == param
    for wrong, named in (
        ({"penalty_alpha": 0.5}, "top_k"), ({"penalty_alpha": 0.5, "top_k": 4, "temperature": 0.0}, "penalty_alpha"),
        ({"negative_ids": [1]}, "negative_ids"), ({"dola_layers": "middle"}, "dola_layers"),
    ):  # fmt: skip
        with pytest.raises(ParameterError) as caught:
            Policy(**wrong)  # type: ignore[arg-type]
        assert caught.value.param == named
    for policy in POLICIES.values():
        with pytest.raises(ParameterError, match="views"):
            policy.shape([1, 2, 3])
    with pytest.raises(ParameterError, match="dola_layers"):
        passes_for(model_of("llama-b"), Policy(dola_layers=(7,)), [1])
    with pytest.raises(ParameterError, match="logprobs"):
        Policy(mirostat_tau=3).shape([1, 2], [], [0])


def test_layers_as_transformers_counts_them() -> None:
    assert dola_layers("low", 32, tied=False) == tuple(range(0, 16, 2))
    assert dola_layers("low", 30, tied=True) == tuple(range(2, 15, 2))
    assert dola_layers("high", 32, tied=False) == tuple(range(16, 32, 2))
    assert dola_layers("low", 48, tied=False) == tuple(range(0, 20, 2))
    assert dola_layers("high", 48, tied=True) == tuple(range(28, 48, 2))
    assert dola_layers("low", 2, tied=True) == (1,) and dola_layers("low", 4, tied=True) == (2,)


def test_the_steps_by_hand() -> None:
    c, n = np.log([0.5, 0.3, 0.2]), np.log([0.6, 0.1, 0.3])
    s = Policy(guidance_scale=2.0).shape(c, views=Views(negative=n.astype(np.float32)))
    np.testing.assert_allclose(s.probs, np.array([0.25 / 0.6, 0.9, 0.4 / 3]) / (0.25 / 0.6 + 0.9 + 0.4 / 3), rtol=1e-6)
    layers = {2: c.astype(np.float32), 4: n.astype(np.float32)}
    s = Policy(dola_layers=(2, 4)).shape(c, views=Views(layers=layers))
    assert s.ledger[1].params["layer"] == 4 and s.final.best == 1
    alike = Views(similarity=lambda ids: np.array([0.9, 0.1])[: len(ids)])
    s = Policy(penalty_alpha=0.5, top_k=2).shape(c, views=alike)  # .25 - .45 against .15 - .05
    assert s.final.best == 1 and s.ledger[-1].params["score"] == pytest.approx(0.1, rel=1e-6)


def test_a_hidden_state_of_zeros_is_like_none() -> None:
    """0 / 0 would be NaN, which argmax takes for the largest and a trace cannot say."""
    found = unit(np.array([[0.0, 0.0], [3.0, 4.0]], np.float32))
    assert found.tolist() == [[0.0, 0.0], [0.6, 0.8]]
