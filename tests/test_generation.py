"""One sequence from prompt to end: the stream, stops, endings, errors, and what is recorded of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassbox
from glassbox.cache.pages import Cache, PagePool, PageShape
from glassbox.cache.prefix import Reuse
from glassbox.engine import Engine
from glassbox.errors import NonFiniteLogits, ParameterError, PromptError
from glassbox.events import Step
from glassbox.generation import Generation, logits_hash
from glassbox.model.bigram import METADATA, TOKENS, BigramModel
from glassbox.model.execute import Computed, Part
from glassbox.opening import encoding_of
from glassbox.outcome import Timings, Usage
from glassbox.policy.policy import Policy
from glassbox.request import Request
from glassbox.speed import speed_of
from glassbox.text.tokenizer import Tokenizer
from glassbox.types import F32, Sums

GREEDY = Policy(temperature=0)


class Scripted:
    """A model that wants to say certain ids, whatever it reads: the logits of position p favour script[p - prompt]."""

    context, layers, fingerprint, threads, spec = 4096, 0, "scripted", 1, None

    def __init__(self, script: Sequence[int], prompt: int, vocab: int) -> None:
        self.script, self.prompt, self.vocab_size = script, prompt, vocab

    def new_cache(self) -> Cache:
        return Cache(PagePool(PageShape((), 0, 0)))

    def sum_rows(self, logits: F32, betas: Sequence[Sequence[float]]) -> list[Sums]:
        return [{} for _ in logits]

    def forward_parts(self, parts: Sequence[Part], look: frozenset[str] = frozenset()) -> Computed:
        rows = []
        for p in parts:
            for i in p.rows:
                row = np.zeros(self.vocab_size, np.float32)
                row[self.script[min(p.cache.length + i + 1 - self.prompt, len(self.script) - 1)]] = 9
                rows.append(row)
            p.cache.length += len(p.ids)
        return Computed(np.array(rows).reshape(-1, self.vocab_size), {})


def say(
    tokenizer: Tokenizer, script: Sequence[int], prompt: Sequence[int], **asked: Any
) -> tuple[list[Step], Generation]:
    """Stream a scripted generation; returns its steps and its end."""
    model = Scripted(script, len(prompt), len(tokenizer.vocab))
    asked = {"policy": GREEDY, "seed": 0, "max_tokens": len(script)} | asked
    request = Request(model="scripted", encoding=encoding_of(prompt, tokenizer), **asked)
    generation = Generation(request, tokenizer, model.new_cache(), model.context)
    return list(Engine(model).stream(generation)), generation


def streamed(steps: list[Step]) -> str:
    return "".join(s.text for s in steps)


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return glassbox.load_tokenizer(smollm2_path)


def ending(generation: Generation) -> tuple[str, str, object]:
    assert generation.outcome is not None
    e = generation.outcome.ending
    return e.finish_reason, e.kind, e.detail


# --- C07, C06 through the whole loop ------------------------------------------------------------------------------


@pytest.mark.model
def test_half_a_character_is_never_shown(tokenizer: Tokenizer) -> None:
    steps, generation = say(tokenizer, [10813, 242, 218], [19556])  # F0 9F | 98 | 80
    assert [s.text for s in steps] == ["", "", "\U0001f600"]
    assert generation.outcome is not None and generation.outcome.usage.completion_tokens == 3
    assert generation.outcome.text == "\U0001f600"


@pytest.mark.model
def test_half_a_character_in_the_prompt_is_completed_first(tokenizer: Tokenizer) -> None:
    steps, _ = say(tokenizer, [218, 49], [19556, 10813, 242])
    assert [s.text for s in steps] == ["\U0001f600", "A"]


@pytest.mark.model
def test_text_without_spaces_streams(tokenizer: Tokenizer) -> None:
    steps, _ = say(tokenizer, [28589, 29184] * 20, [19556])
    assert [s.text for s in steps] == ["中", "文"] * 20


@pytest.mark.model
@pytest.mark.parametrize(
    ("script", "asked", "text", "end"),
    [
        ([314, 7042, 30], {"stop": ("Pari",)}, " is ", ("stop", "stop_string", "Pari")),
        ([8590, 17, 1116], {"stop": ("\n", "Alice:")}, " Alice!", ("stop", "stop_string", "\n")),
        ([35542, 33203, 2], {"stop": ("DEFGHIJ",)}, "ABCDEF", ("stop", "eos", 2)),
        ([35542, 33203], {"stop": ("DEFGHIJ",)}, "ABCDEF", ("length", "max_tokens", 2)),
        ([104, 369, 13133], {"stop": ("abcd", "bc")}, "xa", ("stop", "stop_string", "bc")),
        ([104, 81, 82, 83, 84], {"stop": ("bc", "abcd")}, "xa", ("stop", "stop_string", "bc")),
        ([314, 7042], {"stop": ("Paris",)}, " is ", ("stop", "stop_string", "Paris")),
        ([314, 2], {}, " is", ("stop", "eos", 2)),
        ([314, 7042], {}, " is Paris", ("length", "max_tokens", 2)),
        ([314, 2, 7042], {"ignore_eos": True}, " is Paris", ("length", "max_tokens", 3)),
        ([314, 2, 7042], {"ignore_eos": True, "stop_ids": (2,)}, " is", ("stop", "stop_id", 2)),
    ],
)
def test_ends(
    tokenizer: Tokenizer, script: list[int], asked: dict[str, Any], text: str, end: tuple[str, str, object]
) -> None:
    steps, generation = say(tokenizer, script, [19556], **asked)
    assert generation.outcome is not None
    assert (generation.outcome.text, streamed(steps), ending(generation)) == (text, text, end)


@pytest.mark.model
@pytest.mark.parametrize(
    ("script", "asked", "text", "end"),
    [
        ([314, 7042, 30], {"stop": ("Pari",)}, " is Pari", ("stop", "stop_string", "Pari")),
        ([314, 7042], {"stop": ("Paris",)}, " is Paris", ("stop", "stop_string", "Paris")),
        ([8590, 17, 1116], {"stop": ("\n", "Alice:")}, " Alice!\n", ("stop", "stop_string", "\n")),
        ([314, 7042, 30], {"stop_ids": (7042,)}, " is Paris", ("stop", "stop_id", 7042)),
        ([314, 2], {}, " is", ("stop", "eos", 2)),
    ],
)
def test_the_stop_is_kept_where_that_is_asked(
    tokenizer: Tokenizer, script: list[int], asked: dict[str, Any], text: str, end: tuple[str, str, object]
) -> None:  # C06-13
    steps, generation = say(tokenizer, script, [19556], include_stop=True, **asked)
    assert generation.outcome is not None
    assert (generation.outcome.text, streamed(steps), ending(generation)) == (text, text, end)


@pytest.mark.model
def test_a_stop_id_is_cut_as_a_stop_string_is(tokenizer: Tokenizer) -> None:
    steps, generation = say(tokenizer, [314, 7042, 30], [19556], stop_ids=(7042,))
    assert generation.outcome is not None and generation.outcome.text == streamed(steps) == " is"
    assert ending(generation) == ("stop", "stop_id", 7042) and len(steps) == 2


def scripted(tokenizer: Tokenizer, script: Sequence[int], prompt: Sequence[int]) -> glassbox.Model:
    return glassbox.Model("scripted", Scripted(script, len(prompt), len(tokenizer.vocab)), tokenizer, {}, "sha")


NEWLINE, WORD = 198, 7042


@pytest.mark.model
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_before_min_tokens_is_text(tokenizer: Tokenizer, include: bool) -> None:  # C06-09
    """Newline as the 2nd token and as the 8th, both ways of stopping at it."""
    script = [WORD, NEWLINE, WORD, WORD, WORD, WORD, WORD, NEWLINE, WORD]
    model = scripted(tokenizer, script, [19556])
    policy = Policy(temperature=0, min_tokens=5)
    asked: dict[str, Any] = dict(ids=[19556], policy=policy, max_tokens=9, seed=0, include_stop=include)
    run = model.generate(stop=["\n"], **asked)
    text = " Paris\n" + " Paris" * 5
    assert (len(run.steps), run.text) == (8, text + "\n" * include)
    assert run.stop_reason == {"kind": "stop_string", "text": "\n"} and streamed(list(run.steps)) == run.text
    # A stop id is masked as the end of the sequence is: it cannot come before.
    run = model.generate(stop_ids=[NEWLINE], **asked)
    assert NEWLINE not in run.ids[:5] and run.ids[7] == NEWLINE and len(run.steps) == 8
    assert run.stop_reason == {"kind": "stop_id", "id": NEWLINE}
    assert set(run.policy.eos_ids) == {*tokenizer.eos_ids, NEWLINE}
    run = scripted(tokenizer, [2, 2, 2, 2, 2, 2], [19556]).generate(**asked)
    assert run.ids.index(2) == 5 == len(run.steps) - 1 and run.stop_reason == {"kind": "eos", "id": 2}


@pytest.mark.model
def test_a_stop_id_that_nothing_masks_is_text_before_min_tokens(tokenizer: Tokenizer) -> None:
    policy = Policy(temperature=0, min_tokens=3, eos_ids=(2,))
    steps, generation = say(tokenizer, [WORD, 314, WORD], [19556], policy=policy, stop_ids=(WORD,))
    assert generation.outcome is not None and generation.outcome.text == streamed(steps) == " Paris is"
    assert ending(generation) == ("stop", "stop_id", WORD) and len(steps) == 3


@pytest.mark.model
def test_a_stop_that_begins_before_min_tokens_and_ends_after(tokenizer: Tokenizer) -> None:
    model = scripted(tokenizer, [314, 7042, 30], [19556])
    asked: dict[str, Any] = dict(ids=[19556], max_tokens=3, seed=0, stop=["Paris."])
    assert model.generate(policy=Policy(temperature=0, min_tokens=3), **asked).text == " is "
    held = model.generate(policy=Policy(temperature=0, min_tokens=4), **asked)
    assert held.text == " is Paris." and held.stop_reason == {"kind": "max_tokens", "limit": 3}


@pytest.mark.model
def test_an_unfinished_character_can_complete_a_stop(tokenizer: Tokenizer) -> None:
    """What it shows as at the end is text like any other: cut, and the reason says so."""
    steps, generation = say(tokenizer, [314, 10813], [19556], stop=("\ufffd",))
    assert generation.outcome is not None and generation.outcome.text == streamed(steps) == " is"
    assert ending(generation) == ("stop", "stop_string", "\ufffd")
    steps, generation = say(tokenizer, [314, 10813], [19556])
    assert generation.outcome is not None and generation.outcome.text == streamed(steps) == " is\ufffd"


@pytest.mark.model
def test_one_reason_whatever_ends_it(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:  # C06-14
    model = scripted(tokenizer, [314, 8590, 17], [19556])
    asked: dict[str, Any] = dict(ids=[19556], policy=GREEDY, seed=0, stop=["Alice!!"])
    with model.stream(max_tokens=50, **asked) as stream:
        next(stream), next(stream)
    assert stream.run.stop_reason == {"kind": "cancelled"} and stream.run.text == " is Alice"
    stream = model.stream(max_tokens=50, time_limit=5, **asked)
    next(stream)
    now = time.perf_counter_ns()
    monkeypatch.setattr("glassbox.generation.time.perf_counter_ns", lambda: now + 6 * 10**9)
    assert list(stream) == [] and stream.run.finish_reason == "time" and stream.run.stop_reason == {"kind": "time"}


@pytest.mark.model
def test_tokens_of_one_character_share_an_offset(tokenizer: Tokenizer, tmp_path: Path) -> None:  # C03-09
    model = scripted(tokenizer, [181, 134, 125, 49], tokenizer.encode("X").ids)
    with glassbox.open_store(tmp_path / "runs.db") as store:
        stream = model.stream("X", policy=GREEDY, max_tokens=4, seed=0, store=store)
        assert [s.text_offset for s in stream] == [1, 1, 1, 2]
        run = stream.run
        assert [s.text_offset for s in store.load("last").steps] == [1, 1, 1, 2]
    assert run.text == "\uae70A" and [s["text_offset"] for s in run.to_dict()["steps"]] == [1, 1, 1, 2]
    again = model.generate("X", policy=GREEDY, max_tokens=4, seed=0)
    assert [s.text_offset for s in again.steps] == [1, 1, 1, 2]


@pytest.mark.model
def test_offsets_after_half_a_character_of_the_prompt(tokenizer: Tokenizer) -> None:
    steps, generation = say(tokenizer, [218, 49], [19556, 10813, 242])  # Hello F0 9F 98 | 80 | A
    assert generation.request.encoding.text == "Hello\ufffd"
    assert [s.text_offset for s in steps] == [5, 6]  # of "Hello\U0001f600A"


# --- what the times mean (C15) ---------------------------------------------------------------------------------------


@pytest.mark.model
def test_times_and_speeds(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:  # C15-03
    clock = [0]
    monkeypatch.setattr("glassbox.generation.time.perf_counter_ns", lambda: clock[0])
    model = Scripted([314] * 8, 31, len(tokenizer.vocab))
    request = Request("scripted", encoding_of([19556] * 31, tokenizer), GREEDY, 0, 8)
    generation = Generation(request, tokenizer, model.new_cache(), model.context)
    generation.reused = Reuse(16, 16, "as it happens")
    clock[0] = 200_000_000
    generation.start()
    clock[0] = 250_000_000
    generation.start()  # a second pass over the prompt does not begin it anew
    row = np.zeros((1, len(tokenizer.vocab)), np.float32)
    for n in range(8):
        clock[0] = 500_000_000 + n * 100_000_000
        generation.accept(row, 1)
    clock[0] = 9_000_000_000  # whoever asks late
    assert generation.outcome is not None
    timings, usage = generation.outcome.timings, generation.outcome.usage
    assert (timings.queue_ns, timings.first_token_ns, timings.last_token_ns) == (
        200_000_000,
        500_000_000,
        1_200_000_000,
    )
    speed = speed_of(usage, timings)
    assert speed is not None and (speed.queue_s, speed.first_token_s, speed.evaluated_tokens) == (0.2, 0.5, 15)
    assert speed.gap_s == pytest.approx(0.1) and speed.decode_per_s == pytest.approx(10.0)
    assert speed.prefill_per_s == pytest.approx(15 / 0.3)  # not 31 / 0.3: what was cached was not read


def test_speeds_where_there_is_nothing_to_divide() -> None:
    assert speed_of(Usage(5, 0, 0), Timings(1, None, 9)) is None
    one = speed_of(Usage(5, 4, 1), Timings(10, 20, 30, 20))
    assert one is not None and (one.gap_s, one.decode_per_s, one.evaluated_tokens) == (None, None, 1)
    late = speed_of(Usage(5, 0, 3), Timings(0, 10, 10**9, 30))  # cancelled long after its last token
    assert late is not None and late.gap_s == pytest.approx(1e-8)
    at_once = speed_of(Usage(5, 0, 2), Timings(7, 7, 7, 7))
    assert at_once is not None and at_once.prefill_per_s is at_once.decode_per_s is None


@pytest.mark.model
def test_a_prompt_counts_the_same_cached_or_not(smollm2: glassbox.Model) -> None:  # C15-01, C15-02
    hi = [{"role": "user", "content": "Hi"}]
    told = [
        smollm2.generate(messages=hi, seed=1, max_tokens=2, salt="C15-01").to_dict() for _ in range(2)
    ]  # fmt: skip
    assert [t["usage"]["prompt_tokens"] for t in told] == [31, 31]
    assert [t["usage"]["cached_tokens"] for t in told] == [0, 30]
    assert [t["speed"]["evaluated_tokens"] for t in told] == [31, 1]


@pytest.mark.model
@pytest.mark.slow
def test_stream_equals_text_on_the_golden_prompts(smollm2: glassbox.Model, golden: dict[str, Any]) -> None:
    for p in golden["smollm2"]["prompts"]:
        for stop in ((), ("the", "e\n", "🙂"), (" of",)):
            asked: dict[str, Any] = dict(ids=p["ids"], policy=Policy(temperature=1.3), seed=5, max_tokens=16, stop=stop)
            run = smollm2.generate(**asked)
            assert streamed(list(run.steps)) == run.text
            assert not any(s in run.text for s in stop)
            if not stop:
                assert run.text == smollm2.decode(run.ids)
        again = smollm2.generate(**asked)  # C13-04: the same request again, other requests between
        assert [s.logits_hash for s in run.steps] == [s.logits_hash for s in again.steps] and run.ids == again.ids


EMOJI = "k 🙂👧日 é!"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("stem", ["smollm2", "gemma3"])
def test_stops_and_emoji_that_span_tokens(stem: str, golden: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """On every golden prompt: the model's own words, then emoji cut over tokens, streamed with a stop string laid
    across each pair of tokens that has text, are what the unstreamed text has before that string."""
    model: glassbox.Model = request.getfixturevalue(stem)
    spanned = 0
    for p in golden[stem]["prompts"]:
        forced = [*p["greedy_ids"][:3], *model.encode(EMOJI, add_special=False).ids]
        asked: dict[str, Any] = dict(ids=p["ids"], seed=5, max_tokens=len(forced), ignore_eos=True)
        run = model.generate(**asked, policy=Policy(forced_ids=forced))
        whole = model.decode(forced)
        assert list(run.ids) == forced and whole.endswith(EMOJI)
        assert (streamed(list(run.steps)), run.text) == (whole, whole)
        for before, after in pairwise(run.steps[1:]):
            if not (before.text and after.text):
                continue
            stop = before.text[-1] + after.text[0]
            with model.stream(**asked, policy=Policy(forced_ids=forced), stop=[stop]) as stream:
                shown = [step.text for step in stream]
            assert "".join(shown) == stream.run.text == whole[: whole.index(stop)], (p["index"], stop)
            assert stream.run.stop_reason == {"kind": "stop_string", "text": stop}
            spanned += 1
    assert spanned >= 4 * len(golden[stem]["prompts"])


@pytest.mark.model
@pytest.mark.parametrize("script", [[314, 120, 7042], [314, 127, 120]])
def test_a_head_wider_than_the_tokenizer_says_nothing_there(tokenizer: Tokenizer, script: list[int]) -> None:  # C02-11
    """Ids that no token has, chosen all the same: they say nothing, and the run goes on and can be recorded."""
    wide = len(tokenizer.vocab)
    script = [i if i not in (120, 127) else wide + i - 100 for i in script]
    model = glassbox.Model("wide", Scripted(script, 1, wide + 28), tokenizer, {}, "sha")
    run = model.generate(ids=[19556], policy=GREEDY, seed=0, max_tokens=3)
    assert list(run.ids) == script and run.finish_reason == "length"
    says = [model.decode([i]) for i in script]
    assert [s.text for s in run.steps] == says and says.count("") == sum(i >= wide for i in script)
    assert [s["bytes"] for s in run.to_dict()["steps"] if s["id"] >= wide] == [[]] * says.count("")
    mute = ", ".join(str(i) for i in script if i >= wide)
    assert run.to_dict()["warnings"] == [f"ids without a text in this tokenizer: {mute}"]


@pytest.mark.model
def test_the_end_of_the_context_ends_it(tokenizer: Tokenizer) -> None:
    model = Scripted([19556] * 50, 4, len(tokenizer.vocab))
    model.context = 10
    request = Request("scripted", encoding_of([1, 2, 3, 4], tokenizer), GREEDY, 0, 50)
    generation = Generation(request, tokenizer, model.new_cache(), model.context)
    steps = list(Engine(model).stream(generation))
    assert len(steps) == 6 and ending(generation) == ("length", "context_end", 10)


# --- the bigram model ----------------------------------------------------------------------------------------------


@pytest.fixture
def bigram() -> glassbox.Model:
    return glassbox.load("bigram")


def test_bigram_is_the_labs_table(bigram: glassbox.Model) -> None:
    from labs.glassbox.v4_token_trace import BIGRAM_LOGITS

    assert bigram.logits([1, 2]).tolist() == [list(BIGRAM_LOGITS[1]), list(BIGRAM_LOGITS[2])]
    assert [bigram.decode([i]) for i in range(4)] == list(TOKENS)
    assert list(bigram.encode("ab c").ids) == [1, 2, 0, 3]


def test_a_step_says_how_it_came_about(bigram: glassbox.Model) -> None:
    run = bigram.generate("ab", policy=Policy(temperature=0.8), seed=7, max_tokens=5)
    first, c = run.steps[0], run.steps[0].choice
    logits = np.array([0.75, 0.5, -1, 2])
    p = np.exp(logits / 0.8) / np.exp(logits / 0.8).sum()
    assert (first.id, first.text, first.bytes, first.position) == (3, "c", b"c", 2)
    assert c.u is not None and c.cdf_lo <= c.u < c.cdf_hi
    assert np.isclose(c.cdf_hi - c.cdf_lo, p[3]) and np.isclose(np.exp(c.logprob_final), p[3])
    assert first.logits_hash == logits_hash(logits.astype(np.float32))
    assert [row.name for row in first.ledger] == ["raw logits", "temperature"]
    assert {x.id for x in first.candidates} == {0, 1, 2, 3}
    assert run.usage.prompt_tokens == 2 and run.usage.completion_tokens == 5
    assert run.ids == bigram.generate("ab", policy=Policy(temperature=0.8), seed=7, max_tokens=5).ids


def test_a_draw_depends_on_its_position_alone(bigram: glassbox.Model) -> None:
    """Continuing from what was said gives what would have been said (C13-03, C13-04)."""
    long = bigram.generate("ab", policy=Policy(temperature=1.5), seed=11, max_tokens=12)
    head = bigram.generate("ab", policy=Policy(temperature=1.5), seed=11, max_tokens=5)
    tail = bigram.generate(ids=[1, 2, *head.ids], policy=Policy(temperature=1.5), seed=11, max_tokens=7)
    assert head.ids + tail.ids == long.ids


def test_a_seed_is_drawn_and_told(bigram: glassbox.Model) -> None:
    a, b = (bigram.generate("ab", max_tokens=30) for _ in range(2))
    assert a.seed != b.seed
    assert bigram.generate("ab", max_tokens=30, seed=a.seed).ids == a.ids


@pytest.mark.parametrize("prompt", ["", "xyz"])
def test_a_prompt_without_ids_is_refused(bigram: glassbox.Model, prompt: str) -> None:
    with pytest.raises(PromptError, match=r"empty|no ids|cannot"):
        bigram.generate(prompt)


def test_bad_requests_are_named(bigram: glassbox.Model) -> None:
    for asked, error in (
        (dict(), "exactly one of prompt, messages and ids must be given; here: none"),
        (dict(prompt="a", ids=[1]), "exactly one of prompt, messages and ids must be given; here: prompt, ids"),
        (dict(prompt="a", max_tokens=0), "max_tokens is 0"),
        (dict(prompt="a", seed=-1), "seed is -1"),
        (dict(prompt="a", seed=2**64), "seed is"),
        (dict(prompt="a", stop=[""]), "stop is ''"),
        (dict(ids=[9]), "id 9 is outside the vocabulary of 4"),
        (dict(messages=[{"role": "user", "content": "a"}]), "bigram has no chat template"),
    ):
        with pytest.raises((ParameterError, PromptError), match=error):
            bigram.generate(**asked)


# --- failures and leaving early ------------------------------------------------------------------------------------


class Broken(BigramModel):
    """Gives NaN after a few positions, as a model with a broken weight does."""

    def forward_parts(self, parts: Sequence[Part], look: frozenset[str] = frozenset()) -> Computed:
        out = super().forward_parts(parts, look)
        logits = out.logits.copy()
        if parts[0].cache.length > 4:
            logits[:, 2] = np.nan
        return Computed(logits, out.points)


def broken() -> glassbox.Model:
    return glassbox.Model("broken", Broken(), Tokenizer.from_gguf(METADATA), METADATA, "broken")


def test_nan_ends_it_with_its_name_and_keeps_what_was_made(tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        with pytest.raises(NonFiniteLogits, match="at step 3 after the forward pass at id 2, first seen at logits"):
            broken().generate("ab", seed=1, store=store)
        run = store.load("last")
    assert run.status == "error" and len(run.steps) == 3 and run.error is not None and "non-finite" in run.error


def test_an_error_leaves_its_neighbour_alone() -> None:
    model, tokenizer = Broken(), Tokenizer.from_gguf(METADATA)
    good = BigramModel()
    engine = Engine(model)
    a, b = (
        Generation(Request("m", encoding_of([1, 2], tokenizer), GREEDY, 0, n), tokenizer, good.new_cache(), 99)
        for n in (2, 8)
    )
    engine.add(a)
    engine.add(b)
    while engine.running or engine.waiting:
        engine.step()
    assert ending(a)[1] == "max_tokens" and ending(b)[1] == "error"


def test_leaving_the_loop_cancels_and_keeps_the_text(bigram: glassbox.Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        with bigram.stream("ab", seed=3, max_tokens=50, store=store) as stream:
            for step in stream:
                if step.step == 4:
                    break
        kept = store.load(stream.run.run_id)
    assert kept.finish_reason == "cancelled" and len(kept.steps) == 5
    assert kept.text == streamed(list(kept.steps)) == stream.run.text


@pytest.mark.parametrize("asked", [0, 1, 3])
@pytest.mark.parametrize("how", [{}, {"speculate": True}, {"beam": glassbox.Beam(2)}])
def test_what_a_neighbours_passes_made_is_recorded_too(
    bigram: glassbox.Model, tmp_path: Path, asked: int, how: dict[str, Any]
) -> None:
    """Closed behind its passes, a run has all steps that its text and its usage are of."""
    with glassbox.open_store(tmp_path / "runs.db") as store:
        stream = bigram.stream("ab", seed=3, max_tokens=9, ignore_eos=True, store=store, **how)
        with stream, bigram.stream("ba", seed=4, max_tokens=9, ignore_eos=True) as other:
            for _ in range(asked):
                next(stream)
            for _ in range(5):
                next(other)
        run, kept = stream.run, store.load(stream.run.run_id)
    for found in (run, kept):
        assert found.text == streamed(list(found.steps))
        assert found.usage.completion_tokens == len(found.steps) >= asked
    assert asked == 0 or len(run.steps) > asked or run.finish_reason != "cancelled"


def test_interrupting_keeps_the_text(bigram: glassbox.Model, tmp_path: Path) -> None:
    class Interrupted(BigramModel):
        def forward_parts(self, parts: Sequence[Part], look: frozenset[str] = frozenset()) -> Computed:
            if parts[0].cache.length > 5:
                raise KeyboardInterrupt
            return super().forward_parts(parts, look)

    model = glassbox.Model("bigram", Interrupted(), bigram.tokenizer, METADATA, "bigram")
    with glassbox.open_store(tmp_path / "runs.db") as store:
        with pytest.raises(KeyboardInterrupt):
            model.generate("ab", seed=3, max_tokens=50, store=store)
        kept = store.load("last")
    assert kept.finish_reason == "cancelled" and len(kept.steps) == 5 and len(kept.text) == 5


def test_a_stream_that_is_never_begun_is_recorded_as_cancelled(bigram: glassbox.Model, tmp_path: Path) -> None:
    with glassbox.open_store(tmp_path / "runs.db") as store:
        bigram.stream("ab", store=store).close()
        assert store.load("last").finish_reason == "cancelled"


def test_many_at_once_equal_each_alone(bigram: glassbox.Model) -> None:
    tokenizer = bigram.tokenizer
    requests = [
        Request("bigram", encoding_of(ids, tokenizer), Policy(temperature=1.2), seed, n)
        for seed, (ids, n) in enumerate([([1, 2], 9), ([3] * 200, 4), ([0, 1, 2], 30), ([2], 1)])
    ]
    engine = Engine(bigram.model)
    together = [Generation(r, tokenizer, bigram.model.new_cache(), 4096) for r in requests]
    for g in together:
        engine.add(g)
    while engine.running or engine.waiting:
        engine.step()
    for g, r in zip(together, requests, strict=True):
        alone = Generation(r, tokenizer, bigram.model.new_cache(), 4096)
        assert [s.id for s in Engine(bigram.model).stream(alone)] == g.ids[len(r.encoding.ids) :]
