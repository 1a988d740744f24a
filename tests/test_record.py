"""A run recorded is the run read back; its JSON is the contract. The builder serves the store's tests too."""

from __future__ import annotations

import json
import random
import statistics
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassbox.choose import Choice
from glassbox.events import PromptToken, Step
from glassbox.outcome import Outcome, Timings, Usage
from glassbox.policy.policy import Candidate, LedgerRow, Policy
from glassbox.request import Provenance, Request
from glassbox.stop import Ending
from glassbox.text.segments import Segment
from glassbox.text.tokenizer import Encoding
from glassbox.trace import runid
from glassbox.trace.record import Recorder, Run
from glassbox.trace.store import open_store

SECRET = "the heron of Zanzibar"
SEED = 2**64 - 3
VOCAB = 49_152
PROVENANCE = Provenance(
    "a1" * 32, "b2" * 32, "c3" * 32, "x86-64-v3/0123456789abcdef", "0.1.0", 2, "2025-03-04T05:06:07"
)


def make_request(prompt: int = 6, **changes: object) -> Request:
    """A chat prompt of `prompt` tokens around a text that is easy to search for in a file."""
    text = f"<|user|>{SECRET}?<|end|>"
    encoding = Encoding(
        ids=tuple(range(100, 100 + prompt)),
        spans=tuple((min(i, 4) * 5, min(i, 4) * 5 + 5) for i in range(prompt)),
        kinds=("control", *("normal",) * (prompt - 2), "byte"),
        segments=(0, *(1,) * (prompt - 2), 2),
        segment_list=(
            Segment("template", None, "<|user|>", True),
            Segment("message 0", "user", f"{SECRET}?"),
            Segment("template", None, "<|end|>", True),
        ),
        text=text,
        lossy=("byte 0x04 at offset 1",),
        notes=("no chat template",),
    )
    request = Request(
        model="smollm2-135m",
        encoding=encoding,
        policy=Policy(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02),
        seed=SEED,
        max_tokens=64,
        stop=("\n\n", "Ünde"),
        stop_ids=(2, 49_151),
        sequence=3,
        messages=({"role": "user", "content": f"{SECRET}?"},),
        sources={"temperature": "flag", "top_p": "model file"},
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def make_prompt(request: Request, reused: int = 2) -> tuple[PromptToken, ...]:
    e = request.encoding
    return tuple(
        PromptToken(
            i,
            e.ids[i],
            SECRET[i].encode(),
            e.segments[i],
            "reused" if i < reused else "computed",
            -0.5 * i if i else None,
        )
        for i in range(len(e.ids))
    )


def make_step(n: int, request: Request, greedy: bool = False) -> Step:
    """As a sampled step of a real model looks: five ledger rows, eight candidates, full float64 digits."""
    rng = random.Random(n)
    position = len(request.encoding.ids) + n
    ids = rng.sample(range(VOCAB), 40)
    probs = sorted((rng.random() for _ in range(8)), reverse=True)
    top = tuple((ids[i], probs[i] / 8) for i in range(5))

    def row(name: str, params: dict[str, float], before: int, after: int) -> LedgerRow:
        gone = tuple(ids[20:36]) if after < before else ()
        return LedgerRow(
            name, params, before, after, rng.random() / 9, before - after, gone, rng.random(), top, n % 2 == 1
        )

    ledger = (
        row("raw logits", {}, VOCAB, VOCAB),
        row("temperature", {"temperature": 0.8}, VOCAB, VOCAB),
        row("top_k", {"top_k": 40}, VOCAB, 40),
        row("top_p", {"top_p": 0.9}, 40, 17),
        row("min_p", {"min_p": 0.02 if n != 2 else 0.03}, 17, 9),  # a step may change its parameters under way
    )
    ledger = tuple(replace(r, entropy_before=ledger[max(0, i - 1)].entropy) for i, r in enumerate(ledger))
    candidates = tuple(
        Candidate(ids[i], struct.unpack("f", struct.pack("f", rng.gauss(3, 9)))[0], probs[i], 0.0, "top_p")
        if i > 4
        else Candidate(ids[i], rng.gauss(3, 9), probs[i], probs[i] * 1.1, None)
        for i in range(8)
    )
    u = None if greedy else rng.random()
    choice = Choice(
        id=ids[0],
        u=u,
        cdf_lo=0.0,
        cdf_hi=1.0 if u is None else u + rng.random() / 7,
        counter=None if greedy else (request.seed, request.sequence, position),
        logprob_raw=-rng.random(),
        logprob_final=-rng.random(),
        rank_raw=n % 5,
        ties=n % 2,
    )
    return Step(
        step=n,
        position=position,
        id=ids[0],
        bytes=b" tok\xc3\xa9"[: 1 + n % 7],
        text=" tokÃ"[: 1 + n % 5],
        choice=choice,
        ledger=ledger,
        candidates=candidates,
        entropy=rng.random() * 5,
        logits_hash=f"{rng.getrandbits(64):016x}",
        model_ns=9_000_000 + rng.randrange(10**6),
        policy_ns=300_000 + rng.randrange(10**5),
    )


def make_outcome(steps: int, request: Request, ending: Ending | None = None) -> Outcome:
    usage = Usage(len(request.encoding.ids), 2, steps)
    ending = ending or Ending("stop_string", "\n\n")
    return Outcome(ending, "the text as delivered", usage, Timings(1_000, 40_000_000, 900_000_000))


def record(recorder: Recorder, steps: int = 4, request: Request | None = None) -> Run:
    """A whole run, as a generation would pass it on."""
    request = request or make_request()
    recorder.begin(request, PROVENANCE)
    recorder.prompt(make_prompt(request))
    for n in range(steps):
        recorder.step(make_step(n, request))
    recorder.end(make_outcome(steps, request))
    recorder.close()
    return recorder.run


def stripped(run: Run, level: str, retain: str) -> Run:
    """What a store of this level and retention may still know of a run, apart from the code under test."""
    steps, request, prompt, outcome = run.steps, run.request, run.prompt, run.outcome
    if level == "ids" or retain == "none":
        steps = tuple(replace(s, ledger=(), candidates=()) for s in steps)
    if retain != "text":
        e = request.encoding
        segments = tuple(replace(s, text="") for s in e.segment_list)
        e = replace(e, segment_list=segments, text="", lossy=(), notes=())
        request = replace(request, encoding=e, messages=None)
        steps = tuple(replace(s, text="", bytes=b"") for s in steps)
        prompt = tuple(replace(t, bytes=b"") for t in prompt)
        outcome = outcome and replace(outcome, text="")
    if retain == "none":
        e = replace(request.encoding, ids=(), spans=(), kinds=(), segments=(), segment_list=())
        request = replace(request, encoding=e, stop=(), stop_ids=())
        steps, prompt = (), ()
        outcome = outcome and replace(outcome, ending=Ending(outcome.ending.kind))
    return replace(
        run,
        steps=steps,
        request=request,
        prompt=prompt,
        outcome=outcome,
        level=level,
        retain=retain,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("level", ["look", "ids"])
@pytest.mark.parametrize("retain", ["text", "ids", "none"])
def test_round_trip(tmp_path: Path, level: str, retain: str) -> None:
    with open_store(tmp_path / "runs.db") as store:
        recorder = Recorder(store, level=level, retain=retain)  # type: ignore[arg-type]
        run = record(recorder)
        assert recorder.problem is None
        loaded = store.load(run.run_id)
        assert store.verify(run.run_id) is None
    assert loaded == stripped(run, level, retain)
    assert run.status == loaded.status == "done"
    assert loaded.usage == Usage(6, 2, 4)
    assert [t[0] for t in loaded.token_ns] == [s.model_ns for s in run.steps]
    if (level, retain) == ("look", "text"):
        assert loaded == run
        assert loaded.to_dict() == run.to_dict()
        assert loaded.steps[2].ledger[4].params == {"min_p": 0.03}
        assert loaded.steps[3].ledger[4].params == {"min_p": 0.02}
        assert loaded.seed == SEED
        assert loaded.steps[1].choice.counter == (SEED, 3, 7)
    else:
        assert loaded != run


def test_round_trip_in_another_process_sees_the_same_file(tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db") as store:
        run = record(Recorder(store))
    with open_store(tmp_path / "runs.db", readonly=True) as again:
        assert again.load("last") == run


def test_greedy_and_odd_values_come_back(tmp_path: Path) -> None:
    request = make_request(messages=None, stop=(), sequence=2**64 - 1)
    step = make_step(0, request, greedy=True)
    choice = replace(step.choice, logprob_raw=float("-inf"), cdf_lo=-0.0)
    candidate = replace(step.candidates[0], logit=float("-inf"))
    foreign = make_step(1, request)
    foreign = replace(foreign, choice=replace(foreign.choice, counter=(5, 6, 7)))
    with open_store(tmp_path / "runs.db") as store:
        recorder = Recorder(store)
        recorder.begin(request, replace(PROVENANCE, template_sha256=None, clock=None), make_prompt(request, reused=0))
        recorder.step(replace(step, choice=choice, candidates=(candidate,), text="nul \0 and snow ☃"))
        recorder.step(foreign)
        recorder.end(make_outcome(2, request, Ending("max_tokens", 2)))
        recorder.close()
        assert recorder.problem is None
        loaded = store.load()
    assert loaded == recorder.run
    assert loaded.steps[0].choice.u is None
    assert loaded.steps[0].choice.counter is None
    assert loaded.steps[1].choice.counter == (5, 6, 7)
    text = json.dumps(loaded.to_dict(), allow_nan=False)
    first = json.loads(text)["steps"][0]
    assert first["logprob_raw"] is None
    assert first["candidates"][0]["logit"] is None
    assert first["u"] is None
    assert json.loads(text)["seed"] == SEED


CONTRACT = [
    "run_id",
    "model",
    "prompt_text",
    "prompt_ids",
    "text",
    "finish_reason",
    "stop_reason",
    "usage",
    "seed",
    "policy",
    "fingerprint",
    "steps",
]
STEP_CONTRACT = [
    "step",
    "id",
    "text",
    "bytes",
    "logprob_raw",
    "logprob_final",
    "rank_raw",
    "u",
    "cdf_lo",
    "cdf_hi",
    "logits_hash",
    "ledger",
    "candidates",
]


def test_json_contract() -> None:
    run = record(Recorder(None))
    told = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert set(CONTRACT) <= set(told)
    assert list(told)[: len(CONTRACT)] == CONTRACT
    assert told["run_id"] == run.run_id
    assert told["model"] == "smollm2-135m"
    assert told["prompt_text"] == f"<|user|>{SECRET}?<|end|>"
    assert told["prompt_ids"] == [100, 101, 102, 103, 104, 105]
    assert told["text"] == "the text as delivered"
    assert (told["finish_reason"], told["stop_reason"]) == ("stop", {"kind": "stop_string", "text": "\n\n"})
    counts = {"prompt_tokens": 6, "cached_tokens": 2, "completion_tokens": 4}
    assert told["usage"] == counts | {"submitted_tokens": 6, "dropped": 0}
    assert told["seed"] == 18446744073709551613
    assert Policy.from_dict(told["policy"]) == run.policy
    assert told["fingerprint"] == PROVENANCE.engine
    assert told["warnings"] == ["byte 0x04 at offset 1", "no chat template"]
    assert told["segments"][1] == {
        "origin": "message 0",
        "role": "user",
        "text": f"{SECRET}?",
        "trusted": False,
    }
    assert told["prompt"][5] == {
        "position": 5, "id": 105, "text": "e", "bytes": [101], "kind": "byte", "segment": 2, "span": [20, 25],
        "kv": "computed", "logprob": -2.5,
    }  # fmt: skip
    for n, (step, made) in enumerate(zip(told["steps"], run.steps, strict=True)):
        assert set(STEP_CONTRACT) <= set(step)
        assert (step["step"], step["id"], bytes(step["bytes"])) == (n, made.id, made.bytes)
        assert step["u"] == made.choice.u
        assert step["logits_hash"] == made.logits_hash
        assert [row["name"] for row in step["ledger"]] == [
            "raw logits",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
        ]
        assert step["candidates"][7]["removed_by"] == "top_p"


def test_json_says_null_for_what_was_not_kept(tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db") as store:
        record(Recorder(store, level="ids", retain="ids"))
        told = store.load().to_dict()
    assert told["text"] is told["prompt_text"] is told["segments"] is None
    assert told["prompt_ids"] == [100, 101, 102, 103, 104, 105]
    step = told["steps"][0]
    assert step["text"] is step["bytes"] is step["ledger"] is step["candidates"] is None
    assert step["id"] == make_step(0, make_request()).id


def test_without_a_store_the_run_is_all_the_same() -> None:
    recorder = Recorder(None)
    request = make_request()
    run_id = recorder.begin(request, PROVENANCE)
    assert recorder.run.status == recorder.run.finish_reason == "running"
    assert recorder.run.to_dict()["usage"] == {
        "prompt_tokens": 6,
        "cached_tokens": None,
        "completion_tokens": 0,
        "submitted_tokens": 6,
        "dropped": 0,
    }
    recorder.prompt(make_prompt(request)[:3])
    recorder.step(make_step(0, request))
    assert recorder.run.usage == Usage(6, 2, 1)
    assert recorder.run.text == make_step(0, request).text != ""
    recorder.close()
    assert recorder.problem is None
    assert (recorder.run.run_id, recorder.run.finish_reason) == (run_id, "interrupted")


@pytest.mark.parametrize(
    ("exc", "reason", "stop_reason"),
    [
        (KeyboardInterrupt(), "cancelled", None),
        (ValueError(f"no {SECRET}"), "error", {"kind": "error", "detail": f"ValueError: no {SECRET}"}),
    ],
)
def test_failure_is_recorded(tmp_path: Path, exc: BaseException, reason: str, stop_reason: object) -> None:
    with open_store(tmp_path / "runs.db") as store:
        recorder = Recorder(store)
        request = make_request()
        recorder.begin(request, PROVENANCE)
        recorder.prompt(make_prompt(request))
        recorder.step(make_step(0, request))
        recorder.fail(exc)
        recorder.fail(RuntimeError("a second one changes nothing"))
        recorder.close()
        loaded = store.load()
        assert loaded == recorder.run
        assert store.runs()[0].finish_reason == reason
    assert (loaded.status, loaded.finish_reason, loaded.stop_reason) == (reason, reason, stop_reason)
    assert loaded.text == make_step(0, request).text
    assert loaded.usage == Usage(6, 2, 1)


def test_closing_without_an_ending_is_an_interruption(tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db") as store:
        recorder = Recorder(store)
        recorder.begin(make_request(), PROVENANCE)
        recorder.close()
        assert store.load() == recorder.run
        assert store.load().prompt == ()
        assert store.load().prompt_ids == (100, 101, 102, 103, 104, 105)
        assert store.load().finish_reason == "interrupted"


def test_a_value_that_cannot_be_stored_costs_the_trace_and_not_the_run(tmp_path: Path) -> None:
    request = make_request()
    with open_store(tmp_path / "runs.db") as store:
        recorder, neighbour = Recorder(store), Recorder(store)
        neighbour.begin(request, PROVENANCE)
        recorder.begin(request, PROVENANCE)
        recorder.step(make_step(0, request))
        recorder.step(replace(make_step(1, request), logits_hash="not hexadecimal"))
        recorder.step(make_step(2, request))
        recorder.end(make_outcome(3, request))
        recorder.close()
        neighbour.step(make_step(0, request))
        neighbour.end(make_outcome(1, request))
        neighbour.close()
        assert recorder.problem is not None
        assert "ValueError" in recorder.problem
        assert len(recorder.run.steps) == 3
        kept = store.load(recorder.run_id)
        assert (len(kept.steps), kept.finish_reason, kept.problem) == (1, "stop", recorder.problem)
        assert neighbour.problem is None
        assert store.load(neighbour.run_id) == neighbour.run


def test_a_row_the_store_refuses_costs_only_its_own_run(tmp_path: Path) -> None:
    request = make_request()
    with open_store(tmp_path / "runs.db") as store:
        recorder, neighbour = Recorder(store), Recorder(store)
        recorder.begin(request, PROVENANCE)
        neighbour.begin(request, PROVENANCE)
        store.flush()
        recorder.step(make_step(0, request))
        recorder.step(make_step(0, request))  # the same position twice
        neighbour.step(make_step(0, request))
        recorder.end(make_outcome(2, request))
        neighbour.end(make_outcome(1, request))
        recorder.close()
        neighbour.close()
        assert "IntegrityError" in (recorder.problem or "")
        kept = store.load(recorder.run_id)
        assert (kept.steps, kept.finish_reason, kept.problem) == ((), "stop", recorder.problem)
        assert store.load(neighbour.run_id) == neighbour.run


def test_a_recorder_records_one_run() -> None:
    recorder = Recorder(None)
    with pytest.raises(RuntimeError, match="not begun"):
        _ = recorder.run
    recorder.begin(make_request(), PROVENANCE)
    with pytest.raises(RuntimeError, match="begun already"):
        recorder.begin(make_request(), PROVENANCE)


def test_repr_says_what_happened() -> None:
    run = record(Recorder(None))
    what = f"{run.run_id} smollm2-135m: 6 + 4 tokens, seed {SEED}, stop (stop_string), not recorded"
    assert repr(run) == f"<Run {what}: 'the text as delivered'>"


def test_run_ids_sort_and_never_repeat_even_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    clock = iter([now, now, now + 5_000_000, now - 3_600_000_000_000, now - 3_600_000_000_000])
    monkeypatch.setattr(runid.time, "time_ns", lambda: next(clock))
    ids = [runid.new_run_id() for _ in range(5)]
    assert ids == sorted(set(ids))
    assert all(len(i) == 14 and set(i) <= set(runid.ALPHABET) for i in ids)


finite = st.floats(allow_nan=False, allow_infinity=True)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 1), finite, finite, st.text(st.characters(codec="utf-8"))),
        max_size=6,
    ),
    st.integers(0, 2**64 - 1),
)
def test_any_values_survive(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[int, float, float, str]], seed: int
) -> None:
    request = make_request(seed=seed)
    with open_store(tmp_path_factory.mktemp("store") / "runs.db") as store:
        recorder = Recorder(store)
        recorder.begin(request, PROVENANCE)
        for n, (token, a, b, text) in enumerate(values):
            step = make_step(n, request)
            ledger = replace(step.ledger[0], name=text, params={text: a}, removed_ids=(token,), top=((token, b),))
            candidate = Candidate(token, a, b, a, text)
            step = replace(step, id=token, choice=replace(step.choice, id=token, cdf_lo=a), entropy=b)
            recorder.step(replace(step, text=text, bytes=text.encode(), ledger=(ledger,), candidates=(candidate,)))
        recorder.close()
        assert store.load() == recorder.run
        json.dumps(store.load().to_dict(), allow_nan=False)


def test_recording_costs_the_caller_little(tmp_path: Path) -> None:
    """The budget is 60 µs a token; the median over blocks keeps a busy machine from failing this."""
    request = make_request()
    steps = [make_step(n, request) for n in range(400)]
    blocks = []
    with open_store(tmp_path / "runs.db") as store:
        recorder = Recorder(store)
        recorder.begin(request, PROVENANCE)
        for k in range(0, 400, 20):
            start = time.perf_counter_ns()
            for step in steps[k : k + 20]:
                recorder.step(step)
            blocks.append((time.perf_counter_ns() - start) / 20 / 1000)
        recorder.close()
        assert recorder.problem is None
        assert len(store.load().steps) == 400
    assert statistics.median(blocks) < 60
