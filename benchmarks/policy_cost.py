"""What policy, ledger, choice and candidates cost beside a token: the least of many repetitions, in milliseconds.

    python benchmarks/policy_cost.py [MS of a token, 14.0]

In: random logits of a language model's spread, of two vocabularies; a prompt of 500 ids and an output of 500. Out: a
line a policy, with the share of a token's time. But: no model runs; how long a token takes is said by the caller.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import numpy as np

from glassbox.choose import choose
from glassbox.generation import CANDIDATES, logits_hash
from glassbox.model.kernels.build import load
from glassbox.model.sums import sum_rows
from glassbox.model.threads import Team, thread_count
from glassbox.policy.policy import Policy

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
REPEAT, SECONDS = 3000, 4.0


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


def main(token_ms: float) -> None:
    rng, team = np.random.default_rng(7), Team(load(), thread_count())
    for vocab in (49152, 262144):
        row = (rng.standard_normal(vocab) * 3).astype(np.float32)
        prompt, output = rng.integers(0, vocab, 500), rng.integers(0, vocab, 500).tolist()
        for name, policy in POLICIES.items():

            def token(row: np.ndarray = row, policy: Policy = policy, prompt: np.ndarray = prompt) -> None:
                (sums,) = sum_rows(team, row[None], [policy.betas])
                shaped = policy.shape(row, prompt, output, sums, seed=1)  # noqa: B023
                chosen = choose(shaped, seed=1, position=1000)
                shaped.candidates(CANDIDATES, include=(chosen.id,))
                logits_hash(row)

            ms = least(token)
            print(f"{vocab:>7} {name:<26} {ms:6.3f} ms, {ms / token_ms:6.2%} of a token of {token_ms:g} ms")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 14.0)
