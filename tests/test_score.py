"""Scores of texts (C03): each token's logprob given the ones before it, whatever the window, the chunk, the company."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf
import reference_forward
import tiny_weights
from hypothesis import given, settings
from hypothesis import strategies as st

import glassbox
from glassbox.cli.app import invoke
from glassbox.errors import ContextOverflow, NonFiniteLogits, OutOfMemory, ParameterError, PromptError
from glassbox.model.bigram import METADATA, BigramModel
from glassbox.model.execute import Computed
from glassbox.model.model import TransformerModel
from glassbox.policy.softmax import log_softmax
from glassbox.score import windows_of
from glassbox.text.absent import NoTokenizer
from glassbox.text.tokenizer import Tokenizer
from glassbox.weights.gguf import read_gguf

CASES, LOGITS = tiny_weights.load()
SCORES = json.loads((tiny_weights.DATA / "scores.json").read_text())  # transformers', by tools/make_scores.py
T = gguf.GGMLQuantizationType


def tiny(case: str, threads: int = 1) -> glassbox.Model:
    model = TransformerModel(tiny_weights.checkpoint(case, CASES), threads=threads)
    return glassbox.Model("tiny", model, NoTokenizer(frozenset()), {}, "sha")


def ids_of(case: str) -> list[int]:
    return tiny_weights.ids_of(case, CASES[case]["config"]["vocab_size"])


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, 96 tokens of one character, gemma3 with a window of 24."""
    to = tmp_path_factory.mktemp("models") / "m.gguf"
    return random_gguf.write(to, request.param, request.param, [T.Q8_0, T.F32], window=24)


@pytest.fixture(scope="module")
def model(path: Path) -> glassbox.Model:
    return glassbox.load(path, threads=2)


LONG = [int(i) for i in np.random.default_rng(3).integers(0, 90, 400)]


def picks(model: glassbox.Model, ids: list[int]) -> np.ndarray:
    """The oracle: all logits at once, numpy's log_softmax, the id after each row."""
    return log_softmax(model.logits(ids)[:-1])[np.arange(len(ids) - 1), ids[1:]]


class Table(BigramModel):
    """C03-01: four letters, a table of logits by the letter before."""

    rows = np.array([[0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 0, 0], [1, -1, 1, -1]], np.float32)

    def forward_parts(self, parts: Any, look: frozenset[str] = frozenset()) -> Computed:
        out = super().forward_parts(parts, look)
        return Computed(self.rows[np.concatenate([p.ids[p.rows.start : p.rows.stop] for p in parts])], out.points)


def table() -> glassbox.Model:
    return glassbox.Model("table", Table(), Tokenizer.from_gguf(METADATA), METADATA, "table")


def test_a_score_comes_from_the_row_before() -> None:  # C03-01
    found = table().score(ids=[0, 1, 3])
    assert found.logprobs[0] is None and found.tokens[0].rank is None
    assert [round(x, 4) for x in found.logprobs[1:] if x is not None] == [-2.4402, -3.4402]
    assert [t.rank for t in found.tokens[1:]] == [2, 3]
    run = table().generate(ids=[0, 1, 3], policy=glassbox.Policy(temperature=0), max_tokens=1, prompt_logprobs=True)
    assert tuple(p.logprob for p in run.prompt) == found.logprobs
    assert round(run.steps[0].choice.logprob_raw, 4) == -0.8201 and run.ids == (0,)  # of equal logits the lower id


def test_totals() -> None:
    found = table().score(ids=[0, 1, 3])
    total = -(2.4401896985611953 + 3.4401896985611953)
    assert found.sum_logprob == pytest.approx(total, abs=1e-12) and found.tokens_scored == 2
    assert found.perplexity == pytest.approx(math.exp(-total / 2), rel=1e-12)
    assert found.bytes == 2 and found.bits_per_byte == pytest.approx(-total / math.log(2) / 2, rel=1e-12)
    one = table().score(ids=[2])
    assert (one.tokens_scored, one.sum_logprob, one.perplexity, one.bits_per_byte, one.bytes) == (0, 0.0, None, None, 0)


def test_a_perplexity_beyond_what_a_float_holds_is_infinite() -> None:
    found = table().score(ids=[0, 1])
    first, last = found.tokens
    far = [replace(found, tokens=(first, replace(last, logprob=x))) for x in (-699.0, -750.0, -math.inf)]
    assert [f.perplexity for f in far] == [math.exp(699.0), math.inf, math.inf]


