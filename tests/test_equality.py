"""Equality in every bit, on the real model: threads × chunks × company × cache × process × speculation × target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import glassbox
from glassbox.model.model import forward
from glassbox.policy.policy import Policy

pytestmark = pytest.mark.model
MESSAGES = [{"role": "user", "content": "Tell me a story about a lighthouse. " * 8}]
POLICY = Policy(temperature=0.9, top_p=0.95)
N = 12

CHILD = """
import json, sys, glassbox
from glassbox.policy.policy import Policy
how = json.loads(sys.argv[1])
if "cpu" in how:  # another target, as if compiled for another machine
    from glassbox.model.kernels import build
    build.TARGETS = {machine: (how["cpu"], how["features"]) for machine in build.TARGETS}
model = glassbox.load(how["path"], threads=how["threads"])
run = model.generate(messages=how["messages"], policy=Policy(**how["policy"]), seed=9, max_tokens=how["n"])
print(json.dumps([run.fingerprint, [[s.id, s.logits_hash] for s in run.steps]]))
"""


def hashes(run: glassbox.Run) -> list[tuple[int, str]]:
    return [(s.id, s.logits_hash) for s in run.steps]


def asked(**more: Any) -> dict[str, Any]:
    return dict(messages=MESSAGES, policy=POLICY, seed=9, max_tokens=N, reuse=False) | more


@pytest.fixture(scope="module")
def right(smollm2: glassbox.Model) -> list[tuple[int, str]]:
    return hashes(smollm2.generate(**asked()))


def in_child(path: Path, env: dict[str, str] | None = None, **how: Any) -> tuple[str, list[tuple[int, str]]]:
    how = {"path": str(path), "threads": 2, "messages": MESSAGES, "n": N} | how
    how["policy"] = {"temperature": 0.9, "top_p": 0.95}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(how)],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, done.stderr
    fingerprint, steps = json.loads(done.stdout)
    return fingerprint, [(i, h) for i, h in steps]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.slow
def test_threads_and_chunks(smollm2: glassbox.Model, smollm2_path: Path, threads: int) -> None:
    ids = smollm2.encode_chat(MESSAGES).ids
    cache = smollm2.model.new_cache()
    whole = forward(smollm2.model, ids, cache)[0].tobytes()
    cache.release()
    model = glassbox.load(smollm2_path, threads=threads)
    for chunk in (1, 7, 64, 128):
        cache = model.model.new_cache()
        assert forward(model.model, ids, cache, chunk=chunk)[0].tobytes() == whole, f"chunk {chunk}"
        cache.release()


def test_cold_warm_and_evicted(smollm2: glassbox.Model, right: list[tuple[int, str]]) -> None:
    assert smollm2.engine.prefixes is not None
    smollm2.engine.prefixes.clear()
    for _ in range(2):  # cold, then warm
        assert hashes(smollm2.generate(**asked(reuse=True))) == right
    warm = smollm2.generate(**asked(reuse=True))
    assert warm.usage.cached_tokens == warm.usage.prompt_tokens - 1
    while len(smollm2.engine.prefixes) > 1:
        smollm2.engine.prefixes.evict()
    again = smollm2.generate(**asked(reuse=True))
    assert again.usage.cached_tokens < again.usage.prompt_tokens - 1 and hashes(again) == right


@pytest.mark.parametrize("batch", [2, 8])
def test_company(smollm2: glassbox.Model, right: list[tuple[int, str]], batch: int) -> None:
    streams = [smollm2.stream(**asked())]
    streams += [
        smollm2.stream(f"Neighbour {i} says", seed=i, max_tokens=3 + i, policy=POLICY) for i in range(batch - 1)
    ]
    first = [next(s) for s in streams]
    for neighbour in streams[1:]:
        list(neighbour)
    steps = [first[0], *streams[0]]
    assert [(s.id, s.logits_hash) for s in steps] == right


def test_speculation(smollm2: glassbox.Model, right: list[tuple[int, str]]) -> None:
    assert hashes(smollm2.generate(**asked(speculate=True))) == right
    text = dict(prompt="word " * 30, max_tokens=60, reuse=False, policy=Policy(temperature=0))
    plain, guessed = smollm2.generate(**text), smollm2.generate(**text, speculate=True)
    assert hashes(plain) == hashes(guessed) and sum(s.drafted for s in guessed.steps) > 8


def test_another_process_with_one_thread(smollm2_path: Path, right: list[tuple[int, str]]) -> None:
    _, got = in_child(smollm2_path, threads=1)
    assert got == right


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the other targets named here are of x86-64")
@pytest.mark.parametrize(
    ("cpu", "features"),
    [
        ("x86-64-v3", "+avx2,+fma,+f16c,-bmi,-bmi2,-lzcnt,-movbe"),
        ("znver3", "+avx2,+fma,+f16c"),
        ("haswell", "+avx2,+fma,+f16c,-avx512f"),
    ],
)
def test_another_target(
    smollm2_path: Path, tmp_path: Path, right: list[tuple[int, str]], cpu: str, features: str
) -> None:
    """Compiled for other processors the kernels are other code under another fingerprint, and give the same bits."""
    from glassbox.model.kernels.build import fingerprint

    other, got = in_child(smollm2_path, {"XDG_CACHE_HOME": str(tmp_path)}, cpu=cpu, features=features)
    assert other != fingerprint() and got == right


@pytest.mark.parametrize("kind", ["f16", "q8"])
def test_other_kinds_of_cache_are_as_deterministic(smollm2_path: Path, kind: str) -> None:
    model = glassbox.load(smollm2_path, kv=kind)
    one = hashes(model.generate(**asked()))
    assert (
        one
        == hashes(model.generate(**asked(reuse=True)))
        == hashes(model.generate(**asked(reuse=True, speculate=True)))
    )
