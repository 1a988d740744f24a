"""Where two runs part: the first stage that differs, from the template to the ending, and the evidence of each.

In: two runs, or captures from elsewhere as far as they go. Out: a `Diff`.
But: the stages and how each is compared are stages.py's table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassbox.trace.jsonable import finite
from glassbox.trace.pair import Pair
from glassbox.trace.run import Run
from glassbox.trace.side import Side, side_of
from glassbox.trace.stage import Found
from glassbox.trace.stages import STAGES, compared


@dataclass(frozen=True)
class Diff:
    """stages: name -> what was found, in the order of the data."""

    a: Side
    b: Side
    stages: Mapping[str, Found]
    aligned: int  # steps that follow the same output tokens

    @property
    def first(self) -> str | None:
        """The first stage that differs."""
        return next((name for name, found in self.stages.items() if found.same is False), None)

    @property
    def equal(self) -> bool:
        """Nothing that could be compared differs."""
        return self.first is None

    @property
    def not_compared(self) -> tuple[str, ...]:
        return tuple(name for name, found in self.stages.items() if found.same is None)

    @property
    def sentence(self) -> str:
        left = f"not compared: {', '.join(self.not_compared)}" if self.not_compared else ""
        if self.first is not None:
            before = [name for name in self.not_compared if list(self.stages).index(name) < self._place]
            unsure = f" (before it, {', '.join(before)} could not be compared)" if before else ""
            return f"{self.first} differs first{unsure}: {self.stages[self.first].says}"
        if len(self.not_compared) == len(self.stages):
            return "nothing could be compared"
        return f"equal as far as they could be compared; {left}" if left else f"equal in all {len(self.stages)} stages"

    @property
    def _place(self) -> int:
        return list(self.stages).index(self.first or "")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, all finite."""
        plain = {
            "a": _of(self.a),
            "b": _of(self.b),
            "equal": self.equal,
            "first": self.first,
            "sentence": self.sentence,
            "aligned_steps": self.aligned,
            "not_compared": list(self.not_compared),
            "stages": [
                {"stage": name, "same": found.same, "says": found.says, "evidence": dict(found.evidence)}
                for name, found in self.stages.items()
            ],
        }
        result: dict[str, Any] = finite(plain)
        return result

    def __repr__(self) -> str:
        return f"<Diff: {self.sentence}>"


def _of(side: Side) -> dict[str, Any]:
    return {name: side.get(name) for name in ("run_id", "model", "fingerprint", "seed", "status", "provenance")}


def diff(a: Run | Mapping[str, Any] | str | Path, b: Run | Mapping[str, Any] | str | Path) -> Diff:
    """Compare two runs stage by stage: runs, objects as `glassbox trace --json` prints them, or files that hold one.

    What either lacks is not compared, and told. Inner values are computed again where both models are at hand.
    Raises PromptError (what is no run, a field of the wrong kind), OSError (a file that cannot be read).
    """
    pair = Pair(side_of(a, "A"), side_of(b, "B"))
    return Diff(pair.a, pair.b, {stage.name: compared(stage, pair) for stage in STAGES}, pair.aligned)
