"""Beam search the slow and plain way: every sequence through the whole model anew at each step, float64 throughout.

The rules are written down from their definitions, not from glassbox.beam: transformers' for one group (`_beam_search`,
v5), Vijayakumar et al. 2016 as transformers v4 had it for more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Logprobs = Callable[[tuple[int, ...]], np.ndarray]  # output so far -> float64 [V]


@dataclass(frozen=True)
class Found:
    ids: tuple[int, ...]
    total: float
    score: float


def search(
    logprobs: Logprobs,
    *,
    width: int,
    eos: Sequence[int],
    max_tokens: int,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    groups: int = 1,
    diversity: float = 0.0,
) -> list[Found]:
    """Every hypothesis that is kept, best first."""
    size = width // groups
    live: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)] for _ in range(groups)]
    done: list[list[Found]] = [[] for _ in range(groups)]
    for length in range(1, max_tokens + 1):
        used: Counter[int] = Counter()
        for g in range(groups):
            every = [
                ((*ids, int(i)), total + float(p) - diversity * used[int(i)])
                for ids, total in live[g]
                for i, p in enumerate(logprobs(ids))
                if np.isfinite(p)
            ]
            every.sort(key=lambda pair: -pair[1])
            best = every[: max(2, 1 + len(eos)) * size]
            ends = [ids[-1] in eos or length == max_tokens for ids, _ in best]
            new = [
                Found(ids, t, t / length**length_penalty) for (ids, t), e in zip(best[:size], ends, strict=False) if e
            ]
            done[g] = sorted(done[g] + new, key=lambda f: -f.score)[:size]
            on = [pair for pair, e in zip(best, ends, strict=True) if not e][:size]
            used.update(ids[-1] for ids, _ in on)
            if on and len(done[g]) == size:
                at = max_tokens if early_stopping == "never" and length_penalty > 0 else length
                if early_stopping is True or on[0][1] / at**length_penalty <= done[g][-1].score:
                    on = []
            live[g] = on
        if not any(live):
            break
    return sorted((f for group in done for f in group), key=lambda f: -f.score)
