"""A run as a timeline: Chrome's trace-event JSON, which ui.perfetto.dev opens.

A run is a process with two threads: the request (waiting, reading, writing) and its tokens (model and policy). What
lies between two tokens was not measured: each begins where the one before it ended, and the first in time to be chosen
at the first token's moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glassbox.trace.export.source import Source
from glassbox.trace.run import Run

REQUEST, TOKENS = 1, 2  # threads


def write(runs: Sequence[Source], path: Path) -> None:
    events = [event for pid, one in enumerate(runs, 1) for event in _events(one.run, pid)]
    whole = {"traceEvents": events, "displayTimeUnit": "ms"}
    path.write_text(json.dumps(whole, allow_nan=False) + "\n", encoding="ascii")


def _events(run: Run, pid: int) -> Iterator[dict[str, Any]]:
    names = [("process_name", 0, f"{run.run_id} {run.model}")]
    names += [("thread_name", REQUEST, "request"), ("thread_name", TOKENS, "tokens")]
    for what, tid, name in names:
        yield {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
    zero, times = run.created_ms * 1000.0, run.timings  # microseconds, as all of the format

    def slice_(name: str, tid: int, begin_ns: int, length_ns: int, **args: Any) -> dict[str, Any]:
        at = {"ts": zero + begin_ns / 1000, "dur": length_ns / 1000}
        return {"name": name, "ph": "X", "pid": pid, "tid": tid, **at, "args": args}

    if times is not None:
        read = times.total_ns if times.first_token_ns is None else times.first_token_ns
        yield slice_("queue", REQUEST, 0, times.queue_ns)
        yield slice_("prefill", REQUEST, times.queue_ns, read - times.queue_ns, tokens=run.usage.evaluated_tokens)
        if times.first_token_ns is not None:
            count = run.usage.completion_tokens
            yield slice_("decode", REQUEST, read, times.total_ns - read, tokens=count, finish_reason=run.finish_reason)
    steps = {step.step: step for step in run.steps}
    first = (times.first_token_ns if times else None) or 0
    at = max(0, first - sum(run.token_ns[0])) if run.token_ns else 0
    for n, (model_ns, policy_ns) in enumerate(run.token_ns):
        args: dict[str, Any] = {"step": n}
        if n in steps and run.retain != "none":
            args |= {"id": steps[n].id, "logprob": steps[n].choice.logprob_raw}
            args |= {"text": steps[n].text} if run.retain == "text" else {}
        yield slice_("model", TOKENS, at, model_ns, **args)
        yield slice_("policy", TOKENS, at + model_ns, policy_ns, **args)
        at += model_ns + policy_ns