def test_one_text_holds_the_bytes_of_its_letters() -> None:
    found = glassbox.load("bigram").score("ab c")
    assert (found.text, found.ids, found.bytes) == ("ab c", (1, 2, 0, 3), 3)
    assert [t.bytes for t in found.tokens] == [b"a", b"b", b" ", b"c"]


@pytest.mark.parametrize("case", sorted(SCORES))
def test_perplexity_is_that_of_transformers(case: str) -> None:
    model, ids = tiny(case), ids_of(case)
    for context, stride, right in SCORES[case]:
        found = model.score(ids=ids, context=context, stride=stride)
        assert found.perplexity == pytest.approx(right, rel=5e-6), (context, stride)
        assert found.tokens_scored == len(ids) - 1


@pytest.mark.parametrize("case", ["llama-a", "gemma3-b", "gpt2-a", "mixtral-b"])
def test_logprobs_are_those_of_transformers_logits(case: str) -> None:
    ids, right = ids_of(case), log_softmax(LOGITS[case])
    found = tiny(case, threads=2).score(ids=ids)
    expected = right[np.arange(len(ids) - 1), ids[1:]]
    assert np.abs(np.array(found.logprobs[1:]) - expected).max() <= 2e-5 * np.abs(LOGITS[case]).max()


def test_it_is_log_softmax_of_the_models_own_logits(model: glassbox.Model, path: Path) -> None:
    for n in (2, 33, 128, 129, 250):
        found = model.score(ids=LONG[:n])
        assert np.abs(np.array(found.logprobs[1:]) - picks(model, LONG[:n])).max() <= 1e-12
        logits = model.logits(LONG[:n])
        orders = [np.lexsort((np.arange(len(z)), -z)).tolist() for z in logits[:-1]]
        ranks = [order.index(i) for order, i in zip(orders, LONG[1:n], strict=True)]
        assert [t.rank for t in found.tokens[1:]] == ranks
    right = log_softmax(reference_forward.forward(read_gguf(path), LONG[:60])["logits"])
    off = np.array(model.score(ids=LONG[:60]).logprobs[1:]) - right[np.arange(59), LONG[1:60]]
    assert np.abs(off).max() <= 1e-3


def test_each_window_is_a_text_of_its_own(model: glassbox.Model) -> None:
    """The oracle of sliding: score each window alone, take what the ones before it had not reached."""
    for context, stride in ((50, 25), (50, 7), (50, 49), (250, 125), (2, 1)):
        ids = LONG[: 40 * stride if stride < 4 else 400]
        right: dict[int, float | None] = {}
        for begin in range(0, len(ids), stride):
            alone = model.score(ids=ids[begin : begin + context])
            for token in alone.tokens:
                right.setdefault(begin + token.position, token.logprob)
            if begin + context >= len(ids):
                break
        found = model.score(ids=ids, context=context, stride=stride)
        assert list(found.logprobs) == [right[i] for i in range(len(ids))]
        assert all(t.seen == t.position for t in found.tokens[:context])
        assert all(context - stride <= t.seen < context for t in found.tokens[context:])


@settings(max_examples=300, derandomize=True)
@given(length=st.integers(1, 300), context=st.integers(2, 80), data=st.data())
def test_windows_score_each_token_once(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context - 1))
    windows = windows_of(length, context, stride)
    assert [i for w in windows for i in range(w.first, w.end)] == list(range(length))
    assert all(w.end - w.begin <= context and w.begin % stride == 0 for w in windows)
    assert all(w.first - w.begin >= context - stride for w in windows[1:])
    assert len(windows) == 1 or length > context


def test_company_changes_no_bit(model: glassbox.Model, path: Path) -> None:
    texts = [LONG[i : i + n] for i, n in enumerate([1, 5, 90, 60, 3, 200, 128, 129, 2, 64, 64])]
    together = model.scores(texts)
    assert together == [model.score(ids=ids) for ids in texts]
    assert together == glassbox.load(path, threads=1).scores(texts)
    assert model.scores(texts, context=40, stride=13) == [model.score(ids=t, context=40, stride=13) for t in texts]
    assert model.scores(["ab", "abab!"]) == [model.score("ab"), model.score("abab!")] and model.scores([]) == []
    assert model.model.new_cache().pool.used == (model.engine.prefixes.held if model.engine.prefixes else 0)


