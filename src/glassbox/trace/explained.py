"""Why a token came, as plain values: what explain.py finds, told.py words, and a program reads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from glassbox.trace.attribution import Attribution
from glassbox.trace.inside import LayerView, Reading
from glassbox.trace.jsonable import finite


@dataclass(frozen=True)
class Token:
    """A token and how the model itself saw it."""

    id: int
    bytes: bytes
    logit: float
    p: float  # under the model alone
    rank: int

    def to_dict(self) -> dict[str, Any]:
        text = self.bytes.decode("utf-8", "backslashreplace")
        return {
            "id": self.id,
            "text": text,
            "bytes": list(self.bytes),
            "logit": self.logit,
            "p": self.p,
            "rank": self.rank,
        }


@dataclass(frozen=True)
class Source:
    """Consecutive prompt positions by one author."""

    origin: str  # "template" | "message 0" | "prompt" | "tokenizer" …
    role: str | None
    first: int
    last: int
    text: str  # the segment's, cut; "" where it was not kept


@dataclass(frozen=True)
class Way:
    """What one row of the ledger did to the two tokens."""

    name: str
    params: dict[str, float]
    alive: int  # after it
    chosen_before: float
    chosen: float
    rival_before: float
    rival: float
    removed: tuple[str, ...]  # "chosen", "rival"
    best: int  # the id that leads after it


@dataclass(frozen=True)
class Drawn:
    """How the choice fell. Of two numbers on the line from 0 to 1, which the tokens share in descending probability."""

    # "drawn" | "greedy" | "alone": one token was left | "beam": searched | "forced": put there, not drawn | "unknown"
    kind: str
    u: float | None
    lo: float
    hi: float
    below: int | None  # the id that a draw just below `lo` would have taken
    above: int | None  # and one at `hi`
    by: str | None  # alone: the policy step that left nothing else
    ties: int
    rank: int | None = None  # beam: among the candidates of its step, best first
    score: float | None = None  # beam: as BeamRow has it, with this token

    @property
    def nearest(self) -> tuple[float, int] | None:
        """How far the draw was from going another way, and which; None where nothing could."""
        if self.u is None:
            return None
        ends = ((self.u - self.lo, self.below), (self.hi - self.u, self.above))
        return min(((gap, other) for gap, other in ends if other is not None), default=None)

    @property
    def near(self) -> float | None:
        return self.nearest[0] if self.nearest else None


@dataclass(frozen=True)
class Explained:
    run_id: str
    model: str
    step: int
    position: int
    sentence: str
    proven: bool  # the recomputed logits have the recorded hash
    chosen: Token
    rival: Token  # the best other token by the model's own logits, or the one asked about
    sources: tuple[Source, ...]
    layers: tuple[LayerView, ...]  # empty for a model without layers, as are the next two
    attribution: Attribution | None
    reading: Reading | None
    ways: tuple[Way, ...]
    draw: Drawn
    names: dict[int, bytes]  # bytes of every id named above
    notes: tuple[str, ...]

    @property
    def margin(self) -> float:
        """Logit of the chosen token less that of its rival."""
        return self.chosen.logit - self.rival.logit

    @property
    def led_first(self) -> int | None:
        """The first layer behind which the chosen token led; -1: the embedding; None: none."""
        return next((v.layer for v in self.layers if v.rank == 0), None)

    @property
    def led_last(self) -> int | None:
        """The last layer behind which it led."""
        return next((v.layer for v in reversed(self.layers) if v.rank == 0), None)

    @property
    def led_from(self) -> int | None:
        """The layer since which it led to the end."""
        led = list(takewhile(lambda v: v.rank == 0, reversed(self.layers)))
        return led[-1].layer if led else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, all finite."""
        plain = {
            "run_id": self.run_id,
            "model": self.model,
            "step": self.step,
            "position": self.position,
            "sentence": self.sentence,
            "proven": self.proven,
            "chosen": self.chosen.to_dict(),
            "rival": self.rival.to_dict(),
            "margin": self.margin,
            "sources": [vars(s) for s in self.sources],
            "layers": [v.to_dict() for v in self.layers],
            "led_first": self.led_first,
            "led_last": self.led_last,
            "led_from": self.led_from,
            "attribution": self.attribution.to_dict() if self.attribution else None,
            "reading": self.reading.to_dict() if self.reading else None,
            "policy": [vars(w) for w in self.ways],
            "draw": vars(self.draw) | {"near": self.draw.near},
            "tokens": {str(i): b.decode("utf-8", "backslashreplace") for i, b in self.names.items()},
            "notes": list(self.notes),
        }
        result: dict[str, Any] = finite(plain)
        return result
