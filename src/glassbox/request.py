"""What is asked of a generation, and with what it is done: with the weights, all that decides a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glassbox.beam import Beam
from glassbox.model.intervene import Intervention
from glassbox.policy.policy import Policy
from glassbox.text.tokenizer import Encoding
from glassbox.text.truncate import Cut


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a run comes from, if it goes another way from some step of another run, its parent."""

    parent: str  # its id
    step: int | None  # the first that is its own; those before are the parent's. None: its prompt is another one
    made: tuple[tuple[int, Policy, int], ...] = ()  # (end, policy, seed): what chose the steps before `end`
    forced: tuple[int, ...] = ()  # steps whose id was put there, whatever the draw said


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
    stop_ids: tuple[int, ...] = ()
    include_stop: bool = False  # the text keeps the stop string, or the text of the stop id, that ended it
    sequence: int = 0
    group: str | None = None  # what runs have in common that were asked for together
    beam: Beam | None = None  # search instead of drawing
    reuse: bool = True  # whether keys and values of earlier prompts may be used, and its own kept for later ones
    salt: str = ""  # reuse only among requests with the same salt
    speculate: bool = False  # check guessed ids in one pass; changes no id and no bit
    prompt_logprobs: bool = False  # how likely each id of the prompt was; all of it is computed for that
    time_limit: float | None = None  # seconds from arrival
    messages: tuple[Mapping[str, Any], ...] | None = None  # all of them, those left out too
    chat: Mapping[str, Any] | None = None  # with messages: the template's name, and what it was given beside them
    cut: Cut | None = None  # what was left out of the prompt to fit; then the encoding is of the rest
    sources: Mapping[str, str] = field(default_factory=dict)  # parameter -> "flag" | "model file" | "default"
    branch: Branch | None = None
    interventions: tuple[Intervention, ...] = ()  # what is done to inner values on the way

    def under(self, step: int) -> tuple[Policy, int]:
        """The policy and the seed that chose at a step: of what a branch has from its parent, the parent's."""
        made = self.branch.made if self.branch else ()
        return next(((policy, seed) for end, policy, seed in made if step < end), (self.policy, self.seed))

    def forced(self, step: int) -> bool:
        """Whether the id of this step was put there rather than drawn."""
        return self.branch is not None and step in self.branch.forced

    @property
    def dropped(self) -> int:
        """How many ids the prompt was cut by."""
        return self.cut.dropped if self.cut else 0

    @property
    def width(self) -> int:
        """How many sequences it may come to be at a time."""
        return self.beam.width if self.beam else 1


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
    kv: str = "f32"  # how keys and values were kept: a key of cache/pages.py's KINDS
