"""The two real models against transformers on the dequantised float32 weights (tests/data/golden_*).

Kept small: of each last row the likeliest 256 logits, a comb over the rest, and the whole row's logsumexp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glassbox
from glassbox.model.model import TransformerModel, forward

pytestmark = pytest.mark.model
PROMPTS = [("smollm2", i) for i in range(7)] + [("gemma3", i) for i in range(5)]
LONG = ("gemma3", 4)  # 602 tokens, past the sliding window


@pytest.fixture(params=PROMPTS, ids=lambda p: f"{p[0]}[{p[1]}]")
def case(request: pytest.FixtureRequest, golden: dict[str, Any]) -> tuple[glassbox.Model, dict[str, Any]]:
    stem, index = request.param
    return request.getfixturevalue(stem), golden[stem]["prompts"][index]


def logprob(z: np.ndarray, i: int) -> float:
    z = z.astype(np.float64)
    z -= z.max()
    return float(z[i] - np.log(np.exp(z).sum()))


def test_ids(case: tuple[glassbox.Model, dict[str, Any]]) -> None:
    model, p = case
    encoding = model.encode_chat(p["messages"]) if p["messages"] else model.encode(p["prompt_text"])
    assert list(encoding.ids) == p["ids"]
    if p["messages"]:
        assert encoding.text == p["prompt_text"]


def test_logits_logprobs_and_residuals(case: tuple[glassbox.Model, dict[str, Any]]) -> None:
    model, p = case
    layers = model.model.layers
    points = [f"resid_post.{i}" for i in range(layers - 1)]  # the golden's last is after the final norm
    seen = model.observe(p["ids"], [*points, "final_norm", "logits", "embed"])
    logits = seen["logits"]
    assert np.abs(logits[-1][p["logit_ids"]] - p["logits"]).max() <= 2e-3
    assert abs(np.log(np.exp(logits[-1].astype(np.float64)).sum()) - p["logsumexp"]) <= 2e-3
    given = [logprob(row, i) for row, i in zip(logits[:-1], p["ids"][1:], strict=True)]
    assert p["prompt_logprobs"][0] is None
    assert np.abs(np.array(given) - np.array(p["prompt_logprobs"][1:])).max() <= 2e-3
    for i, name in enumerate(["embed", *points, "final_norm"]):
        right = p["resid"][i]
        assert np.abs(seen[name][-1] - right).max() / np.abs(right).max() <= 1e-3, name


def test_greedy_ids(case: tuple[glassbox.Model, dict[str, Any]]) -> None:
    model, p = case
    run = model.generate(ids=p["ids"], policy=glassbox.Policy(temperature=0), max_tokens=32, ignore_eos=True)
    assert list(run.ids) == p["greedy_ids"]


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.slow
def test_chunks_change_no_bit(case: tuple[glassbox.Model, dict[str, Any]], chunk: int) -> None:
    model, p = case
    ids = p["ids"] if chunk > 1 else p["ids"][:100]
    assert forward_bytes(model, ids) == forward_bytes(model, ids, chunk=chunk)


def test_one_thread_and_two_give_the_same_bits(smollm2: glassbox.Model, golden: dict[str, Any]) -> None:
    one = glassbox.load("smollm2-135m", threads=1)
    two = glassbox.load("smollm2-135m", threads=2)
    for p in golden["smollm2"]["prompts"]:
        assert forward_bytes(one, p["ids"]) == forward_bytes(two, p["ids"])


def test_one_thread_and_two_give_the_same_bits_on_gemma(gemma3: glassbox.Model, golden: dict[str, Any]) -> None:
    model = gemma3.model
    assert isinstance(model, TransformerModel)
    other = glassbox.load("gemma3-270m", threads=1 if model.threads > 1 else 2)
    for p in golden["gemma3"]["prompts"]:
        assert forward_bytes(gemma3, p["ids"]) == forward_bytes(other, p["ids"])


@pytest.mark.slow
def test_cached_equals_uncached(case: tuple[glassbox.Model, dict[str, Any]]) -> None:
    """Half of the prompt, then its last ids one by one, as decoding does, also past the window; and warm runs."""
    model, p = case
    ids, alone = p["ids"], min(30, len(p["ids"]) // 2)
    whole = model.logits(ids)
    cache = model.model.new_cache()
    for end in sorted({len(ids) // 2, *range(len(ids) - alone, len(ids) + 1)}):
        row, _ = forward(model.model, ids[cache.length : end], cache)
        assert row[0].tobytes() == whole[end - 1].tobytes(), f"position {end - 1}"
    cache.release()
    asked: dict[str, Any] = dict(ids=ids, policy=glassbox.Policy(temperature=0), max_tokens=4, ignore_eos=True)
    cold, kept, warm = (model.generate(**asked, **how) for how in (dict(reuse=False), dict(salt="c"), dict(salt="c")))
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, len(ids) - 1)
    hashes = [[(s.id, s.logits_hash) for s in run.steps] for run in (cold, kept, warm)]
    assert hashes[0] == hashes[1] == hashes[2]


@pytest.mark.slow
def test_reuse_after_the_window_has_passed(gemma3: glassbox.Model) -> None:
    """C08-06: run W + 300 ids, then go back to a shared prefix; both equal their cold runs."""
    model = gemma3.model
    assert isinstance(model, TransformerModel)
    window = model.spec.window
    ids = [int(i) for i in np.random.default_rng(0).integers(1000, 100_000, window + 310)]
    cache = model.new_cache()
    forward(model, ids[: window + 300], cache)
    for keep in (window + 290, 100):
        cache.truncate(keep)
        warm, _ = forward(model, ids[-10:], cache)
        cold = model.new_cache()
        again, _ = forward(model, ids[:keep] + ids[-10:], cold)
        assert warm.tobytes() == again.tobytes()
        cold.release()
    cache.release()


def forward_bytes(model: glassbox.Model, ids: list[int], **how: Any) -> bytes:
    """Logits of every position of a short prompt, of the last one of a long one, as bytes."""
    cache = model.model.new_cache()
    logits, _ = forward(model.model, ids, cache, rows="all" if len(ids) < 100 else "last", **how)
    cache.release()
    return logits.tobytes()
