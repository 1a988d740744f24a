"""One sequence: encode → logits → policy → choose → detokenise → stop. The only file that sees every stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glassbox.choose import Choice
from glassbox.policy.policy import Candidate, LedgerRow, Policy
from glassbox.stop import Ending
from glassbox.text.tokenizer import Encoding


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked: everything that, with the weights, decides the run."""

    model: str  # the name or path that was given
    encoding: Encoding  # ids with their spans and segments
    policy: Policy
    seed: int
    max_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    sequence: int = 0
    messages: tuple[Mapping[str, Any], ...] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)  # parameter -> "flag" | "model file" | "default"


@dataclass(frozen=True, slots=True)
class Provenance:
    """With what it was done: what a replay must find again."""

    model_sha256: str
    tokenizer_sha256: str
    template_sha256: str | None
    engine: str  # fingerprint of kernels, target and compiler
    glassbox: str  # version
    threads: int
    clock: str | None = None  # the time a template saw, ISO 8601


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


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Nanoseconds on a monotonic clock. Per-token time excludes the first token, which is prefill's."""

    queue_ns: int
    first_token_ns: int | None  # from arrival to the first token
    total_ns: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended."""

    ending: Ending
    text: str
    usage: Usage
    timings: Timings
