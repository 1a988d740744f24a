"""What a replay found: every step came again, or the first thing that did not, by how much, and the likely cause.

In: what replay.py compared. Out: a `Replayed`, plain values.
But: it compares nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glassbox.trace.mismatch import Mismatch
from glassbox.trace.run import Run

# What is compared of a step, in the order it comes about, and what it hints at where nothing else is known.
COMPARED: Mapping[str, str] = {
    "logits_hash": "the arithmetic, or the weights", "entropy": "the policy's sums", "ledger": "the policy",
    "u": "the seed, the sequence or the position", "id": "the policy, or the draw", "cdf_lo": "the policy",
    "cdf_hi": "the policy", "logprob_raw": "the policy's sums", "logprob_final": "the policy",
    "rank_raw": "the policy's sums", "ties": "the policy", "candidates": "the policy", "bytes": "the tokenizer",
    "text": "the tokenizer, or the stop strings", "text_offset": "the tokenizer",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """The first thing that did not come again. `step` is None for the prompt and for the ending."""

    step: int | None
    field: str  # a key of COMPARED, "beam", "error"; "prompt_logprobs"; of the ending "stop_reason", "text"
    recorded: Any
    replayed: Any
    hint: str

    def __str__(self) -> str:
        place = "the prompt" if self.field == "prompt_logprobs" else "the ending"
        where = place if self.step is None else f"step {self.step}"
        return f"{where}: {self.field} was {_short(self.recorded)}, and is {_short(self.replayed)}"


@dataclass(frozen=True)
class Replayed:
    """What a replay found."""

    run: Run
    compared: int  # steps
    mismatches: tuple[Mismatch, ...]  # of what it was made with; none, or the replay was forced
    difference: Difference | None
    diverged: int | None  # the first step with another id; nothing behind it is compared
    logprob_delta: float  # the largest |Δ| of the logprobs that were recorded, in nats; inf: of one that is not finite
    logit_delta: float  # the same of the recorded candidates' logits; 0 at level ids
    rows: int = 0  # candidates of a beam search that were compared
    failed: bool = False  # the error that ended the run was met again

    @property
    def equal(self) -> bool:
        """Whether it is the same run: every step, the ending, and the prompt that its text gives."""
        return self.difference is None and all(m.field != "prompt" for m in self.mismatches)

    @property
    def causes(self) -> tuple[str, ...]:
        """Why it is not equal: what it was made with and is not here; else what the field that differs hints at."""
        if self.equal:
            return ()
        known = tuple(map(str, self.mismatches))
        return known or ((self.difference.hint,) if self.difference else ())

    def to_dict(self) -> dict[str, Any]:
        """What `glassbox replay --json` prints."""
        d = self.difference
        first = d and {"step": d.step, "field": d.field, "recorded": d.recorded, "replayed": d.replayed}
        return {
            "run_id": self.run.run_id,
            "equal": self.equal,
            "steps": len(self.run.steps),
            "compared": self.compared,
            "beam_rows": self.rows,
            "failed_again": self.failed,
            "difference": first,
            "causes": list(self.causes),
            "mismatches": [{"field": m.field, "recorded": m.recorded, "found": m.found} for m in self.mismatches],
            "diverged": self.diverged,
            "logprob_delta": _finite(self.logprob_delta),
            "logit_delta": _finite(self.logit_delta),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:119] + "…"
