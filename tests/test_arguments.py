"""What programs pass to the API and is no such thing: an error that names the parameter, whatever the mistake."""

from __future__ import annotations

import enum
import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_gguf

import glassbox
from glassbox.choose import draw_seed
from glassbox.errors import ParameterError, PromptError, TemplateError, UnknownPoint
from glassbox.model import intervene
from glassbox.model.bigram import METADATA, BigramModel
from glassbox.model.threads import thread_count
from glassbox.policy import step
from glassbox.policy.policy import Policy
from glassbox.text.tokenizer import Tokenizer

Use = Callable[[Any], Any]


@pytest.fixture(scope="module")
def bigram() -> Any:
    return glassbox.load("bigram")


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda m: m.generate(ids="ab"), ParameterError, "ids is 'ab', but must be a sequence of whole numbers"),
        (lambda m: m.generate(ids=[1, 1.5]), ParameterError, r"ids is \[1, 1.5\]"),
        (lambda m: m.generate(ids=["1"] * 999), ParameterError, r"ids is \['1', '1'.{,160}…, but must be"),
        (lambda m: m.generate(ids={1, 2}), ParameterError, r"ids is \{1, 2\}, but must be .* a set has no order"),
        (lambda m: m.generate(ids=[True]), ParameterError, r"ids is \[True\]"),
        (lambda m: m.generate(ids=[None]), ParameterError, r"ids is \[None\]"),
        (lambda m: m.generate(ids=[math.nan]), ParameterError, r"ids is \[nan\]"),
        (lambda m: m.generate(ids=np.array([1.0])), ParameterError, r"ids is \[1.0\]"),
        (lambda m: m.generate(ids=np.array([[1]])), ParameterError, r"ids is \[\[1\]\]"),
        (lambda m: m.generate(ids=np.array(1)), ParameterError, "ids is 1, but must be a sequence"),
        (lambda m: m.generate(ids=np.array([], np.int64)), PromptError, "ids is empty"),
        (lambda m: m.generate(ids=[10**9999]), PromptError, "an id of so many digits is outside"),
        (lambda m: m.generate(b"ab"), ParameterError, "prompt is b'ab', but must be text"),
        (lambda m: m.generate("a\ud800"), PromptError, "character 1 is a lone surrogate"),
        (lambda m: m.generate("ab", max_tokens=0), ParameterError, "max_tokens is 0, but must be a whole number"),
        (lambda m: m.generate("ab", max_tokens=2**31), ParameterError, "max_tokens is 2147483648, .* 2147483647"),
        (lambda m: m.generate("ab", max_tokens=10**9999), ParameterError, "max_tokens is a number of thousands"),
        (lambda m: m.generate("ab", max_tokens=True), ParameterError, "max_tokens is True"),
        (lambda m: m.generate("ab", ignore_eos="no"), ParameterError, "ignore_eos is 'no', .* True or False"),
        (lambda m: m.generate("ab", ignore_eos=None), ParameterError, "ignore_eos is None"),
        (lambda m: m.generate("ab", reuse=1), ParameterError, "reuse is 1"),
        (lambda m: m.generate("ab", speculate=1), ParameterError, "speculate is 1"),
        (lambda m: m.generate("ab", salt=b"x"), ParameterError, "salt is b'x'"),
        (lambda m: m.generate("ab", salt="\ud800"), ParameterError, "salt is '.ud800', .* a lone surrogate"),
        (lambda m: m.generate("ab", level="bogus"), ParameterError, "level is 'bogus', .* one of ids, look"),
        (lambda m: m.generate("ab", level=None), ParameterError, "level is None"),
        (lambda m: m.generate("ab", retain="bogus"), ParameterError, "retain is 'bogus', .* text, ids, none"),
        (lambda m: m.generate("ab", retain=["text"]), ParameterError, "retain is"),
        (lambda m: m.generate("ab", sources={"a": object()}), ParameterError, "sources is .* strings to strings"),
        (lambda m: m.generate("ab", sources=[1]), ParameterError, r"sources is \[1\]"),
        (lambda m: m.generate("ab", sources={"a": "\ud800"}), ParameterError, "sources is .* lone surrogate"),
        (lambda m: m.generate("ab", now="noon"), ParameterError, "now is 'noon'"),
        (lambda m: m.generate("ab", store="x.db"), ParameterError, r"store is 'x.db', .*open_store\(path\)"),
        (lambda m: m.generate("ab", stop=None), ParameterError, "stop is None"),
        (lambda m: m.generate("ab", stop=["\ud800"]), ParameterError, "stop is '.ud800', .* lone surrogate"),
        (lambda m: m.generate("ab", stop_ids=None), ParameterError, "stop_ids is None"),
        (lambda m: m.generate("ab", stop_ids=[4]), PromptError, "id 4 is outside the vocabulary of 4"),
        (lambda m: m.generate("ab", policy={}), ParameterError, "policy is {}"),
        (lambda m: m.generate("ab", policy=Policy(top_k=10**9999)), ParameterError, "top_k is a number of thousands"),
        (lambda m: m.generate("ab", time_limit=True), ParameterError, "time_limit is True"),
        (lambda m: m.generate("ab", time_limit=10**400), ParameterError, "time_limit is 1000"),
        (lambda m: m.generate(messages=5), TemplateError, "messages must be a list"),
        (lambda m: m.generate(messages=(x for x in ())), PromptError, "messages is empty"),
        (lambda m: m.logits([1.7]), ParameterError, r"ids is \[1.7\]"),
        (lambda m: m.logits([]), PromptError, "no token ids"),
        (lambda m: m.observe([1], None), ParameterError, "points is None"),
        (lambda m: m.encode(None), ParameterError, "text is None"),
        (lambda m: m.encode_chat(None), TemplateError, "messages must be a list"),
        (lambda m: glassbox.load(5), ParameterError, "name is 5"),
        (lambda m: glassbox.load("bigram", kv_limit="1G"), ParameterError, "kv_limit is '1G'"),
        (lambda m: m.generate(ids=[[1, 2]]), ParameterError, "ids is"),
        (lambda m: m.generate(ids=5), ParameterError, "ids is 5"),
        (lambda m: m.generate(ids=[2**70]), PromptError, "outside the vocabulary of 4"),
        (lambda m: m.generate(ids=[]), PromptError, "ids is empty"),
        (lambda m: m.generate(""), PromptError, "the prompt is empty"),
        (lambda m: m.generate("zzz"), PromptError, r"no token for byte 0x7A at offset 0: character 0, 'z'"),
        (lambda m: m.generate([{"role": "user"}]), ParameterError, "prompt is .* a conversation goes into messages"),
        (lambda m: m.generate(messages=[]), PromptError, "messages is empty"),
        (lambda m: m.generate("ab", policy={"temperature": 1}), ParameterError, "policy is .* must be a Policy"),
        (lambda m: m.generate("ab", policy="greedy"), ParameterError, "policy is 'greedy'"),
        (lambda m: m.generate("ab", stop=5), ParameterError, "stop is 5"),
        (lambda m: m.generate("ab", stop=["c", 5]), ParameterError, r"stop is \['c', 5\]"),
        (lambda m: m.generate("ab", stop_ids=5), ParameterError, "stop_ids is 5"),
        (lambda m: m.generate("ab", time_limit="5"), ParameterError, "time_limit is '5'"),
        (lambda m: m.logits("ab"), ParameterError, "ids is 'ab'"),
        (lambda m: m.decode("ab"), ParameterError, "ids is 'ab'"),
        (lambda m: m.decode([-1]), PromptError, "id -1 is outside"),
        (lambda m: m.encode(5), ParameterError, "text is 5, but must be a string"),
        (lambda m: m.observe([1], 5), ParameterError, "points is 5"),
        (lambda m: m.observe("ab", "embed"), ParameterError, "ids is 'ab'"),
        (lambda m: m.observe([1], "resid_pre.0"), UnknownPoint, "there are: embed, final_norm, logits$"),
        (lambda m: m.generate("ab", seed=1).tensor(0, ["embed"]), ParameterError, r"point is \['embed'\]"),
        (lambda m: m.generate("ab", seed=1).tensors(0, ["embed", None]), ParameterError, "point is None"),
        (lambda m: m.generate("ab", seed=1).what_if(Policy(), threshold=[]), ParameterError, r"threshold is \[\]"),
        (lambda m: glassbox.open_store(5), ParameterError, "path is 5, but must be the path of a file"),
        (lambda m: glassbox.open_store(b"runs.db"), ParameterError, "path is b'runs.db'"),
        (lambda m: glassbox.open_store("\ud800"), ParameterError, "path is '.ud800'"),
        (lambda m: glassbox.open_store(Path("a\0b")), ParameterError, "path is PosixPath"),
    ],
)
def test_mistakes_are_named(bigram: Any, use: Use, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        use(bigram)


def test_what_is_meant_is_taken(bigram: Any) -> None:
    assert bigram.observe([1], "embed").keys() == {"embed"}
    points = ("final_norm", "logits", "embed")
    assert tuple(bigram.observe([1], points)) == points
    asked: dict[str, Any] = dict(ids=np.array([1, 2]), stop="b", max_tokens=9, time_limit=60, policy=None, seed=1)
    assert bigram.generate(**asked).prompt_ids == (1, 2)
    assert bigram.generate("ab", stop_ids={3, 0}, max_tokens=np.int64(1), ignore_eos=np.bool_(True)).ids
    assert bigram.decode(i for i in (1, 2)) == bigram.decode(np.array([1, 2], np.uint8)) == "ab"
    assert bigram.logits(np.array([1, 2])).tolist() == bigram.logits(i for i in (1, 2)).tolist()
    assert bigram.observe(np.array([1]), "embed")["embed"].shape == (1, 4)


def test_no_limit_is_the_contexts(bigram: Any) -> None:
    run = bigram.generate(ids=[1] * (bigram.context - 3), max_tokens=None, ignore_eos=True, seed=1)
    assert run.request.max_tokens == bigram.context
    assert (len(run.ids), run.stop_reason) == (3, {"kind": "context_end", "limit": bigram.context})


class Role(str, enum.Enum):  # noqa: UP042 - its str() is "Role.USER", and people use it
    USER = "user"


@pytest.fixture
def chat() -> Any:
    template = {"tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    return glassbox.Model("chat", BigramModel(), Tokenizer.from_gguf(METADATA | template), METADATA, "bigram")


def test_messages_are_copied_before_anything_is_done_with_them(chat: Any, tmp_path: Path) -> None:
    part = {"type": "text", "text": "ab"}
    message: dict[str, Any] = {"role": Role.USER, "content": (part,), "name": "x"}
    with glassbox.open_store(tmp_path / "runs.db") as store:
        stream = chat.stream(messages=(m for m in [message]), max_tokens=2, seed=1, store=store)
        message["content"], part["text"] = "changed", "changed"
        list(stream)
        run = stream.run
        assert store.load(run.run_id) == run
    assert run.prompt_text == "ab"
    assert run.request.messages == ({"role": "user", "content": [{"type": "text", "text": "ab"}], "name": "x"},)
    assert type(run.request.messages[0]["role"]) is str


@pytest.mark.parametrize("odd", [object(), np.int64(3), math.nan, pytest.param(10**9999, id="huge"), {1: 2}, {"x"}])
def test_what_json_cannot_hold_is_no_message(chat: Any, odd: object) -> None:
    """In a content part, which no template sees, it was found out by the store alone."""
    with pytest.raises(TemplateError, match=r"no plain data|keys are strings"):
        chat.generate(messages=[{"role": "user", "content": [{"type": "text", "text": "ab", "x": odd}]}])


def test_messages_that_hold_themselves_end(chat: Any) -> None:
    message: dict[str, Any] = {"role": "user", "content": "ab"}
    message["x"] = [message]
    with pytest.raises(TemplateError, match="nest deeper than 64"):
        chat.generate(messages=[message])


def test_a_model_in_a_folder_with_an_odd_name_is_recorded(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    path = random_gguf.write(Path(os.fsdecode(folder)) / "m.gguf", "llama", "llama", [random_gguf.T.F32])
    with glassbox.open_store(tmp_path / "runs.db") as store:
        run = glassbox.load(path).generate(ids=[1, 2], max_tokens=2, seed=1, store=store)
        assert (run.problem, run.recorded) == (None, True)
        assert store.load("last") == run
    assert run.model.endswith(r"/\udcff/m.gguf")


def test_a_drawn_seed_is_a_number_that_javascript_can_hold() -> None:
    assert all(draw_seed() < 2**53 for _ in range(200))


def test_an_unrecorded_run_says_so(bigram: Any, tmp_path: Any) -> None:
    assert ", not recorded: " in repr(bigram.generate("ab", max_tokens=1))
    with glassbox.open_store(tmp_path / "runs.db") as store:
        kept = bigram.generate("ab", max_tokens=1, store=store)
        assert "not recorded" not in repr(kept) + repr(store.load("last"))


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSBOX_THREADS", raising=False)
    cores = thread_count()
    monkeypatch.setenv("GLASSBOX_THREADS", "")
    assert thread_count() == cores


ENDLESS: list[Callable[[glassbox.Model], object]] = [
    lambda m: Policy(banned_ids=itertools.count()),
    lambda m: Policy(allowed_ids=itertools.repeat(1)),
    lambda m: Policy(banned_sequences=itertools.repeat((1, 2))),
    lambda m: Policy(banned_sequences=[itertools.count()]),
    lambda m: Policy(logit_bias=itertools.repeat((1, 2.0))),
    lambda m: Policy(dry_sequence_breakers=itertools.repeat("a")),
    lambda m: Policy(order=itertools.repeat("top_k")),
    lambda m: m.logits(itertools.repeat(1)),
    lambda m: m.logits(range(10**18)),
    lambda m: m.decode(itertools.repeat(1)),
    lambda m: m.generate(ids=itertools.repeat(1)),
    lambda m: m.generate("ab", stop=itertools.repeat("a")),
    lambda m: m.generate("ab", stop_ids=itertools.repeat(1)),
    lambda m: m.generate("ab", interventions=itertools.repeat(glassbox.Intervention("mlp_out.0", "zero"))),
    lambda m: m.generate(messages=itertools.repeat({"role": "user", "content": "a"}), template="{{ messages }}"),
    lambda m: m.generate(messages=[{"role": "user", "content": "a"}], tools=itertools.repeat({})),
    lambda m: m.observe([1], itertools.repeat("embed")),
    lambda m: m.scores(itertools.repeat("ab")),
    lambda m: m.generate("ab", max_tokens=2).what_if(Policy(), steps=itertools.repeat(0)),
]


@pytest.mark.parametrize("call", ENDLESS)
def test_what_never_ends_is_refused(
    bigram: glassbox.Model, monkeypatch: pytest.MonkeyPatch, call: Callable[[glassbox.Model], object]
) -> None:
    assert step.MOST_LISTED > 2**20 and intervene.MOST > 2**10  # enough for what is meant
    monkeypatch.setattr(step, "MOST_LISTED", 1000)
    monkeypatch.setattr(intervene, "MOST", 1000)
    with pytest.raises(ParameterError):
        call(bigram)
