"""Guesses the next ids from the sequence itself: what followed the last few ids when they stood here before.

A guess costs little to check, all of it in one pass, and changes nothing that is chosen: each id is still drawn from
the model's own logits with its own draw, and the first that differs from the guess ends it. (Prompt lookup decoding,
Saxena 2023.)
"""

from __future__ import annotations

from collections.abc import Sequence

GRAM = 3  # ids that must agree
MOST = 4  # ids guessed at once


class PromptLookup:
    """Knows where each run of GRAM ids stood last."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def guess(self, ids: Sequence[int]) -> list[int]:
        """At most MOST ids that may follow `ids`. Call it with ever longer versions of one sequence."""
        for end in range(max(self._seen, GRAM), len(ids)):  # runs that end before the last id have something after them
            self._after[tuple(ids[end - GRAM : end])] = end
        self._seen = len(ids)
        at = self._after.get(tuple(ids[-GRAM:]))
        return [] if at is None else list(ids[at : at + MOST])
