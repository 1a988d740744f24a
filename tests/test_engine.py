"""Many sequences at once on a real forward pass: whatever the company, each one's bits are those it has alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import random_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glassbox
from glassbox import Intervention
from glassbox.cache.pages import PAGE
from glassbox.draft import PromptLookup
from glassbox.errors import OutOfMemory, ParameterError
from glassbox.generation import Generation
from glassbox.model.execute import CHUNK
from glassbox.opening import encoding_of
from glassbox.policy.policy import Policy
from glassbox.request import Request

T = gguf.GGMLQuantizationType
P = Policy(temperature=0.9, top_p=0.97)
LONG = [int(i) for i in np.random.default_rng(1).integers(0, 90, 200)]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("models") / "m.gguf"
    return random_gguf.write(to, request.param, request.param, [T.Q8_0, T.Q4_1, T.F32], window=24)


@pytest.fixture
def model(path: Path) -> Iterator[glassbox.Model]:
    model = glassbox.load(path, threads=2)
    yield model
    assert not model.engine.running and not model.engine.waiting
    assert model.engine.prefixes is not None
    model.engine.prefixes.clear()
    assert model.model.new_cache().pool.used == 0, "a page leaked"


def generation(model: glassbox.Model, ids: list[int], seed: int = 0, n: int = 12, **how: Any) -> Generation:
    request = Request("m", encoding_of(ids, model.tokenizer), P, seed, n, ignore_eos=True, **how)
    return Generation(request, model.tokenizer, model.model.new_cache(), model.context)


def hashes(g: Generation) -> list[tuple[int, str]]:
    return [(s.id, s.logits_hash) for s in g.inbox if not isinstance(s, Exception)]


def alone(path: Path, ids: list[int], seed: int = 0, n: int = 12) -> list[tuple[int, str]]:
    """From a model of its own: one thread, nothing cached, nobody else."""
    run = glassbox.load(path, threads=1).generate(
        ids=ids, policy=P, seed=seed, max_tokens=n, ignore_eos=True, reuse=False
    )
    return [(s.id, s.logits_hash) for s in run.steps]


def drain(model: glassbox.Model) -> None:
    while model.engine.running or model.engine.waiting:
        model.engine.step()


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("speculate", [False, True])
def test_batches_change_no_bit(model: glassbox.Model, path: Path, batch: int, speculate: bool) -> None:
    """Neighbours come and go: they start at different times and have different lengths."""
    asked = [(LONG[i : i + 5 + 17 * i], i, 6 + i) for i in range(batch)]
    made = []
    for ids, seed, n in asked:
        made.append(generation(model, ids, seed, n, speculate=speculate))
        model.engine.add(made[-1])
        model.engine.step()
    drain(model)
    for g, (ids, seed, n) in zip(made, asked, strict=True):
        assert hashes(g) == alone(path, ids, seed, n)


def test_a_prefix_hit_changes_no_bit_and_is_told(model: glassbox.Model, path: Path) -> None:
    asked = dict(ids=LONG[:100], policy=P, seed=4, max_tokens=10, ignore_eos=True)
    cold, warm = model.generate(**asked), model.generate(**asked)
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 99)
    assert [p.kv for p in warm.prompt].count("reused") == 99 and warm.prompt[-1].kv == "computed"
    assert [s.logits_hash for s in cold.steps] == [s.logits_hash for s in warm.steps]
    other = model.generate(**(asked | dict(ids=[*LONG[:50], 3, *LONG[51:100]])))
    if not model.model.new_cache().pool.shape.groups[-1].window:
        assert other.usage.cached_tokens == 50
        assert other.outcome is not None and f"at position 50 the cached sequence has id {LONG[50]}" in str(
            other.outcome.reuse
        )
    assert [(s.id, s.logits_hash) for s in other.steps] == alone(path, [*LONG[:50], 3, *LONG[51:100]], 4, 10)


def test_reuse_can_be_off_or_private(model: glassbox.Model) -> None:
    asked = dict(ids=LONG[:60], policy=P, seed=4, max_tokens=3)
    model.generate(**asked, salt="a")
    assert model.generate(**asked, salt="b").usage.cached_tokens == 0
    assert model.generate(**asked, salt="c", reuse=False).usage.cached_tokens == 0
    assert model.generate(**asked, salt="c").usage.cached_tokens == 0  # that one left nothing,
    assert model.generate(**asked, salt="c", reuse=False).usage.cached_tokens == 0  # and takes nothing
    assert model.generate(**asked, salt="a").usage.cached_tokens == 59


def test_evicted_and_recomputed_changes_no_bit(model: glassbox.Model) -> None:
    asked = dict(ids=LONG[:100], policy=P, seed=4, max_tokens=10)
    cold = model.generate(**asked)
    assert model.engine.prefixes is not None
    while len(model.engine.prefixes) > 2:
        model.engine.prefixes.evict()
    again = model.generate(**asked)
    assert again.usage.cached_tokens < 99
    assert [s.logits_hash for s in cold.steps] == [s.logits_hash for s in again.steps]


def test_a_long_prompt_does_not_stop_the_others(model: glassbox.Model) -> None:
    """While 200 ids are read, a sequence that decodes gets a token in every pass."""
    talking = generation(model, LONG[:4], n=30)
    model.engine.add(talking)
    model.engine.step()
    model.engine.add(reading := generation(model, LONG))
    passes = 0
    while not reading.decoding:
        before = talking.steps
        model.engine.step()
        passes += 1
        assert talking.steps == before + 1
    assert passes > 3  # the prompt was really cut
    drain(model)


def test_who_changes_inner_values_does_not_stop_the_others(model: glassbox.Model) -> None:
    """Each kind of change has a pass of its own, in every step."""
    half, none = Intervention("mlp_out.0", "scale", 0.5), Intervention("mlp_out.0", "zero")
    made = [generation(model, LONG[:9], interventions=changed) for changed in ((), (half,), (none,), (half,))]
    for g in made:
        model.engine.add(g)
    for _ in range(3):
        model.engine.step()
    assert [g.steps for g in made] == [3, 3, 3, 3]
    drain(model)


def test_guesses_are_made_as_far_as_they_can_be_of_use(model: glassbox.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many that not all guesses fit into a pass, each near its end: no pass is too wide, no position too far."""
    monkeypatch.setattr(PromptLookup, "guess", lambda _, ids: [5, 6, 7, 8])
    forward, wide, far = model.model.forward_parts, [0], [0]

    def seen(parts: Any, *how: Any) -> Any:
        wide.append(sum(len(p.ids) for p in parts))
        far.append(max(p.cache.length + len(p.ids) for p in parts))
        return forward(parts, *how)

    monkeypatch.setattr(model.model, "forward_parts", seen)
    made = [generation(model, [5, 6, i % 90], seed=i, n=6, speculate=True, reuse=False) for i in range(40)]
    for g in made:
        model.engine.add(g)
    drain(model)
    assert all(len(hashes(g)) == 6 for g in made)
    assert 40 < max(wide) <= CHUNK and max(far) == 3 + 6 - 1  # the last token is not read any more


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancelled_at_any_point_leaves_the_neighbour_alone(model: glassbox.Model, path: Path, after: int) -> None:
    """Cancelled while waiting, while its prompt is read, and while it decodes."""
    stays, goes = generation(model, LONG[:9], 1), generation(model, LONG, 2)
    model.engine.add(stays)
    model.engine.add(goes)
    for _ in range(after):
        model.engine.step()
    model.engine.drop(goes)
    assert goes.outcome is not None and goes.outcome.ending.kind == "cancelled"
    drain(model)
    assert hashes(stays) == alone(path, LONG[:9], 1)