def test_what_was_generated_scores_as_it_did_then(model: glassbox.Model) -> None:
    """One value, one way to compute it: bit for bit."""
    run = model.generate(
        ids=LONG[:150], policy=glassbox.Policy(temperature=1.2), seed=4, max_tokens=40, ignore_eos=True
    )
    found = model.score(ids=[*LONG[:150], *run.ids])
    assert len(run.ids) > 5
    assert [t.logprob for t in found.tokens[150:]] == [s.choice.logprob_raw for s in run.steps]
    assert [t.rank for t in found.tokens[150:]] == [s.choice.rank_raw for s in run.steps]


def test_a_stream_may_run_beside_it(model: glassbox.Model) -> None:
    asked: dict[str, Any] = dict(ids=LONG[:20], policy=glassbox.Policy(temperature=0.9), seed=1, max_tokens=8)
    right = [s.logits_hash for s in model.generate(**asked, ignore_eos=True).steps]
    stream = model.stream(**asked, ignore_eos=True)
    got = []
    for step in stream:
        got.append(step.logits_hash)
        assert model.score(ids=LONG[:140]).tokens_scored == 139
    assert got == right


# --- the prompt of a run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 40, 128, 129, 250])
def test_prompt_logprobs_are_the_score(model: glassbox.Model, n: int, tmp_path: Path) -> None:
    asked: dict[str, Any] = dict(ids=LONG[:n], policy=glassbox.Policy(temperature=0.9), seed=7, max_tokens=5)
    plain = model.generate(**asked, ignore_eos=True)
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = model.generate(**asked, ignore_eos=True, prompt_logprobs=True, store=store)
        kept = store.load(run.run_id)
    assert tuple(p.logprob for p in run.prompt) == model.score(ids=LONG[:n]).logprobs
    assert [s.logits_hash for s in run.steps] == [s.logits_hash for s in plain.steps] and run.ids == plain.ids
    assert run.usage.cached_tokens == 0 and run.outcome is not None and run.outcome.reuse is not None
    assert "logprobs were asked for" in run.outcome.reuse and not run.request.reuse
    assert kept == run and kept.request.prompt_logprobs
    assert all(p.logprob is None for p in plain.prompt)


def test_prompt_logprobs_in_company(model: glassbox.Model) -> None:
    """Many prompts share a pass: each row goes to its own."""
    streams = [
        model.stream(ids=LONG[i : i + 30 * i + 2], max_tokens=4, seed=i, ignore_eos=True, prompt_logprobs=i % 2 == 0)
        for i in range(6)
    ]
    for _ in zip_longest(*streams):  # a step of each in turn
        pass
    for i, s in enumerate(streams):
        expected = model.score(ids=LONG[i : i + 30 * i + 2]).logprobs if i % 2 == 0 else (None,) * (30 * i + 2)
        assert tuple(p.logprob for p in s.run.prompt) == expected


@pytest.mark.model
def test_a_chat_has_its_first_token_too(smollm2: glassbox.Model) -> None:  # C03-03
    hi = [{"role": "user", "content": "Hi"}]
    run = smollm2.generate(messages=hi, max_tokens=1, seed=1, prompt_logprobs=True)
    told = run.to_dict()["prompt"]
    assert len(told) == 31
    assert (told[0]["id"], told[0]["text"], bytes(told[0]["bytes"]), told[0]["logprob"]) == (
        1, "<|im_start|>", b"<|im_start|>", None,
    )  # fmt: skip
    assert all(p["logprob"] < 0 for p in told[1:])
    assert smollm2.score(messages=hi).logprobs == tuple(p["logprob"] for p in told)


