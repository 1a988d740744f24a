"""What a generation passes on while it runs, and a trace records: prompt positions, steps, candidates of beams."""

from __future__ import annotations

from dataclasses import dataclass

from glassbox.beam import BeamRow
from glassbox.choose import Choice
from glassbox.policy.policy import Candidate, LedgerRow


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One prompt position after it was computed or reused."""

    position: int
    id: int
    bytes: bytes
    segment: int
    kv: str  # "computed" | "reused"
    logprob: float | None  # of this id given the ones before it; None when not measured


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token and how it came about."""

    step: int
    position: int  # in the whole sequence, prompt included
    id: int
    bytes: bytes
    text: str  # what became visible with this token
    choice: Choice
    ledger: tuple[LedgerRow, ...]
    candidates: tuple[Candidate, ...]
    entropy: float  # nats, of the model's own distribution
    logits_hash: str  # 16 hex digits over the bytes of the float32 logits
    model_ns: int  # time in the forward pass that gave these logits
    policy_ns: int  # time from logits to the chosen id
    drafted: bool = False  # guessed beforehand and found right
    text_offset: int | None = None  # characters of prompt and output before its own; bytes of one character share it


Event = Step | tuple[BeamRow, ...]  # a token; or all candidates of one step of a beam search
