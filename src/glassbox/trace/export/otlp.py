"""A run as OpenTelemetry spans, in OTLP's JSON: names of the semantic conventions for GenAI, in one place.

https://github.com/open-telemetry/semantic-conventions-genai; all of them are still in development there. What the
conventions have no name for is under `glassbox.`. A collector takes the file at /v1/traces.
But: content (messages, texts, stop sequences) only where the run retains text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassbox.trace.export.source import Source
from glassbox.trace.run import Run

INT64 = 2**63
INTERNAL, ERROR = 1, 2  # kind of a span; code of a status


def write(runs: Sequence[Source], path: Path) -> None:
    whole = {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes({"service.name": "glassbox", "service.version": version})},
                "scopeSpans": [{"scope": {"name": "glassbox", "version": version}, "spans": spans}],
            }
            for version, spans in ((one.run.provenance.glassbox, _spans(one.run)) for one in runs)
        ]
    }
    path.write_text(json.dumps(whole, allow_nan=False) + "\n", encoding="ascii")


def named(run: Run) -> dict[str, Any]:
    """What the conventions say of a run: a name for each value, None where there is none to tell."""
    r, policy, stop = run.request, run.policy.to_dict(), run.stop_reason
    text = run.retain == "text"
    chat = r.messages is not None
    return {
        "gen_ai.operation.name": "chat" if chat else "text_completion",
        "gen_ai.provider.name": "glassbox",
        "gen_ai.request.model": r.model,
        "gen_ai.request.seed": r.seed if r.seed < INT64 else None,
        "gen_ai.request.max_tokens": r.max_tokens,
        "gen_ai.request.temperature": policy.get("temperature"),
        "gen_ai.request.top_p": policy.get("top_p"),
        "gen_ai.request.top_k": policy.get("top_k"),
        "gen_ai.request.frequency_penalty": policy.get("frequency_penalty"),
        "gen_ai.request.presence_penalty": policy.get("presence_penalty"),
        "gen_ai.request.stop_sequences": list(r.stop) if text and r.stop else None,
        "gen_ai.response.id": run.run_id,
        "gen_ai.response.model": r.model,
        "gen_ai.response.finish_reasons": [run.finish_reason],
        "gen_ai.usage.input_tokens": run.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": run.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": run.usage.cached_tokens,
        "gen_ai.output.type": "text",
        "gen_ai.input.messages": _messages(run) if text else None,
        "gen_ai.output.messages": [_message("assistant", run.text, finish_reason=run.finish_reason)] if text else None,
        "error.type": "_OTHER" if run.status == "error" else None,
        "glassbox.seed": str(r.seed),
        "glassbox.stop_kind": stop["kind"] if stop else None,
        "glassbox.model_sha256": run.provenance.model_sha256,
        "glassbox.engine": run.provenance.engine,
        "glassbox.retain": run.retain,
    }


def _messages(run: Run) -> list[dict[str, Any]]:
    said = run.request.messages
    if said is None:
        return [_message("user", run.prompt_text)]
    return [_message(str(m.get("role")), m.get("content")) for m in said]


def _message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    told = content if isinstance(content, str) else json.dumps(content)
    return {"role": role, "parts": [{"type": "text", "content": told}], **more}


def _spans(run: Run) -> list[dict[str, Any]]:
    known, times = named(run), run.timings
    start = run.created_ms * 1_000_000
    end = start + (times.total_ns if times else sum(map(sum, run.token_ns)))
    trace = hashlib.blake2b(run.run_id.encode(), digest_size=16).hexdigest()

    def span(name: str, begin: int, finish: int, kind: int = INTERNAL, **more: Any) -> dict[str, Any]:
        own = hashlib.blake2b(f"{run.run_id} {name}".encode(), digest_size=8).hexdigest()
        times = {"startTimeUnixNano": str(begin), "endTimeUnixNano": str(finish)}
        return {"traceId": trace, "spanId": own, "name": name, "kind": kind, **times, **more}

    failed = {"code": ERROR, "message": run.error or ""} if run.status == "error" else {}
    name = f"{known['gen_ai.operation.name']} {run.model}"
    root = span(name, start, end, attributes=attributes(known), status=failed)
    spans = [root]
    if times is not None:
        first = times.total_ns if times.first_token_ns is None else times.first_token_ns
        parts = {"queue": (0, times.queue_ns), "prefill": (times.queue_ns, first), "decode": (first, times.total_ns)}
        spans += [span(n, start + a, start + b, parentSpanId=root["spanId"]) for n, (a, b) in parts.items()]
    return spans


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As OTLP's JSON has them; without those that are None."""
    return [{"key": key, "value": _any(value)} for key, value in values.items() if value is not None]


def _any(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits do not fit a number of JavaScript
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": attributes(value)}}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_any(item) for item in value]}}
    return {"stringValue": str(value)}
