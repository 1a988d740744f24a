"""Load that is held, and cases C08 and C13 that concern the engine as a whole."""

from __future__ import annotations

import gc
import json
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import random_gguf

import glassbox
from glassbox.cli.main import run as cli
from glassbox.model.model import forward
from glassbox.policy.policy import Policy

T = gguf.GGMLQuantizationType
P = Policy(temperature=0.9, top_p=0.95)
IDS = [int(i) for i in np.random.default_rng(2).integers(0, 90, 60)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> glassbox.Model:
    to = tmp_path_factory.mktemp("m") / "m.gguf"
    return glassbox.load(random_gguf.write(to, "llama", "llama", [T.Q8_0, T.Q4_1]), threads=2, kv_limit=8 << 20)


def settled(count: Callable[[], int]) -> int:
    """A number that has stopped changing: helpers of a dismissed team look for work for a while before they go."""
    last = -1
    while last != (last := count()):
        time.sleep(0.5)
    return last


def hashes(run: glassbox.Run) -> list[tuple[int, str]]:
    return [(s.id, s.logits_hash) for s in run.steps]


@pytest.mark.slow
def test_500_requests_leave_nothing_behind(model: glassbox.Model, tmp_path: Path) -> None:
    """A3: memory, open files and threads stay as they were; every run is in the store."""

    def state() -> tuple[list[str], int]:
        gc.collect()  # what earlier tests have dropped but nobody has collected yet must not count as ours
        files = (Path("/proc/self/fd") / fd for fd in os.listdir("/proc/self/fd"))
        return sorted(os.readlink(f) for f in files if f.is_symlink()), settled(threading.active_count)

    with glassbox.open_store(tmp_path / "runs.db") as store:
        for i in range(100):
            model.generate(ids=IDS[: 5 + i % 40], policy=P, seed=i, max_tokens=4, store=store)
        before, memory = state(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(500):
            model.generate(ids=IDS[: 5 + i % 40], policy=P, seed=i, max_tokens=4, store=store)
        assert state() == before
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= memory * 1.02
        assert len(store.runs(limit=None)) == 600
    pool = model.model.new_cache().pool
    assert model.engine.prefixes is not None and pool.used == model.engine.prefixes.held


def test_eight_equal_requests_at_once_are_the_one_alone(model: glassbox.Model) -> None:
    """A5, A6: same seed, one or eight at a time, the same ids and bits."""
    alone = hashes(model.generate(ids=IDS, policy=P, seed=7, max_tokens=10, reuse=False))
    got: list[list[tuple[int, str]]] = []

    def work() -> None:
        got.append(hashes(model.generate(ids=IDS, policy=P, seed=7, max_tokens=10)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert got == [alone] * 8


def test_tracing_changes_nothing(model: glassbox.Model, tmp_path: Path) -> None:
    """A7."""
    asked = dict(ids=IDS, policy=P, seed=7, max_tokens=10)
    with glassbox.open_store(tmp_path / "runs.db") as store:
        runs = [model.generate(**asked), *(model.generate(**asked, store=store, level=v) for v in ("ids", "look"))]
    assert hashes(runs[0]) == hashes(runs[1]) == hashes(runs[2])


@pytest.mark.model
@pytest.mark.slow
def test_long_texts_take_linear_time(smollm2: glassbox.Model, gemma3: glassbox.Model) -> None:
    """A10: twice the lines take at most two and a half times as long; one character a million times ends soon."""
    text = "The quick brown fox, 1234567 times: naïve café — 日本語 🙂\n" * 5000
    for model in (smollm2, gemma3):
        model.encode(text[:1000])
        begin = time.perf_counter()
        one = len(model.encode(text).ids)
        middle = time.perf_counter()
        assert abs(len(model.encode(text * 2).ids) - 2 * one) <= 2
        assert time.perf_counter() - middle < 2.5 * (middle - begin) + 0.2
        begin = time.perf_counter()
        model.encode(" " * 300_000 + "a" * 300_000)
        assert time.perf_counter() - begin < 10


def test_a_neighbour_without_a_seed_draws_nothing_of_mine(model: glassbox.Model) -> None:
    """C13-03: with an unseeded neighbour, a seeded one, another order, and alone."""
    mine = dict(ids=IDS[:20], policy=P, seed=42, max_tokens=12, ignore_eos=True)
    alone = hashes(model.generate(**mine))
    for seed in (None, None, 5):
        other = model.stream(ids=IDS[5:30], policy=P, seed=seed, max_tokens=12, ignore_eos=True)
        stream = model.stream(**mine)
        next(other)
        steps = list(stream)
        list(other)
        assert [(s.id, s.logits_hash) for s in steps] == alone


def test_the_order_of_requests_does_not_matter(model: glassbox.Model) -> None:
    """C13-04."""
    a, b = dict(ids=IDS[:20], policy=P, seed=1, max_tokens=8), dict(ids=IDS[:35], policy=P, seed=2, max_tokens=8)
    first = [hashes(model.generate(**x)) for x in (a, b, a, a)]
    second = [hashes(model.generate(**x)) for x in (b, a)]
    assert first == [second[1], second[0], second[1], second[1]]


@pytest.mark.model
def test_the_command_line_and_the_api_agree(
    smollm2: glassbox.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C13-07: the same messages and parameters, the same ids, hashes and text."""
    words = ["--temperature", "0.7", "--top-p", "0.9", "--seed", "3", "--max-tokens", "8", "--json"]
    assert cli(["trace", "Hi there", *words, "--store", str(tmp_path / "runs.db")]) == 0
    shown = json.loads(capsys.readouterr().out)
    policy, messages = Policy(temperature=0.7, top_p=0.9), [{"role": "user", "content": "Hi there"}]
    run = smollm2.generate(messages=messages, policy=policy, seed=3, max_tokens=8)
    assert shown["prompt_ids"] == list(run.prompt_ids) and shown["text"] == run.text
    assert [(s["id"], s["logits_hash"]) for s in shown["steps"]] == hashes(run)


def test_there_is_no_context_shift(model: glassbox.Model) -> None:
    """C08-08: the context ends the run; nothing is dropped or moved."""
    run = model.generate(ids=IDS, policy=P, seed=1, max_tokens=1000, ignore_eos=True)
    assert run.finish_reason == "length" and run.stop_reason == {"kind": "context_end", "limit": model.context}
    assert len(run.prompt_ids) + len(run.ids) == model.context


def test_a_forked_cache_goes_both_ways_with_the_right_bits(model: glassbox.Model) -> None:
    """A shared page is copied by whoever writes first; both futures equal their cold runs."""
    cache = model.model.new_cache()
    forward(model.model, IDS[:37], cache)
    twin = cache.fork()
    ways = {0: cache, 1: twin}
    for i, ids in enumerate((IDS[37:50], IDS[10:40])):
        warm = forward(model.model, ids, ways[i], rows="all")[0]
        cold = model.logits(IDS[:37] + ids)[37:]
        assert warm.tobytes() == cold.tobytes()
    for c in ways.values():
        c.release()
