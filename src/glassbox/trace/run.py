"""A run as people hold it: what was asked, what happened, and the means to compute the rest again.

In: the pieces, from a recorder (record.py) or a store (reader.py). Out: a `Run`, and what others make of it: values
computed again, another policy, a branch, an export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from glassbox.beam import BeamRow, Beams
from glassbox.errors import PromptError
from glassbox.events import PromptToken, Step
from glassbox.outcome import Outcome, Timings, Usage
from glassbox.policy.policy import LedgerRow, Policy
from glassbox.request import Provenance, Request
from glassbox.speed import Speed, speed_of
from glassbox.trace.jsonable import run_to_dict
from glassbox.trace.rows import Level, Retain
from glassbox.types import F32

if TYPE_CHECKING:
    from glassbox.trace.again import Again, Opened
    from glassbox.trace.explained import Explained
    from glassbox.trace.replayed import Replayed
    from glassbox.trace.whatif import WhatIf

FROM_OUTSIDE = ("cancelled", "time", "error")  # kinds of ending that no token brings about
MUTE = 8  # ids without a text that are listed


@dataclass(frozen=True)
class Run:
    """What was asked, what happened, and the means to recompute the rest."""

    run_id: str
    created_ms: int  # since 1970
    status: str  # done | running | interrupted | cancelled | error
    request: Request
    provenance: Provenance
    prompt: tuple[PromptToken, ...]  # the positions that were computed or reused
    steps: tuple[Step, ...]
    outcome: Outcome | None  # None unless done
    usage: Usage  # counted from what is there when there is no outcome
    error: str | None = None
    failed: tuple[LedgerRow, ...] = ()  # what the policy did at the step that failed, as far as it came
    level: Level = "look"  # what this object holds; "ids" is without ledger and candidates
    retain: Retain = "text"  # "ids" is without text and bytes, "none" has counts and timings only
    token_ns: tuple[tuple[int, int], ...] = ()  # (model, policy) time of each generated token
    tried: tuple[BeamRow, ...] = ()  # the candidates of a beam search, step by step
    problem: str | None = field(default=None, compare=False)  # why the store holds less than happened
    owner: str = field(default="", compare=False, repr=False)  # the process that recorded it
    recorded: bool = field(default=True, compare=False)  # whether a store holds it, if not all of it
    opened: Opened | None = field(default=None, compare=False, repr=False)  # its model, where that is at hand
    opening: ClassVar[Callable[..., Opened] | None] = None  # opens a model by name, with its kv; api.py sets it

    @classmethod
    def from_parts(
        cls,
        run_id: str,
        request: Request,
        provenance: Provenance,
        prompt: Sequence[PromptToken],
        steps: Sequence[Step],
        outcome: Outcome | None,
        *,
        created_ms: int,
        status: str = "done",
        **more: Any,
    ) -> Run:
        """A run from its pieces; usage and token times are derived where they are not given."""
        if "usage" not in more:
            cached = sum(token.kv == "reused" for token in prompt)
            counted = Usage(len(request.encoding.ids), cached, len(steps), request.dropped)
            more["usage"] = counted if outcome is None else outcome.usage
        more.setdefault("token_ns", tuple((s.model_ns, s.policy_ns) for s in steps))
        return cls(run_id, created_ms, status, request, provenance, tuple(prompt), tuple(steps), outcome, **more)

    @property
    def created(self) -> datetime:
        return datetime.fromtimestamp(self.created_ms / 1000, UTC)

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(self.request.encoding.ids)

    @property
    def prompt_text(self) -> str:
        return self.request.encoding.text

    @property
    def text(self) -> str:
        """The text as delivered; of an unfinished run, what was visible so far."""
        return self.outcome.text if self.outcome else "".join(s.text for s in self.steps)

    @property
    def ids(self) -> tuple[int, ...]:
        """The generated ids."""
        return tuple(s.id for s in self.steps)

    @property
    def mute(self) -> str:
        """The generated ids that the tokenizer has no bytes for, each once, at most MUTE: a model's head may be wider.
        Empty where there are none, or the bytes were not kept."""
        ids = list(dict.fromkeys(s.id for s in self.steps if not s.bytes)) if self.retain == "text" else []
        return ", ".join([*map(str, ids[:MUTE]), *(["…"] if len(ids) > MUTE else [])])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the tokenizer could not say of the prompt or did unasked, and the ids it cannot say anything of."""
        e = self.request.encoding
        return (*e.lossy, *e.notes, *([f"ids without a text in this tokenizer: {self.mute}"] if self.mute else []))

    @property
    def finish_reason(self) -> str:
        """Why it ended, in the API's word; "running" and "interrupted" where it did not."""
        return self.outcome.ending.finish_reason if self.outcome else self.status

    @property
    def stop_reason(self) -> dict[str, Any] | None:
        """What exactly ended it, for example {"kind": "eos", "id": 2}."""
        if self.outcome:
            return self.outcome.ending.stop_reason
        return {"kind": "error", "detail": self.error} if self.status == "error" else None

    @property
    def timings(self) -> Timings | None:
        return self.outcome.timings if self.outcome else None

    @property
    def speed(self) -> Speed | None:
        """How long it waited, how fast it read and wrote; None where no token was made, or it did not end."""
        b = self.request.branch
        return speed_of(self.usage, self.timings, (b.step or 0) if b else 0) if self.timings else None

    @property
    def seed(self) -> int:
        return self.request.seed

    @property
    def policy(self) -> Policy:
        return self.request.policy

    @property
    def fingerprint(self) -> str:
        """Of the engine that computed it: the same fingerprint gives the same bits."""
        return self.provenance.engine

    @cached_property
    def beams(self) -> Beams | None:
        """The beam search whose best hypothesis the steps are; None where there was none."""
        cut = self.outcome is None or self.outcome.ending.kind in FROM_OUTSIDE
        return Beams(self.request.beam, self.tried, cut) if self.request.beam else None

    def again(self, opened: Opened | None = None) -> Again:
        """Its values once more (again.py), on `opened`, or the model that made it, or the one of its model's name."""
        from glassbox.trace.again import Again

        return Again(self, opened or self._model())

    def what_if(self, policy: Policy, *, opened: Opened | None = None, **asked: Any) -> WhatIf:
        """Every step under another policy with the same draws; takes what whatif.what_if takes."""
        from glassbox.trace.whatif import what_if

        return what_if(self, policy, opened or self._model(), **asked)

    def branch(self, at: int | None = None, *, opened: Opened | None = None, **asked: Any) -> Run:
        """A run that goes another way from step `at`, or has another prompt; takes what branch.branch takes."""
        from glassbox.trace.branch import branch

        stream = branch(self, opened or self._model(), at, **asked)
        for _ in stream:
            pass
        return stream.run

    def replay(self, model: Opened | None = None, *, force: bool = False) -> Replayed:
        """Make it again from the trace alone, on `model`, or as `again` finds one, and compare every step (replay.py).

        Raises NotReproduced where what it was made with is known to be another here, unless `force`."""
        from glassbox.trace.replay import replay

        return replay(self, model or self._model(), force=force)

    def tensor(
        self, step: int, point: str, *, all_positions: bool = False, model: Opened | None = None, force: bool = False
    ) -> F32:
        """An inner value at the position whose logits chose the token of this step, as points.py has it without its T;
        all_positions: [T, …], from the prompt's first to that one. See `tensors`."""
        return self.tensors(step, [point], all_positions=all_positions, model=model, force=force)[point]

    def tensors(
        self, step: int, points: Iterable[str], *, all_positions: bool = False, model: Opened | None = None,
        force: bool = False,
    ) -> dict[str, F32]:  # fmt: skip
        """Several, of one pass (recompute.py). Raises UnknownPoint, ParameterError, and, unless `force`, NotReproduced
        where the logits of the step have not the recorded hash."""
        from glassbox.trace.recompute import recompute

        found = model or self._model()
        return recompute(self, found, step, tuple(points), all_positions=all_positions, force=force)

    def _model(self) -> Opened:
        """The model that made it, or the one of its model's name, which then stays at hand."""
        if self.opened is None:
            if Run.opening is None:
                raise PromptError(f"run {self.run_id} needs its model: open {self.model} and give it", param="model")
            object.__setattr__(self, "opened", Run.opening(self.model, kv=self.provenance.kv))
        assert self.opened is not None
        return self.opened

    def explain(self, step: int, model: Opened | None = None, *, against: int | None = None) -> Explained:
        """Why this token (explain.py), on `model`, or as `again` finds one. against: the id to compare it with."""
        from glassbox.trace.explain import explain

        return explain(self, step, model, against=against)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all but the model, which it finds again by its name."""
        return {**self.__dict__, "opened": None}

    def __copy__(self) -> Run:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Run:
        other = copy(self)
        other.__dict__.update(deepcopy(self.__getstate__(), memo), opened=self.opened)
        return other

    def to_dict(self) -> dict[str, Any]:
        """The object that `glassbox trace --json` prints; see jsonable.py."""
        return run_to_dict(self)

    def export(self, to: str, path: str | Path) -> Path:
        """Write it to a file or folder that is not there yet; to: a format of trace/export. Returns the path.

        Raises ParameterError, GlassboxError where something is missing, and OSError; then nothing is left behind.
        """
        from glassbox.trace.export import Source, export

        return export([Source(self)], to, Path(path))[0]

    def __repr__(self) -> str:
        counts = f"{self.usage.prompt_tokens} + {self.usage.completion_tokens} tokens"
        stop = self.stop_reason
        how = f"{self.finish_reason} ({stop['kind']})" if stop else self.finish_reason
        shown = self.text if len(self.text) <= 40 else self.text[:39] + "…"
        where = "" if self.recorded else ", not recorded"
        return f"<Run {self.run_id} {self.model}: {counts}, seed {self.seed}, {how}{where}: {shown!r}>"
