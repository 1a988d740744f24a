"""What policy, ledger, choice and candidates cost beside a token: the least of many repetitions, in milliseconds.

    python benchmarks/policy_cost.py [--rows N] [--smollm2 MS of a token, 14] [--gemma3 MS of a token, 27]

In: the logits of two models after each of the last N ids of a text of 600 (half of those before are the prompt, half
the output), and random ones, which are much flatter. Out: a line a policy: the sums of the row by the team; steps,
ledger, choice, candidates and hash; both, as a share of a token's time, which the caller says. Of the model's rows the
mean of each one's least time. But: no pass of a model is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import glassbox
from glassbox.choose import choose
from glassbox.generation import CANDIDATES, logits_hash
from glassbox.model.kernels.build import load
from glassbox.model.sums import sum_rows
from glassbox.model.threads import Team, thread_count
from glassbox.policy.policy import Policy
from glassbox.types import Sums

POLICIES: Mapping[str, Policy] = {
    "nothing": Policy(),
    "greedy": Policy(temperature=0),
    "T 0.8, top-p 0.95": Policy(0.8, top_p=0.95),
    "T, top-k, top-p, min-p": Policy(0.8, 40, 0.95, 0.05),
    "three penalties and these": Policy(
        0.8, 40, 0.95, 0.05, repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.1
    ),
    "llama.cpp's defaults": Policy.preset("llama.cpp", repetition_penalty=1.1),
}
MODELS = (("smollm2-135m", "smollm2", 14.0), ("gemma3-270m", "gemma3", 27.0))
TEXT = Path(__file__).parent.parent / "README.md"
IDS, REPEAT, SECONDS = 600, 60, 0.25


@dataclass(frozen=True)
class Case:
    """A row of logits [V] and the ids before it."""

    row: np.ndarray
    prompt: np.ndarray
    output: list[int]


def least(work: Callable[[], object]) -> float:
    """Milliseconds of the fastest of many calls: what a busy machine cannot make faster."""
    best, until = float("inf"), time.perf_counter() + SECONDS
    for _ in range(REPEAT):
        begin = time.perf_counter()
        work()
        end = time.perf_counter()
        best = min(best, end - begin)
        if end > until:
            break
    return best * 1e3


def real_cases(name: str, rows: int) -> list[Case]:
    model = glassbox.load(name)
    ids = np.array(model.encode(TEXT.read_text("utf-8")).ids[:IDS], np.int64)
    found = model.logits(ids.tolist())[-rows:]
    ends = range(len(ids) - rows + 1, len(ids) + 1)
    return [Case(row.copy(), ids[: n // 2], ids[n // 2 : n].tolist()) for row, n in zip(found, ends, strict=True)]


def random_case(vocab: int) -> Case:
    rng = np.random.default_rng(7)
    row = (rng.standard_normal(vocab) * 3).astype(np.float32)
    return Case(row, rng.integers(0, vocab, 500), rng.integers(0, vocab, 500).tolist())


def cost(team: Team, policy: Policy, cases: Sequence[Case]) -> tuple[float, float]:
    """(milliseconds of the sums, of all that follows), means over the cases."""
    summing, following = [], []
    for case in cases:
        (sums,) = sum_rows(team, case.row[None], [policy.betas])

        def rest(case: Case = case, sums: Sums = sums) -> None:
            shaped = policy.shape(case.row, case.prompt, case.output, sums, seed=1)
            chosen = choose(shaped, seed=1, position=len(case.prompt) + len(case.output))
            shaped.candidates(CANDIDATES, include=(chosen.id,))
            logits_hash(case.row)

        summing.append(least(lambda: sum_rows(team, case.row[None], [policy.betas])))  # noqa: B023
        following.append(least(rest))
    return float(np.mean(summing)), float(np.mean(following))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=24)
    for _, stem, ms in MODELS:
        parser.add_argument(f"--{stem}", type=float, default=ms)
    asked = parser.parse_args()
    team = Team(load(), thread_count())
    for model, stem, _ in MODELS:
        real, token_ms = real_cases(model, asked.rows), getattr(asked, stem)
        vocab = len(real[0].row)
        print(f"{model}, vocabulary {vocab:,}, a token of {token_ms:g} ms")
        for kind, cases in (("model", real), ("random", [random_case(vocab)])):
            for name, policy in POLICIES.items():
                sums, rest = cost(team, policy, cases)
                share = (sums + rest) / token_ms
                print(f"  {kind:<6} {name:<26} sums {sums:6.3f}, the rest {rest:6.3f} ms, {share:6.2%}", flush=True)


if __name__ == "__main__":
    main()
