"""From the objects of a run to rows: tuples in the order of the column lists in rows.py.

What `level` and `retain` leave out is left out here, before anything comes near the file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from glassbox.beam import BeamRow
from glassbox.events import PromptToken, Step
from glassbox.outcome import Outcome
from glassbox.policy.policy import LedgerRow
from glassbox.request import Provenance, Request
from glassbox.text.tokenizer import Encoding
from glassbox.trace.rows import ASKED, ENDED, OPTIONS, POSITION, PROVENANCE, Level, PolicySteps, Retain, Row, dumps

TOP = struct.Struct("<id")  # an id and its probability


def _real(value: float | None) -> float | None:
    # SQLite turns NaN into NULL and -0.0 into 0; doing it here keeps the digest equal to what is read back.
    return None if value is None or value != value else float(value) + 0.0


def _row(columns: Sequence[str], values: Mapping[str, Any]) -> Row:
    return tuple(map(values.get, columns))


def _int(value: int | None) -> int | None:
    return None if value is None else int(value)


def _text(value: str | None) -> str | None:
    """Text that SQLite can hold, whatever it came from: half a surrogate pair becomes what Python would type."""
    return None if value is None else value.encode("utf-8", "backslashreplace").decode()


def asked_row(
    run_id: str,
    created_ms: int,
    owner: str,
    level: Level,
    retain: Retain,
    request: Request,
    provenance: Provenance,
) -> Row:
    """The part of a `run` row that is known at the start."""
    text, ids = retain == "text", retain != "none"
    e, policy, messages = request.encoding, request.policy.to_dict(), request.messages
    more: dict[str, Any] = {"chat": request.chat} if text and request.chat is not None else {}
    if request.group is not None:
        more["group"] = request.group
    if request.beam is not None:
        more["beam"] = request.beam.to_dict()
    if request.cut is not None:
        more["cut"] = asdict(request.cut)
    more["kv"] = provenance.kv
    b = request.branch
    known = {
        "id": run_id,
        "created": created_ms,
        "owner": owner,
        "level": level,
        "retain": retain,
        "model": _text(request.model),
        "seed": str(int(request.seed)),
        "policy": dumps(policy),
        "max_tokens": int(request.max_tokens),
        "stop": dumps(request.stop) if ids else None,
        "stop_ids": dumps(request.stop_ids) if ids else None,
        "ignore_eos": int(request.ignore_eos),
        "sequence": str(int(request.sequence)),
        "options": dumps({name: getattr(request, name) for name in OPTIONS} | more | _seldom(request)),
        "messages": dumps(messages) if text and messages is not None else None,
        "sources": dumps(request.sources),
        "prompt_text": e.text if text else None,
        "prompt_lossy": dumps(e.lossy) if text else None,
        "prompt_notes": dumps(e.notes) if text else None,
        "prompt_tokens": len(e.ids),
        "parent": None if b is None else b.parent,
        "parent_step": None if b is None else b.step,
    }
    return _row(ASKED, known | {name: getattr(provenance, name) for name in PROVENANCE})


def _seldom(request: Request) -> dict[str, Any]:
    """Options that most runs have not: what was done to inner values; of the steps a branch has from its parent, which
    policies and seeds made them, and whose ids were forced."""
    b, done = request.branch, [one.to_dict() for one in request.interventions]
    options: dict[str, Any] = {"interventions": done} if done else {}
    if b is not None and (b.made or b.forced):
        made = [[end, policy.to_dict(), str(seed)] for end, policy, seed in b.made]
        options["branch"] = {"made": made, "forced": b.forced}
    return options


def segment_rows(encoding: Encoding, retain: Retain) -> list[Row]:
    if retain == "none":
        return []
    text = retain == "text"
    return [
        (i, s.origin, s.role, s.text if text else None, int(s.trusted)) for i, s in enumerate(encoding.segment_list)
    ]


def prompt_row(encoding: Encoding, position: int, token: PromptToken | None, retain: Retain) -> Row:
    """One prompt position: `token` is None until the model has been there."""
    lo, hi = encoding.spans[position]
    values: dict[str, Any] = {
        "pos": position,
        "id": int(encoding.ids[position]),
        "segment": int(encoding.segments[position]),
        "kind": encoding.kinds[position],
        "span_lo": int(lo),
        "span_hi": int(hi),
    }
    if token is not None:
        values |= {"kv": token.kv, "logprob_raw": _real(token.logprob)}
        if retain == "text":
            values["bytes"] = bytes(token.bytes)
    return _row(POSITION, values)


def step_row(step: Step, request: Request, retain: Retain) -> Row:
    """The `position` row of a generated token."""
    values: dict[str, Any] = {
        "pos": int(step.position),
        "step": int(step.step),
        "model_ns": int(step.model_ns),
        "policy_ns": int(step.policy_ns),
        "drafted": int(step.drafted),
    }
    if retain == "text":
        values |= {"bytes": bytes(step.bytes), "text": step.text, "text_offset": _int(step.text_offset)}
    if retain != "none":
        c = step.choice
        usual = c.counter is None or c.counter == (request.seed, request.sequence, step.position)
        values |= {
            "id": int(step.id),
            "logprob_raw": _real(c.logprob_raw),
            "logprob_final": _real(c.logprob_final),
            "rank_raw": _int(c.rank_raw),
            "ties": _int(c.ties),
            "entropy": _real(step.entropy),
            "u": _real(c.u),
            "cdf_lo": _real(c.cdf_lo),
            "cdf_hi": _real(c.cdf_hi),
            "counter": None if usual else dumps(c.counter),
            "logits_hash": bytes.fromhex(step.logits_hash),
        }
    return _row(POSITION, values)


def ledger_rows(step: Step, steps: PolicySteps) -> list[Row]:
    """The ledger of one position. A name that is not in `steps`, the run's list, is appended."""
    rows: list[Row] = []
    for i, r in enumerate(step.ledger):
        index = next((k for k, known in enumerate(steps) if known[0] == r.name), len(steps))
        if index == len(steps):
            steps.append((r.name, dumps(r.params), dict(r.params)))
        inline = None if r.params == steps[index][2] else dumps(r.params)
        ids = struct.pack(f"<{len(r.removed_ids)}i", *r.removed_ids)
        top = b"".join(TOP.pack(token, p) for token, p in r.top)
        counts = (int(r.alive_before), int(r.alive_after), _real(r.mass_removed), int(r.removed_count))
        rows.append((int(step.position), i, index, inline, *counts, ids, _real(r.entropy), top, int(r.argmax_changed)))
    return rows


