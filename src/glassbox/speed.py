"""What the times of a run mean: seconds, and tokens a second.

In: counts and nanoseconds of one run. Out: `Speed`. Reading and writing are told apart: the time to the first token
belongs to the prompt, and none of it to the tokens after; tokens out of the cache were not read.
But: it measures nothing itself, and whoever takes the tokens one by one is in the times between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassbox.outcome import Timings, Usage


@dataclass(frozen=True, slots=True)
class Speed:
    """Null where there is nothing to divide: the gap and what follows from it need two tokens."""

    queue_s: float  # from arrival until the engine turned to it
    first_token_s: float  # from arrival to the first token (TTFT)
    gap_s: float | None  # mean time between two tokens
    decode_per_s: float | None  # tokens a second after the first: 1 / gap_s
    evaluated_tokens: int  # of the prompt, not out of the cache
    prefill_per_s: float | None  # of those, a second, from the end of the queue to the first token


def speed_of(usage: Usage, timings: Timings, inherited: int = 0) -> Speed | None:
    """None where no token was made. inherited: tokens that a branch has from its parent: they took no time here."""
    if timings.first_token_ns is None:
        return None
    last = timings.total_ns if timings.last_token_ns is None else timings.last_token_ns
    spent, gaps = last - timings.first_token_ns, usage.completion_tokens - 1 - inherited
    reading = timings.first_token_ns - timings.queue_ns
    return Speed(
        queue_s=timings.queue_ns / 1e9,
        first_token_s=timings.first_token_ns / 1e9,
        gap_s=spent / gaps / 1e9 if gaps > 0 else None,
        decode_per_s=gaps / spent * 1e9 if gaps > 0 and spent > 0 else None,
        evaluated_tokens=usage.evaluated_tokens,
        prefill_per_s=usage.evaluated_tokens / reading * 1e9 if reading > 0 else None,
    )
