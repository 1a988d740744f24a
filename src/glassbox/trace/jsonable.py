"""A run as plain JSON values: the contract other people's scripts rely on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from glassbox.events import PromptToken, Step

if TYPE_CHECKING:
    from glassbox.trace.run import Run

VERSION = 1  # of this object, which docs/run.schema.json describes; keys may be added within a version


def run_to_dict(run: Run) -> dict[str, Any]:
    """What `glassbox trace --json` prints: finite numbers only, null for what was not measured or not kept.

    The seed is an integer of up to 64 bits. Python reads it whole; JavaScript needs a parser with BigInt.
    """
    r, text = run.request, run.retain == "text"
    usage = asdict(run.usage) | {"submitted_tokens": run.usage.submitted_tokens}
    if run.outcome is None and not run.prompt:
        usage["cached_tokens"] = None  # nobody has looked yet
    result = {
        "run_id": run.run_id,
        "model": r.model,
        "prompt_text": run.prompt_text if text else None,
        "prompt_ids": list(run.prompt_ids),
        "text": run.text if text else None,
        "finish_reason": run.finish_reason,
        "stop_reason": run.stop_reason,
        "usage": usage,
        "seed": r.seed,
        "policy": r.policy.to_dict(),
        "fingerprint": run.fingerprint,
        "steps": [step_to_dict(run, s) for s in run.steps],
        "created": run.created.isoformat(timespec="milliseconds"),
        "status": run.status,
        "error": run.error,
        "failed_ledger": [row.to_dict() for row in run.failed],
        "level": run.level,
        "retain": run.retain,
        "problem": run.problem,
        "sequence": r.sequence,
        "max_tokens": r.max_tokens,
        "stop": list(r.stop),
        "stop_ids": list(r.stop_ids),
        "ignore_eos": r.ignore_eos,
        "include_stop": r.include_stop,
        "reuse": r.reuse,
        "speculate": r.speculate,
        "time_limit": r.time_limit,
        "prompt_logprobs": r.prompt_logprobs,
        "reuse_why": run.outcome.reuse if run.outcome and run.retain != "none" else None,
        "messages": None if r.messages is None else list(r.messages),
        "dropped_messages": list(r.cut.messages) if r.cut else [],
        "chat": None if r.chat is None or not text else dict(r.chat),
        "sources": dict(r.sources),
        "parent": r.branch.parent if r.branch else None,
        "parent_step": r.branch.step if r.branch else None,
        "forced": list(r.branch.forced) if r.branch else [],
        "interventions": [one.to_dict() for one in r.interventions],
        "group": r.group,
        "beams": run.beams.to_dict() if run.beams else None,
        "warnings": list(run.warnings),
        "segments": [asdict(s) for s in r.encoding.segment_list] if text else None,
        "prompt": [_prompt_dict(run, token) for token in run.prompt],
        "timings": asdict(run.timings) if run.timings else None,
        "speed": asdict(run.speed) if run.speed else None,
        "provenance": asdict(run.provenance),
        "version": VERSION,
    }
    clean: dict[str, Any] = finite(result)
    return clean


def _prompt_dict(run: Run, token: PromptToken) -> dict[str, Any]:
    encoding, at = run.request.encoding, token.position
    return {
        "position": at,
        "id": token.id,
        "text": token.bytes.decode("utf-8", "backslashreplace") if run.retain == "text" else None,
        "bytes": list(token.bytes) if run.retain == "text" else None,
        "kind": encoding.kinds[at],
        "segment": token.segment,
        "span": list(encoding.spans[at]),
        "kv": token.kv,
        "logprob": token.logprob,
    }


def step_to_dict(run: Run, s: Step) -> dict[str, Any]:
    c, text, look = s.choice, run.retain == "text", run.level == "look"
    return {
        "step": s.step,
        "position": s.position,
        "id": s.id,
        "text": s.text if text else None,
        "bytes": list(s.bytes) if text else None,
        "logprob_raw": c.logprob_raw,
        "logprob_final": c.logprob_final,
        "rank_raw": c.rank_raw,
        "u": c.u,
        "cdf_lo": c.cdf_lo,
        "cdf_hi": c.cdf_hi,
        "ties": c.ties,
        "entropy": s.entropy,
        "logits_hash": s.logits_hash,
        "ledger": [row.to_dict() for row in s.ledger] if s.ledger or look else None,
        "candidates": [row.to_dict() for row in s.candidates] if s.candidates or look else None,
        "model_ns": s.model_ns,
        "policy_ns": s.policy_ns,
        "drafted": s.drafted,
        "text_offset": s.text_offset,
    }


def finite(value: Any) -> Any:
    """As plain JSON values: NaN and infinities become null, numpy scalars numbers, tuples lists."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, Iterable):
        return [finite(item) for item in value]
    return finite(value.item()) if hasattr(value, "item") else str(value)