def policy_steps_text(steps: PolicySteps) -> str:
    return dumps([{"name": name, "params": params} for name, _, params in steps])


def candidate_rows(step: Step) -> list[Row]:
    pos = int(step.position)
    return [
        (pos, i, int(c.id), _real(c.logit), _real(c.p_raw), _real(c.p_final), c.removed_by)
        for i, c in enumerate(step.candidates)
    ]


def beam_row(row: BeamRow, retain: Retain) -> Row:
    text = retain == "text"
    return (
        int(row.step), int(row.rank), int(row.group), _int(row.beam), _int(row.parent), int(row.id),
        _real(row.logprob), _real(row.score), row.state, bytes(row.bytes) if text else None, row.text if text else None,
    )  # fmt: skip


def ended_row(
    outcome: Outcome | None, finish_reason: str, error: str | None, retain: Retain, failed: Sequence[LedgerRow] = ()
) -> Row:  # fmt: skip
    """The part of a `run` row that is known at the end. Without an outcome it failed or was abandoned."""
    values: dict[str, Any] = {"finish_reason": finish_reason, "error": _text(error)}
    if failed and retain != "none":
        values["stop_detail"] = dumps([asdict(r) for r in failed])
    if outcome is not None:
        usage, timings = outcome.usage, outcome.timings
        values |= {
            "stop_kind": outcome.ending.kind,
            # An id or a piece of text, so it does not stay where neither does.
            "stop_detail": dumps(outcome.ending.detail) if retain != "none" else None,
            "text": outcome.text if retain == "text" else None,
            "cached_tokens": _int(usage.cached_tokens),
            "completion_tokens": int(usage.completion_tokens),
            "queue_ns": int(timings.queue_ns),
            "first_token_ns": _int(timings.first_token_ns),
            "total_ns": int(timings.total_ns),
            "last_token_ns": _int(timings.last_token_ns),
            "reuse_why": outcome.reuse if retain != "none" else None,
        }
    return _row(ENDED, values)
