"""Runs a template in a process of its own, which a deep, endless or greedy one may bring down. Comes in: what
sandbox.py takes. Goes out: the same text, the same errors, and `Stopped` where it had to be.

One process a call, JSON in and out: nothing is shared, nothing is left behind. Where the system has no limits on memory
(not POSIX), time alone bounds it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from glassbox.errors import TemplateError

MEMORY = 512 << 20  # bytes of address space
CPU = 2  # seconds, and a little for each
FUEL_A_SECOND = 10_000_000  # of fuel
WALL = 5  # seconds on the clock for each of these, on a machine that does other work too


class Stopped(TemplateError):
    """The template did not end by itself."""


def check(source: str) -> None:
    """Raises TemplateError where `source` cannot be parsed, Stopped where the parser cannot bear it."""
    _ask(source, None, 0, datetime.min)


def run(source: str, data: Mapping[str, object], fuel: int, now: datetime) -> tuple[str, bool]:
    """The text, and whether the template asked for the time. Raises TemplateError (its own words), Stopped."""
    answer = _ask(source, data, fuel, now)
    return answer["text"], answer["asked_clock"]


def _ask(source: str, data: Mapping[str, object] | None, fuel: int, now: datetime) -> Any:
    import subprocess  # the other process runs this file too, and starts sooner without it

    cpu = CPU + fuel // FUEL_A_SECOND
    question = json.dumps({"source": source, "data": data, "fuel": fuel, "now": now.isoformat(), "cpu": cpu})
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path)  # where this process finds its modules
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__], input=question.encode(), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}, timeout=WALL * cpu,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Stopped("the chat template was stopped: it runs too long") from None
    except OSError as e:
        raise TemplateError(f"the chat template needs a process of its own, which cannot be started: {e}") from None
    if done.returncode:
        raise Stopped("the chat template was stopped: it runs too long, or nests or takes memory without end")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise TemplateError(answer["error"])
    return answer


def _limit(cpu: int) -> None:
    try:
        import resource
    except ImportError:
        return
    limits = ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_AS, MEMORY))
    for which, most in limits:
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(which, (most, most))
        except (OSError, ValueError):
            continue  # macOS has no limit on address space


def _answer(question: Any) -> dict[str, object]:
    from glassbox.text import sandbox

    try:
        if question["data"] is None:
            sandbox.check(question["source"])
            return {}
        now = datetime.fromisoformat(question["now"])
        text, asked = sandbox.run(question["source"], question["data"], question["fuel"], now)
    except TemplateError as e:
        return {"error": str(e)}
    return {"text": text, "asked_clock": asked}


def _main() -> None:
    question = json.loads(sys.stdin.buffer.read())
    _limit(question["cpu"])
    sys.stdout.buffer.write(json.dumps(_answer(question)).encode())
    sys.stdout.flush()
    os._exit(0)  # what the template has made need not be taken apart


if __name__ == "__main__":
    _main()
