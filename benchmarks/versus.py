"""Glassbox and llama.cpp on the same file, prompt and threads, in turns.

    python benchmarks/versus.py [--model M] [--rounds N]

Needs the `xllamacpp` wheel (`make versus` installs it). Prints medians with the spread, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import glassbox
from glassbox.bench import machine, prefill_rate
from glassbox.policy.policy import Policy

PROMPT, TOKENS, PREFILL = 64, 64, 512


def ids(n: int, vocab: int) -> list[int]:
    return [(37 * i + 11) % vocab for i in range(n)]


class LlamaCpp:
    """llama.cpp's own server object in this process, asked for one completion at a time; it reports its own timings."""

    def __init__(self, path: Path, threads: int) -> None:
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path = str(path)
        p.n_ctx, p.n_parallel, p.warmup, p.verbosity = 4096, 1, True, -1
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
        self.server = xllamacpp.Server(p)

    def complete(self, prompt: list[int], n: int) -> dict[str, Any]:
        asked = dict(
            prompt=prompt, n_predict=n, ignore_eos=True, temperature=0.8, top_p=0.95, cache_prompt=False, seed=7
        )
        timings: dict[str, Any] = self.server.handle_completions(asked)["timings"]
        return timings


def glassbox_decode(model: glassbox.Model, vocab: int, store: Any) -> float:
    """Tokens per second with the trace at level look, through the whole pipeline."""
    policy = Policy(temperature=0.8, top_p=0.95)
    run = model.generate(ids=ids(PROMPT, vocab), policy=policy, seed=7, max_tokens=TOKENS, ignore_eos=True, store=store)
    assert run.timings is not None and run.timings.first_token_ns is not None
    return (TOKENS - 1) * 1e9 / (run.timings.total_ns - run.timings.first_token_ns)


def measure(name: str, rounds: int, folder: Path) -> None:
    model = glassbox.load(name)
    assert model.path is not None
    vocab = min(model.model.vocab_size, 49000)
    other = LlamaCpp(model.path, model.model.threads)
    rows: dict[str, tuple[list[float], list[float]]] = {"prefill 512": ([], []), "decode": ([], [])}
    with glassbox.open_store(folder / "versus.db") as store:
        for i in range(rounds + 1):
            prefill = prefill_rate(model, PREFILL), other.complete(ids(PREFILL, vocab), 1)["prompt_per_second"]
            decode = (
                glassbox_decode(model, vocab, store),
                other.complete(ids(PROMPT, vocab), TOKENS)["predicted_per_second"],
            )
            for row, pair in (("prefill 512", prefill), ("decode", decode)):
                if i:  # the first round warms up
                    rows[row][0].append(pair[0])
                    rows[row][1].append(pair[1])
    print(f"{name}, {model.model.threads} threads, {rounds} rounds; tokens/s, median [least–most]")
    for row, (ours, theirs) in rows.items():
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"  {row:<12} glassbox {shown(ours)}   llama.cpp {shown(theirs)}   {ratio:.2f}×")


def shown(rates: list[float]) -> str:
    return f"{statistics.median(rates):6.1f} [{min(rates):.0f}–{max(rates):.0f}]"


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description="Glassbox (trace at level look) against llama.cpp.")
    parser.add_argument("--model", action="append", help="may be repeated; default both known models")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    # llama.cpp writes its log to stderr from C++; figures go to stdout
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    print(f"machine  {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.model or ["smollm2-135m", "gemma3-270m"]:
            measure(name, asked.rounds, Path(folder))
    sys.stdout.flush()
    os._exit(0)  # llama.cpp's server threads do not end by themselves


if __name__ == "__main__":
    main()