@pytest.mark.model
def test_what_an_evaluation_asks_for(smollm2: glassbox.Model) -> None:
    """C03-04, without the server: the prompt alone (max_tokens 0 there), and with one token more."""
    text = "The capital of France is"
    found, ids = smollm2.score(text), list(smollm2.encode(text).ids)
    assert len(found.tokens) == len(ids) and found.tokens[0].logprob is None
    assert np.abs(np.array(found.logprobs[1:]) - picks(smollm2, ids)).max() <= 1e-12
    run = smollm2.generate(text, max_tokens=1, seed=0, prompt_logprobs=True)
    both = [*(p.logprob for p in run.prompt), run.steps[0].choice.logprob_raw]
    assert len(both) == len(ids) + 1 and both[:-1] == list(found.logprobs)
    assert both == list(smollm2.score(ids=[*ids, *run.ids]).logprobs)


@pytest.mark.model
@pytest.mark.parametrize(("stem", "i"), [("smollm2", 0), ("smollm2", 3), ("gemma3", 1)])
def test_golden_prompts(stem: str, i: int, golden: dict[str, Any], request: pytest.FixtureRequest) -> None:
    p = golden[stem]["prompts"][i]
    found = request.getfixturevalue(stem).score(ids=p["ids"])
    assert p["prompt_logprobs"][0] is None
    assert np.abs(np.array(found.logprobs[1:]) - np.array(p["prompt_logprobs"][1:])).max() <= 2e-3


@pytest.mark.model
@pytest.mark.parametrize("stem", ["smollm2", "gemma3"])
def test_bytes_are_those_of_the_text(stem: str, request: pytest.FixtureRequest) -> None:
    """Bits per byte count what was scored: with BOS all of the text, without it all but the first token's."""
    model, text = request.getfixturevalue(stem), "Ein naïver Satz 🙂 über 3,5 Äpfel."
    found = model.score(text)
    first = found.tokens[0]
    assert found.bytes == len(text.encode()) - (first.span[1] - first.span[0])
    assert found.bits_per_byte == pytest.approx(-found.sum_logprob / math.log(2) / found.bytes)


# --- what is refused -----------------------------------------------------------------------------------------------


def test_bad_requests_are_named(model: glassbox.Model) -> None:
    for how, error, text in (
        ({}, PromptError, "exactly one of prompt, messages and ids"),
        ({"text": ""}, PromptError, "empty"),
        ({"ids": []}, PromptError, "ids is empty"),
        ({"ids": [10**6]}, PromptError, "outside the vocabulary"),
        ({"text": "ab", "context": 1}, ParameterError, "context is 1"),
        ({"text": "ab", "context": model.context + 1}, ParameterError, f"from 2 to {model.context}"),
        ({"text": "ab", "stride": 0}, ParameterError, "stride is 0"),
        ({"text": "ab", "context": 8, "stride": 8}, ParameterError, "from 1 to 7"),
        ({"text": "ab", "stride": True}, ParameterError, "stride is True"),
    ):
        with pytest.raises(error, match=text):
            model.score(**how)
    for bad in ("ab", 3, b"ab"):
        with pytest.raises(ParameterError, match="texts is"):
            model.scores(bad)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="ids is 3, but must be a sequence"):
        model.scores([3])  # type: ignore[list-item]


def test_what_cannot_fit_is_refused_with_numbers(path: Path) -> None:
    small = glassbox.load(path, kv_limit=100_000)
    shape = small.model.new_cache().pool.shape
    need = shape.sequence_bytes(256)
    assert need > 100_000
    with pytest.raises(OutOfMemory, match=f"a window of 256 positions needs {need:,} bytes, but only 100,000"):
        small.score(ids=LONG)
    one = shape.sequence_bytes(64)
    fits = glassbox.load(path, kv_limit=one)
    assert fits.scores([LONG[:64], LONG[:60]]) == glassbox.load(path).scores([LONG[:64], LONG[:60]])
    assert fits.score(ids=LONG, context=64).tokens_scored == 399


def test_a_model_of_one_position(monkeypatch: pytest.MonkeyPatch) -> None:
    model = table()
    monkeypatch.setattr(type(model.model), "context", 1)
    assert model.score(ids=[1]).tokens_scored == 0
    with pytest.raises(ContextOverflow):
        model.score(ids=[1, 2])


