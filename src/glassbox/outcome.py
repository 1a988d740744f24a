"""What came of a generation: how it ended, its text, how many tokens it took, and how long."""

from __future__ import annotations

from dataclasses import dataclass

from glassbox.stop import Ending


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    dropped: int = 0  # ids of the prompt that were left out to fit

    @property
    def submitted_tokens(self) -> int:
        """Of the prompt as it was given."""
        return self.prompt_tokens + self.dropped

    @property
    def evaluated_tokens(self) -> int:
        """Of the prompt, those that were computed; the last one always is."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Nanoseconds on a monotonic clock, from the arrival of the request. What follows from them is in speed.py."""

    queue_ns: int  # until the engine turned to it
    first_token_ns: int | None  # until the first token was chosen
    total_ns: int
    last_token_ns: int | None = None  # until the last one was chosen


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended."""

    ending: Ending
    text: str
    usage: Usage
    timings: Timings
    reuse: str | None = None  # why no more of the prompt came out of the cache; None where none was looked for
