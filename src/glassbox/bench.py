"""Measures a model on this machine: prefill, decode alone and in company, what tracing costs, memory, cold start.

Everything is run once unmeasured, then in turn for several rounds; figures are medians. It must be alone: another
program on the same cores takes more than it seems, since threads wait for one another.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glassbox.api import Model
from glassbox.engine import Engine
from glassbox.errors import GlassboxError
from glassbox.generation import Generation
from glassbox.model.execute import Executor, Part
from glassbox.model.kernels.pack import LAYOUTS
from glassbox.model.kernels.program import Matrix, Program
from glassbox.model.model import TransformerModel, forward
from glassbox.model.transformer import Sheet
from glassbox.opening import encoding_of, fresh_cache
from glassbox.policy.policy import Policy
from glassbox.request import Request
from glassbox.trace.rows import Level
from glassbox.trace.store import open_store

PREFILL = (128, 512, 2048)
PEAK = 2048  # tokens, prompt and all, that memory is measured with, as far as the context holds them
CONTEXTS = (64, 1024)
BATCHES = (1, 4, 16)
LEVELS = ("off", "ids", "look")
POLICY = Policy(temperature=0.8, top_p=0.95)


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over the rounds."""

    machine: str
    threads: int
    rounds: int
    prefill: dict[int, float]  # prompt length -> tokens per second
    decode: dict[int, float]  # context -> tokens per second, of the forward pass alone
    batch: dict[int, float]  # sequences -> tokens per second of all together, whole pipeline
    trace: dict[str, float]  # level -> tokens per second, whole pipeline; the first token is prefill's and not counted
    trace_cost: dict[str, float]  # level -> part of the time that it adds to off, the median of the rounds' ratios
    weight_bytes: int  # that one token reads
    read_rate: float  # bytes per second that this engine's plainest kernel reads
    peak_memory: int  # bytes, of a process that holds peak_tokens, most of them read at once
    peak_tokens: int
    cold_start: float  # seconds from process start to the first token, kernels compiled

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(model: Model, tokens: int, rounds: int, announce: Callable[[str], None]) -> Result:
    """Run every measurement. Raises what generation raises."""
    with tempfile.TemporaryDirectory() as folder:
        tasks: dict[str, dict[Any, Callable[[], float]]] = {
            "prefill": {n: partial(prefill_rate, model, n) for n in PREFILL if n <= model.context},
            "decode": {n: partial(decode_rate, model, n) for n in CONTEXTS if n + 16 <= model.context},
            "batch": {n: partial(batch_rate, model, n, max(8, tokens // 2)) for n in BATCHES},
            "trace": {v: partial(trace_rate, model, tokens, v, Path(folder) / f"{v}.db") for v in LEVELS},
            "read": {0: partial(read_rate, model)},
            "cold": {0: partial(cold_start, model)},
            "peak": {0: partial(peak_memory, model)},
        }
        seen: dict[str, dict[Any, list[float]]] = {k: {n: [] for n in v} for k, v in tasks.items()}
        for i in range(rounds + 1):
            announce(f"round {i} of {rounds}" if i else "warming up")
            for kind, group in tasks.items():
                for key, task in group.items():
                    value = task()
                    if i:
                        seen[kind][key].append(value)
    medians = {kind: {k: statistics.median(v) for k, v in group.items()} for kind, group in seen.items()}
    return Result(
        machine=machine(),
        threads=model.model.threads,
        rounds=rounds,
        prefill=medians["prefill"],
        decode=medians["decode"],
        batch=medians["batch"],
        trace=medians["trace"],
        trace_cost={
            level: statistics.median(off / on for off, on in zip(seen["trace"]["off"], rates, strict=True)) - 1
            for level, rates in seen["trace"].items()
        },
        weight_bytes=model.model.weights.nbytes if isinstance(model.model, TransformerModel) else 0,
        read_rate=medians["read"][0],
        peak_memory=int(medians["peak"][0]),
        peak_tokens=min(PEAK, model.context),
        cold_start=medians["cold"][0],
    )


def prefill_rate(model: Model, n: int) -> float:
    """Tokens per second of reading a prompt of n tokens into an empty cache."""
    with fresh_cache(model.model) as cache:
        begin = time.perf_counter()
        forward(model.model, some_ids(model, n), cache)
        return n / (time.perf_counter() - begin)


def decode_rate(model: Model, context: int) -> float:
    """Passes per second of one token at a time behind `context` others; no policy, no text."""
    with fresh_cache(model.model) as cache:
        forward(model.model, some_ids(model, context), cache)
        begin = time.perf_counter()
        for i in range(16):
            forward(model.model, [i % model.model.vocab_size], cache)
        return 16 / (time.perf_counter() - begin)


def batch_rate(model: Model, sequences: int, tokens: int) -> float:
    """Tokens per second of several sequences at once, through the whole pipeline, prompts read beforehand."""
    engine = Engine(model.model)
    made = []
    for i in range(sequences):
        request = Request("bench", encoding_of(some_ids(model, 16 + i), model.tokenizer), POLICY, i, tokens, (), True)
        made.append(Generation(request, model.tokenizer, model.model.new_cache(), model.context))
        engine.add(made[-1])
    while not all(g.decoding for g in made):
        engine.step()
    begin, before = time.perf_counter(), sum(g.steps for g in made)
    while engine.running:
        engine.step()
    return (sum(g.steps for g in made) - before) / (time.perf_counter() - begin)


def trace_rate(model: Model, n: int, level: str, store: Path) -> float:
    """Tokens per second after the first one, with policy, draw, text and trace."""
    kept: Level = "ids" if level == "ids" else "look"
    with nullcontext() if level == "off" else open_store(store) as opened:
        run = model.generate(
            ids=some_ids(model, 64), policy=POLICY, seed=7, max_tokens=n, ignore_eos=True, reuse=False,
            store=opened, level=kept,
        )  # fmt: skip
    if run.timings is None or run.timings.first_token_ns is None:
        raise RuntimeError("the run did not end")
    return (n - 1) * 1e9 / (run.timings.total_ns - run.timings.first_token_ns)


def read_rate(model: Model) -> float:
    """Bytes per second of the plainest product, float32 weights from memory: what there is to reach."""
    if not isinstance(model.model, TransformerModel):
        return 0.0
    rows, columns = 1 << 14, 1 << 12  # 256 MB, more than caches hold
    weights = np.ones(rows * columns + 16, np.float32)
    address = -(-weights.ctypes.data // 64) * 64
    program = Program()
    x, y = program.buffer(columns), program.buffer(rows)
    program.matmul(y, x, Matrix(address, LAYOUTS["f32"].number, rows, columns))
    executor = Executor(Sheet(program, logits=y), model.model.team, model.model.pool.shape, columns)
    with fresh_cache(model.model) as cache:
        cache.reserve(1)
        took = []
        for _ in range(3):  # the first one maps the memory
            begin = time.perf_counter()
            executor.run([Part(np.zeros(1, np.int64), cache, range(1))])
            took.append(time.perf_counter() - begin)
            cache.truncate(0)
            cache.reserve(1)
        return rows * columns * 4 / min(took)


def cold_start(model: Model) -> float:
    """Seconds from process start to the first token of a short prompt, kernels compiled before."""
    code = (
        "import sys, glassbox\n"
        "prompt = {'prompt': 'Hello'} if sys.argv[2] == 'text' else {'ids': [0, 1]}\n"
        "stream = glassbox.load(sys.argv[1]).stream(**prompt, max_tokens=2)\n"
        "print(next(stream).id, flush=True)"
    )
    try:
        kind = "text" if model.encode("Hello").ids else "ids"
    except GlassboxError:  # it has no tokenizer, or one that cannot say it
        kind = "ids"
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, str(model.path or model.name), kind], check=True, capture_output=True)
    return time.perf_counter() - begin


def some_ids(model: Model, n: int) -> list[int]:
    """Ids that differ from their neighbours; what they say does not matter for speed."""
    return [(37 * i + 11) % model.model.vocab_size for i in range(n)]


def peak_memory(model: Model) -> float:
    """The most bytes a process holds that loads the model, reads all but a few of PEAK tokens and generates those.

    0 if not Linux.
    """
    if not Path("/proc/self/status").exists():
        return 0.0
    code = (
        "import sys, glassbox\n"
        "model = glassbox.load(sys.argv[1])\n"
        "n = int(sys.argv[2]) - 8\n"
        "model.generate(ids=[(37 * i + 11) % 4 for i in range(n)], max_tokens=8, ignore_eos=True)\n"
        "status = open('/proc/self/status').read()\n"  # getrusage would count what this process was forked from
        "print(int(status.split('VmHWM:')[1].split()[0]) * 1024)"
    )
    name, n = str(model.path or model.name), str(min(PEAK, model.context))
    return float(subprocess.run([sys.executable, "-c", code, name, n], check=True, capture_output=True).stdout)


def machine() -> str:
    """The processor's name and how many cores the system has."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"
