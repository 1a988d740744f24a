"""Measures a model on this machine: prefill, and decode with each level of trace, interleaved over several rounds."""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassbox.api import Model
from glassbox.model.model import forward
from glassbox.policy.policy import Policy
from glassbox.trace.rows import Level
from glassbox.trace.store import open_store

PREFILL = (128, 512)
LEVELS = ("off", "ids", "look")


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over the rounds, in tokens per second."""

    machine: str
    threads: int
    rounds: int
    prefill: dict[int, float]  # by length of the prompt
    decode: dict[str, float]  # by level of the trace; the first token, which is prefill's, is not counted

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(model: Model, tokens: int, rounds: int, announce: Callable[[str], None]) -> Result:
    """Run every measurement once unmeasured, then `rounds` times in turn."""
    prefill: dict[int, list[float]] = {n: [] for n in PREFILL}
    decode: dict[str, list[float]] = {level: [] for level in LEVELS}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(rounds + 1):
            announce(f"round {i} of {rounds}" if i else "warming up")
            for n in PREFILL:
                _keep(prefill[n], i, prefill_rate(model, n))
            for level in LEVELS:
                _keep(decode[level], i, decode_rate(model, tokens, level, Path(folder) / f"{level}.db"))
    return Result(
        machine=machine(),
        threads=model.model.threads,
        rounds=rounds,
        prefill={n: statistics.median(rates) for n, rates in prefill.items()},
        decode={level: statistics.median(rates) for level, rates in decode.items()},
    )


def _keep(rates: list[float], i: int, rate: float) -> None:
    if i:
        rates.append(rate)


def prefill_rate(model: Model, n: int) -> float:
    """Tokens per second of reading a prompt of n tokens into an empty cache."""
    cache = model.model.new_cache()
    begin = time.perf_counter()
    forward(model.model, _ids(model, n), cache)
    took = time.perf_counter() - begin
    cache.release()
    return n / took


def decode_rate(model: Model, n: int, level: str, store: Path) -> float:
    """Tokens per second after the first one, through the whole pipeline: policy, draw, text, trace."""
    policy = Policy(temperature=0.8, top_p=0.95)
    kept: Level = "ids" if level == "ids" else "look"
    with nullcontext() if level == "off" else open_store(store) as opened:
        run = model.generate(
            ids=_ids(model, 64), policy=policy, seed=7, max_tokens=n, ignore_eos=True, store=opened, level=kept
        )
    timings = run.timings
    if timings is None or timings.first_token_ns is None:
        raise RuntimeError("the run did not end")
    return (n - 1) * 1e9 / (timings.total_ns - timings.first_token_ns)


def _ids(model: Model, n: int) -> list[int]:
    """Ids that are all different from their neighbours; what they say does not matter for speed."""
    return [(37 * i + 11) % model.model.vocab_size for i in range(n)]


def machine() -> str:
    """The processor's name and how many cores the system has."""
    import os

    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"
