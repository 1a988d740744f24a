"""Glassbox, llama.cpp and transformers on the same file, prompts and threads, in turns.

    python benchmarks/versus.py [--model M] [--rounds N]

`make versus` installs what it needs; without torch and transformers it runs the other two. Prints medians with the
spread, ratios of Glassbox to each other engine, and how far each one's distribution is from float32 (transformers') on
the prompts of the golden tests: the mean KL divergence, and how often the likeliest token is another.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path

import numpy as np
from engines import Apart

import glassbox
from glassbox.bench import machine
from glassbox.model.threads import thread_count
from glassbox.weights.source import resolve

PROMPT, TOKENS, PREFILL, SLOTS, EACH = 64, 64, 512, 16, 32
GOLDEN = Path(__file__).parent.parent / "tests" / "data"
STEMS = {"smollm2-135m": "smollm2", "gemma3-270m": "gemma3"}


def ids(n: int, first: int = 11) -> list[int]:
    return [(37 * i + first) % 49000 for i in range(n)]


def engines_for(name: str, folder: Path) -> tuple[list[Apart], Apart, int]:
    """All engines there are for one model; llama.cpp once with a single slot and once with several. And the threads."""
    path, threads = resolve(name), thread_count()
    vocab = len(glassbox.load_tokenizer(name).vocab)
    found = [Apart("glassbox", name, threads, folder / "versus.db"), Apart("llama.cpp", path, threads, 1, vocab)]
    try:
        found.append(Apart("transformers", path, threads))
    except ImportError:
        print("(transformers is not installed: no float32 reference)")
    return found, Apart("llama.cpp", path, threads, SLOTS, vocab), threads


def measure(name: str, rounds: int, folder: Path) -> None:
    engines, slots, threads = engines_for(name, folder)
    many = [ids(16 + i, 5 + i) for i in range(SLOTS)]
    tasks = {
        f"prefill {PREFILL}": [(e.name, lambda e=e: e.prefill(ids(PREFILL))) for e in engines],
        "decode": [
            (e.name, lambda e=e: e.decode(ids(PROMPT), 16 if e.name == "transformers" else TOKENS)) for e in engines
        ],
        f"{SLOTS} at once": [(e.name, lambda e=e: e.together(many, EACH)) for e in (engines[0], slots)],
    }
    seen: dict[tuple[str, str], list[float]] = {}
    for i in range(rounds + 1):
        for task, runs in tasks.items():
            for engine, run in runs:
                rate = run()
                if i:  # the first round warms up
                    seen.setdefault((task, engine), []).append(rate)
    print(f"\n{name}, {threads} threads, {rounds} rounds; tokens/s, median [least–most], ratio to glassbox")
    for (task, engine), rates in seen.items():
        if not math.isnan(rates[0]):
            ratio = statistics.median(seen[task, "glassbox"]) / statistics.median(rates)
            against = "" if engine == "glassbox" else f"  {ratio:5.2f}×"
            print(f"  {task:<12} {engine:<13} {shown(rates)}{against}")
    accuracy(name, engines)
    for engine in (*engines, slots):
        engine.close()


def shown(rates: list[float]) -> str:
    return f"{statistics.median(rates):7.1f} [{min(rates):.0f}–{max(rates):.0f}]"


def accuracy(name: str, engines: list[Apart]) -> None:
    """KL(float32 ‖ engine) after each golden prompt, and how often the best token differs."""
    if name not in STEMS or engines[-1].name != "transformers":
        return
    prompts = [p["ids"] for p in json.loads((GOLDEN / f"golden_{STEMS[name]}.json").read_text())["prompts"]]
    right = [engines[-1].logprobs(p) for p in prompts]
    for engine in engines[:-1]:
        kls, other = [], 0
        for p, truth in zip(prompts, right, strict=True):
            got = engine.logprobs(p)
            if not np.isnan(got).any():
                kls.append(float((np.exp(truth) * (truth - got)).sum()))
                other += int(truth.argmax() != got.argmax())
        print(
            f"  to float32   {engine.name:<13} KL mean {np.mean(kls):.1e}, most {max(kls):.1e}; "
            f"another best token after {other} of {len(kls)} prompts"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Glassbox (trace at level look) against other engines.")
    parser.add_argument("--model", action="append", help="may be repeated; default both known models")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print(f"machine  {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(asked.model or STEMS):
            measure(name, asked.rounds, Path(folder) / str(i))


if __name__ == "__main__":
    main()