def test_nan_is_an_error_and_minus_infinity_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Table.rows.copy()
    rows[0, 2] = -np.inf
    monkeypatch.setattr(Table, "rows", rows)
    found = table().score(ids=[0, 2, 1])
    assert found.logprobs[1] == -math.inf and found.tokens[1].rank == 3 and found.perplexity == math.inf
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["tokens"][1]["logprob"] is None and told["perplexity"] is None
    rows[1, 0] = np.nan
    assert table().score(ids=[0, 2, 3]).tokens_scored == 2
    for how in ({}, {"prompt_logprobs": True}):
        with pytest.raises(NonFiniteLogits, match="the forward pass at id 0"):
            table().score(ids=[1, 2]) if not how else table().generate(ids=[1, 2], **how)


# --- the command ---------------------------------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> str:
    assert invoke(list(command)) == code
    caught = capsys.readouterr()
    return caught.out if code == 0 else caught.err


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "score", "ab c", "-m", "bigram")
    lines = out.splitlines()
    assert lines[0].split() == ["at", "id", "token", "logprob", "rank"] and lines[1].split()[-2:] == ["-", "-"]
    assert "scored   3 of 4 tokens, 3 bytes" in lines and max(map(len, lines)) <= 80
    assert lines[2].split() == ["1", "2", "'b'", "-0.4402", "0"]


def test_json_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    got = json.loads(told(capsys, "score", "ab c", "-m", "bigram", "--json", "--context", "3", "--stride", "1"))
    right = glassbox.load("bigram").score("ab c", context=3, stride=1)
    assert got == json.loads(json.dumps(right.to_dict()))
    assert got["tokens"][0] == {
        "position": 0, "id": 1, "text": "a", "bytes": [97], "kind": "normal", "span": [0, 1], "logprob": None,
        "rank": None, "seen": 0,
    }  # fmt: skip
    assert got["windows"] == [{"begin": 0, "end": 3, "first": 0}, {"begin": 1, "end": 4, "first": 3}]
    assert got["tokens"][3]["seen"] == 2


def test_long_texts_show_the_first_and_the_least_likely(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "ab" * 100 + "ba"
    (tmp_path / "t.txt").write_text(text)
    out = told(capsys, "score", "--file", str(tmp_path / "t.txt"), "-m", "bigram", "--context", "64")
    assert "… 182 more tokens" in out and "least likely" in out and "32 apart" in out
    assert "with 32 or more before them" in " ".join(out.split())
    found = glassbox.load("bigram").score(text, context=64)
    worst = min(x for x in found.logprobs if x is not None)
    at = out.splitlines().index(next(line for line in out.splitlines() if "least likely" in line))
    assert f"{worst:.4f}" in out.splitlines()[at + 1]
    monkeypatch.setattr("sys.stdin", type("In", (), {"buffer": io.BytesIO(text.encode())}))
    assert told(capsys, "score", "-", "-m", "bigram", "--context", "64") == out
    ids = ",".join(map(str, found.ids))
    assert told(capsys, "score", "--ids", ids, "-m", "bigram", "--context", "64") == out


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ([], "exactly one of TEXT, --file and --ids must be given; here: none"),
        (["a", "--ids", "1"], "here: TEXT, --ids"),
        ([""], "the text is empty"),
        (["--ids", "1,x"], "--ids is '1,x', but must be of the form"),
        (["--ids", "99"], "id 99 is outside the vocabulary of 4"),
        (["ab", "--stride", "0"], "stride is 0"),
        (["ab", "--context", "1"], "context is 1, but must be a whole number from 2 to"),
        (["--file", "no such file"], "no such file"),
    ],
)
def test_bad_commands_are_one_line(capsys: pytest.CaptureFixture[str], command: list[str], error: str) -> None:
    err = told(capsys, "score", *command, "-m", "bigram", code=2)
    assert error in err and len(err.splitlines()) == 1


def test_trace_shows_prompt_logprobs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "runs.db")]
    asked = ["trace", "ab c", "-m", "bigram", "--seed", "1", "--max-tokens", "2", "--prompt-logprobs", *store]
    out = told(capsys, *asked)
    assert "prompt logprobs\n  1 'a' -  2 'b' -0.4402" in out and "logprobs were asked for" in out
    assert "prompt logprobs\n  1 'a' -  2 'b' -0.4402" in told(capsys, "show", *store)
    got = json.loads(told(capsys, *asked, "--json"))
    assert got["prompt_logprobs"] is True and [round(p["logprob"], 4) for p in got["prompt"][1:2]] == [-0.4402]
    assert json.loads(told(capsys, "show", "--json", *store))["prompt"] == got["prompt"]