def test_one_that_has_ended_leaves_before_the_next_pass(model: glassbox.Model) -> None:
    """As where an interrupt came between its last token and its leaving."""
    running, waiting = generation(model, LONG[:9]), generation(model, LONG[:9])
    model.engine.add(running)
    model.engine.step()
    model.engine.add(waiting)
    for g in (running, waiting):
        g.stop("cancelled")
    model.engine.step()
    assert not model.engine.running and not model.engine.waiting
    assert (running.steps, waiting.steps, running.cache.length) == (1, 0, 0)


def test_a_time_limit_ends_it(model: glassbox.Model) -> None:
    run = model.generate(ids=LONG[:4], max_tokens=250, ignore_eos=True, time_limit=0.02, seed=1)
    assert run.finish_reason == "time" and len(run.steps) < 250
    with pytest.raises(ParameterError, match="time_limit is 0"):
        model.generate(ids=[1], time_limit=0)


def test_a_time_limit_is_in_seconds_from_when_it_was_asked(
    model: glassbox.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [7_000_000_000]
    monkeypatch.setattr("glassbox.generation.time.perf_counter_ns", lambda: clock[0])
    model.engine.add(g := generation(model, LONG[:4], time_limit=1.5))
    clock[0] += 1_500_000_000
    model.engine.step()
    assert (g.steps, g.done) == (1, False)
    clock[0] += 1
    model.engine.step()
    assert g.outcome is not None and (g.steps, g.outcome.ending.kind) == (1, "time")


def test_memory_is_refused_with_numbers_before_it_is_taken(path: Path) -> None:
    model = glassbox.load(path, kv_limit=200_000)
    with pytest.raises(OutOfMemory, match=r"a sequence of up to 256 positions needs [\d,]+ bytes, but only 200,000"):
        model.generate(ids=LONG, max_tokens=250)


def without_page(model: glassbox.Model, monkeypatch: pytest.MonkeyPatch, nth: int) -> list[int]:
    """From here on the nth page that is asked for cannot be had, whoever asks. Returns the groups that pages were asked
    for, which grow."""
    pool, calls = model.model.new_cache().pool, list[int]()
    take = pool.take

    def failing(group: int) -> Any:
        calls.append(group)
        if len(calls) == nth:
            raise OutOfMemory("a page of the cache", 1, 0)
        return take(group)

    monkeypatch.setattr(pool, "take", failing)
    return calls


@pytest.mark.parametrize("nth", range(1, 9))
def test_running_out_of_pages_ends_one_and_leaves_the_other(
    model: glassbox.Model, path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The nth page that is asked for cannot be had, whoever asks."""
    calls = without_page(model, monkeypatch, nth)
    asked = [(LONG[:40], 1), (LONG[3:70], 2)]
    made = [generation(model, ids, seed) for ids, seed in asked]
    for g in made:
        model.engine.add(g)
    drain(model)
    failed = [g for g in made if g.outcome is not None and g.outcome.ending.kind == "error"]
    assert len(failed) == (1 if len(calls) >= nth else 0)
    for g, (ids, seed) in zip(made, asked, strict=True):
        full = alone(path, ids, seed)
        assert hashes(g) == (full[: len(hashes(g))] if g in failed else full)


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_search_whose_beam_finds_no_page_ends_whole(
    model: glassbox.Model, path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Also where beams before it have their pages for the pass already."""
    neighbour = generation(model, LONG[:9], 1)
    model.engine.add(neighbour)
    model.engine.step()
    calls = without_page(model, monkeypatch, nth)
    with model.stream(ids=LONG[:41], beam=glassbox.Beam(4), max_tokens=60, ignore_eos=True, reuse=False) as stream:
        model.engine.add(search := stream._generation)
        drain(model)
        assert isinstance(search.inbox[-1], OutOfMemory) and search.cache.length == 0
    assert len(calls) >= nth and hashes(neighbour) == alone(path, LONG[:9], 1)


def test_a_pass_without_memory_fails_and_the_engine_lives(
    model: glassbox.Model, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as m:
        m.setattr(np, "empty", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(OutOfMemory, match=r"a pass of the model needs|a page of the cache needs"):
            model.generate(ids=LONG[:10], max_tokens=3)
    run = model.generate(ids=LONG[:10], policy=P, seed=1, max_tokens=12, ignore_eos=True)
    assert [(s.id, s.logits_hash) for s in run.steps] == alone(path, LONG[:10], 1)


def test_what_windows_left_behind_is_given_back_as_a_sequence_goes_on(model: glassbox.Model) -> None:
    model.engine.add(g := generation(model, LONG[:40], n=100, reuse=False))
    pool = g.cache.pool
    for length in range(40, 140):
        model.engine.step()
        assert g.cache.length == (0 if g.done else length)
        gone = [max(0, length - group.window + 1) // PAGE if group.window else 0 for group in pool.shape.groups]
        held = sum((-(-length // PAGE) - n) * pool.shape.page_bytes(i) for i, n in enumerate(gone))
        assert pool.used == (0 if g.done else held)
    assert g.done


def test_a_prompt_whose_answer_goes_on_lends_its_whole_pages(model: glassbox.Model) -> None:
    """Not the one it writes to: that one would have to be copied."""
    first, second = generation(model, LONG[:41]), generation(model, LONG[:41], 1)
    for g in (first, second):
        model.engine.add(g)
        model.engine.step()
    assert first.reused is not None and second.reused is not None
    assert (first.reused.length, second.reused.length) == (0, 32)
    drain(model)


def test_beams_need_the_whole_pages_of_the_prompt_once(path: Path) -> None:
    """Of 90 positions 3 pages, 2 of them the prompt's; 1 more for each of two beams, and 1 while one is copied."""
    shape = glassbox.load(path).model.new_cache().pool.shape
    need = (3 + 2 * 1 + 1) * sum(shape.page_bytes(g) for g in range(len(shape.groups)))
    asked = dict(ids=LONG[:70], beam=3, max_tokens=20, ignore_eos=True)
    assert len(glassbox.load(path, kv_limit=need).beam_search(**asked).ids) == 20
    with pytest.raises(OutOfMemory, match=f"a beam search of 3 sequences of up to 90 positions needs {need:,} bytes"):
        glassbox.load(path, kv_limit=need - 1).beam_search(**asked)


def test_who_does_not_fit_waits(path: Path) -> None:
    """Room for about two at a time: all eight finish, in order, each with its own bits."""
    shape = glassbox.load(path).model.new_cache().pool.shape
    spare = sum(shape.page_bytes(g) for g in range(len(shape.groups)))
    model = glassbox.load(path, kv_limit=2 * (shape.sequence_bytes(52) + spare) + 1000)
    made = [generation(model, LONG[i : i + 40], i) for i in range(8)]
    for g in made:
        model.engine.add(g)
    while model.engine.running or model.engine.waiting:
        model.engine.step()
        assert len(model.engine.running) <= 2
    ends = [g.outcome.timings.total_ns for g in made if g.outcome]
    assert len(ends) == 8
    for i, g in enumerate(made):
        assert hashes(g) == alone(path, LONG[i : i + 40], i)


def test_two_streams_of_one_thread_do_not_disturb_each_other(model: glassbox.Model, path: Path) -> None:
    a = model.stream(ids=LONG[:20], policy=P, seed=1, max_tokens=12, ignore_eos=True)
    b = model.stream(ids=LONG[:30], policy=P, seed=2, max_tokens=12, ignore_eos=True)
    pairs = [(next(a), next(b)) for _ in range(12)]
    assert [(s.id, s.logits_hash) for s, _ in pairs] == alone(path, LONG[:20], 1)
    assert [(s.id, s.logits_hash) for _, s in pairs] == alone(path, LONG[:30], 2)
    assert list(a) == list(b) == []


def test_threads_share_a_model(model: glassbox.Model, path: Path) -> None:
    got: dict[int, list[tuple[int, str]]] = {}

    def work(i: int) -> None:
        run = model.generate(ids=LONG[: 10 + i], policy=P, seed=i, max_tokens=12, ignore_eos=True)
        got[i] = [(s.id, s.logits_hash) for s in run.steps]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert got == {i: alone(path, LONG[: 10 + i], i) for i in range(6)}


def test_a_team_that_loses_its_cores_is_not_stuck(path: Path) -> None:
    """More threads than cores, all of them spinning for one another: it still ends, with the same bits."""
    model = glassbox.load(path, threads=9)
    begin = time.perf_counter()
    run = model.generate(ids=LONG[:30], policy=P, seed=3, max_tokens=12, ignore_eos=True)
    assert time.perf_counter() - begin < 30
    assert [(s.id, s.logits_hash) for s in run.steps] == alone(path, LONG[:30], 3)


acts = st.lists(
    st.tuples(st.sampled_from(["add", "step", "step", "cancel", "evict"]), st.integers(0, 7), st.integers(1, 60)),
    min_size=3,
    max_size=25,
)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(acts)
def test_random_arrivals_cancels_and_evictions(path: Path, acts: list[tuple[str, int, int]]) -> None:
    model, right = shared(path)
    assert model.engine.prefixes is not None
    made: list[tuple[Generation, int, int]] = []
    for act, which, length in acts:
        if act == "add":
            g = generation(model, LONG[which : which + length], which, 5, speculate=bool(which % 2))
            model.engine.add(g)
            made.append((g, which, length))
        elif act == "step":
            model.engine.step()
        elif act == "cancel" and made:
            model.engine.drop(made[which % len(made)][0])
        elif act == "evict":
            model.engine.prefixes.evict()
    drain(model)
    for g, which, length in made:
        full = right(which, length)
        assert hashes(g) == full[: len(hashes(g))]
        assert g.outcome is not None and (g.outcome.ending.kind == "cancelled" or len(hashes(g)) == 5)
    pool = model.model.new_cache().pool
    assert pool.used == model.engine.prefixes.held


_shared: dict[Path, Any] = {}


def shared(path: Path) -> Any:
    """One model for all examples (so that they meet each other's caches), and what each request gives alone."""
    if path not in _shared:
        model, cold, known = glassbox.load(path, threads=2), glassbox.load(path, threads=1), {}

        def right(which: int, length: int) -> list[tuple[int, str]]:
            if (which, length) not in known:
                run = cold.generate(
                    ids=LONG[which : which + length], policy=P, seed=which, max_tokens=5, ignore_eos=True, reuse=False
                )
                known[which, length] = [(s.id, s.logits_hash) for s in run.steps]
            return known[which, length]

        _shared[path] = model, right
    return _shared[path]


@pytest.mark.parametrize("reached", ["forward_parts", "sum_rows"])
@pytest.mark.parametrize("stage", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_pass_that_is_interrupted_has_not_happened_for_the_others(
    model: glassbox.Model, path: Path, monkeypatch: pytest.MonkeyPatch, reached: str, stage: str,
    error: type[BaseException],
) -> None:  # fmt: skip
    """Whether the caches had grown or not, the next pass begins where this one did."""
    made = [generation(model, LONG[:9], 1), generation(model, LONG[3:70], 2)]
    for g in made:
        model.engine.add(g)
    work, calls = getattr(model.model, reached), 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0 and stage == "before":
            raise error
        found = work(*arguments)
        if calls % 3 == 0:
            raise error
        return found

    monkeypatch.setattr(model.model, reached, failing)
    seen = 0
    while model.engine.running or model.engine.waiting:
        try:
            model.engine.step()
        except error:
            seen += 1
    assert seen >= 3
    assert hashes(made[0]) == alone(path, LONG[:9], 1)
    assert hashes(made[1]) == alone(path, LONG[3:70], 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, MemoryError])
@pytest.mark.parametrize("nth", [1, 2, 5, 6])
def test_what_breaks_at_one_sequences_token_leaves_the_others_alone(
    model: glassbox.Model, path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], nth: int
) -> None:
    """It ends the sequence whose token it was, once; who runs the pass hears only of an interrupt."""
    asked = [(LONG[:9], 1), (LONG[3:70], 2), (LONG[20:40], 3)]
    made = [generation(model, ids, seed) for ids, seed in asked]
    for g in made:
        model.engine.add(g)
    shape, met = Generation.shape, list[Generation]()
    calls = 0

    def failing(self: Generation, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            met.append(self)
            raise error
        return shape(self, *arguments)

    monkeypatch.setattr(Generation, "shape", failing)
    heard = 0
    while model.engine.running or model.engine.waiting:
        try:
            model.engine.step()
        except KeyboardInterrupt:
            heard += 1
    assert heard == (error is KeyboardInterrupt) and len(met) == 1
    for g, (ids, seed) in zip(made, asked, strict=True):
        full = alone(path, ids, seed)
        assert g.outcome is not None
        if g is met[0]:
            assert g.outcome.ending.kind == ("cancelled" if heard else "error")
            assert hashes(g) == full[: len(hashes(g))] and len(hashes(g)) < len(full)
        else:
            assert g.outcome.ending.kind == "max_tokens" and hashes(g) == full
    told = [e for e in met[0].inbox if isinstance(e, Exception)]
    assert [type(e) for e in told] == {ZeroDivisionError: [ZeroDivisionError], MemoryError: [OutOfMemory]}.get(
        error, []
    )
