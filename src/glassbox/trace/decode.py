"""From rows back to the objects of a run: the reverse of encode.py. What was not kept comes back empty."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from glassbox.beam import Beam, BeamRow
from glassbox.choose import Choice
from glassbox.events import PromptToken, Step
from glassbox.model.intervene import Intervention
from glassbox.outcome import Outcome, Timings, Usage
from glassbox.policy.policy import Candidate, LedgerRow, Policy
from glassbox.request import Branch, Provenance, Request
from glassbox.stop import Ending
from glassbox.text.segments import Segment
from glassbox.text.tokenizer import Encoding
from glassbox.text.truncate import Cut
from glassbox.trace.encode import TOP
from glassbox.trace.rows import PROVENANCE, PolicySteps, dumps

KV = "kv"  # stands among a run's options, but is of its provenance


class Get(Protocol):
    """A row, by the names of its columns."""

    def __getitem__(self, name: str, /) -> Any: ...


def policy_steps_of(text: str) -> PolicySteps:
    return [(s["name"], dumps(s["params"]), dict(s["params"])) for s in json.loads(text)]


def request_of(run: Get, segments: Iterable[Get], prompt: Sequence[Get]) -> Request:
    """`prompt` are the rows of the prompt's positions. Texts that were not kept are empty."""
    encoding = Encoding(
        ids=tuple(r["id"] for r in prompt),
        spans=tuple((r["span_lo"], r["span_hi"]) for r in prompt),
        kinds=tuple(r["kind"] for r in prompt),
        segments=tuple(r["segment"] for r in prompt),
        segment_list=tuple(Segment(s["origin"], s["role"], s["text"] or "", bool(s["trusted"])) for s in segments),
        text=run["prompt_text"] or "",
        lossy=tuple(json.loads(run["prompt_lossy"] or "[]")),
        notes=tuple(json.loads(run["prompt_notes"] or "[]")),
    )
    messages = run["messages"]
    options = {name: value for name, value in json.loads(run["options"]).items() if name != KV}
    if "beam" in options:
        options["beam"] = Beam(**options["beam"])
    if "cut" in options:
        options["cut"] = Cut(**options["cut"] | {"messages": tuple(options["cut"]["messages"])})
    branch = _branch_of(run, options.pop("branch", {}))
    done = tuple(Intervention(**one) for one in options.pop("interventions", ()))
    return Request(
        model=run["model"],
        encoding=encoding,
        policy=Policy.from_dict(json.loads(run["policy"])),
        seed=int(run["seed"]),
        max_tokens=run["max_tokens"],
        stop=tuple(json.loads(run["stop"] or "[]")),
        stop_ids=tuple(json.loads(run["stop_ids"] or "[]")),
        ignore_eos=bool(run["ignore_eos"]),
        sequence=int(run["sequence"]),
        **options,
        messages=None if messages is None else tuple(json.loads(messages)),
        sources=json.loads(run["sources"]),
        branch=branch,
        interventions=done,
    )


def _branch_of(run: Get, options: Mapping[str, Any]) -> Branch | None:
    if run["parent"] is None:
        return None
    made = tuple((end, Policy.from_dict(policy), int(seed)) for end, policy, seed in options.get("made", ()))
    return Branch(run["parent"], run["parent_step"], made, tuple(options.get("forced", ())))


def provenance_of(run: Get) -> Provenance:
    kv = json.loads(run["options"]).get(KV, "f32")
    return Provenance(**{name: run[name] for name in PROVENANCE}, kv=kv)


def prompt_token_of(r: Get) -> PromptToken:
    return PromptToken(r["pos"], r["id"], r["bytes"] or b"", r["segment"], r["kv"], r["logprob_raw"])


def step_of(r: Get, ledger: Sequence[Get], candidates: Sequence[Get], steps: PolicySteps, request: Request) -> Step:
    counter: tuple[int, int, int] | None = None
    if r["counter"] is not None:
        counter = tuple(json.loads(r["counter"]))
    elif r["u"] is not None:
        counter = (request.seed, request.sequence, r["pos"])
    choice = Choice(
        id=r["id"],
        u=r["u"],
        cdf_lo=r["cdf_lo"],
        cdf_hi=r["cdf_hi"],
        counter=counter,
        logprob_raw=r["logprob_raw"],
        logprob_final=r["logprob_final"],
        rank_raw=r["rank_raw"],
        ties=r["ties"],
    )
    return Step(
        step=r["step"],
        position=r["pos"],
        id=r["id"],
        bytes=r["bytes"] or b"",
        text=r["text"] or "",
        choice=choice,
        ledger=tuple(_ledger_of(row, steps, ledger[max(0, i - 1)]["entropy"]) for i, row in enumerate(ledger)),
        candidates=tuple(Candidate(c["id"], c["logit"], c["p_raw"], c["p_final"], c["removed_by"]) for c in candidates),
        entropy=r["entropy"],
        logits_hash=r["logits_hash"].hex(),
        model_ns=r["model_ns"],
        policy_ns=r["policy_ns"],
        drafted=bool(r["drafted"]),
        text_offset=r["text_offset"],
    )


def _ledger_of(r: Get, steps: PolicySteps, entropy_before: float) -> LedgerRow:
    name, _, params = steps[r["policy_step"]]
    return LedgerRow(
        name=name,
        params=params if r["params"] is None else dict(json.loads(r["params"])),
        alive_before=r["alive_before"],
        alive_after=r["alive_after"],
        mass_removed=r["mass_removed"],
        removed_count=r["removed_count"],
        removed_ids=struct.unpack(f"<{len(r['removed_ids']) // 4}i", r["removed_ids"]),
        entropy=r["entropy"],
        top=tuple(TOP.iter_unpack(r["top"])),
        argmax_changed=bool(r["argmax_changed"]),
        entropy_before=entropy_before,
    )


def failed_of(run: Get) -> tuple[LedgerRow, ...]:
    """The ledger of the step that failed, where one did and it was kept."""
    rows = json.loads(run["stop_detail"]) if run["stop_kind"] is None and run["stop_detail"] else []
    lists = ("removed_ids", "top")
    return tuple(LedgerRow(**{**r, **{k: tuple(map(_tupled, r[k])) for k in lists}}) for r in rows)


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def beam_row_of(r: Get) -> BeamRow:
    return BeamRow(
        r["step"], r["i"], r["grp"], r["beam"], r["parent"], r["id"], r["logprob"], r["score"], r["state"],
        r["bytes"] or b"", r["text"] or "",
    )  # fmt: skip


def outcome_of(run: Get, dropped: int = 0) -> Outcome | None:
    """None while it runs, and when it failed or was cut off."""
    if run["stop_kind"] is None:
        return None
    detail = None if run["stop_detail"] is None else json.loads(run["stop_detail"])
    return Outcome(
        Ending(run["stop_kind"], detail),
        run["text"] or "",
        Usage(run["prompt_tokens"], run["cached_tokens"], run["completion_tokens"], dropped),
        Timings(run["queue_ns"], run["first_token_ns"], run["total_ns"], run["last_token_ns"]),
        run["reuse_why"],
    )
