"""One of two runs that are compared: the object `glassbox trace --json` prints, any part of which may be missing.

In: a run, such an object, or a file that holds one, whoever wrote it. Out: a `Side`, checked as far as it goes.
But: it compares nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from glassbox.errors import PromptError
from glassbox.trace.record import Run

MOST_BYTES = 1 << 30  # of a file that is read whole


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# What is read, and what it must be where it is there and not null.
FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "run_id": (_text, "a text"), "model": (_text, "a text"), "prompt_text": (_text, "a text"),
    "prompt_ids": (_ids, "a list of whole numbers"), "segments": (_objects, "a list of objects"),
    "prompt": (_objects, "a list of objects"), "steps": (_objects, "a list of objects"), "text": (_text, "a text"),
    "policy": (_object, "an object"), "provenance": (_object, "an object"), "chat": (_object, "an object"),
    "stop_reason": (_object, "an object"), "finish_reason": (_text, "a text"), "fingerprint": (_text, "a text"),
    "seed": (_number, "a number"),
}  # fmt: skip
OF_A_STEP: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "id": (_number, "a number"), "bytes": (_ids, "a list of whole numbers"), "text": (_text, "a text"),
    "logprob_raw": (_number, "a number"), "u": (_number, "a number"), "cdf_lo": (_number, "a number"),
    "cdf_hi": (_number, "a number"), "logits_hash": (_text, "a text"), "ledger": (_objects, "a list of objects"),
    "candidates": (_objects, "a list of objects"),
}  # fmt: skip


@dataclass
class Side:
    """name: what it is called in a sentence; data: the object; run: where it is a run of ours."""

    name: str
    data: Mapping[str, Any]
    run: Run | None = None

    def get(self, field: str) -> Any:
        """The value of a field, of one inside another ("provenance.kv"); None where it is missing."""
        found: Any = self.data
        for key in field.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    @property
    def ids(self) -> tuple[int, ...]:
        """Of the prompt; empty where they are not known."""
        return tuple(self.get("prompt_ids") or ())

    @property
    def steps(self) -> Sequence[Mapping[str, Any]]:
        """As far as their ids are known."""
        steps = self.get("steps") or ()
        unknown = next((i for i, s in enumerate(steps) if s.get("id") is None), len(steps))
        found: Sequence[Mapping[str, Any]] = steps[:unknown]
        return found

    @property
    def lacks_steps(self) -> bool:
        """Whether it made tokens whose ids are not known."""
        made, count = self.get("steps"), self.get("usage.completion_tokens")
        return made is None or len(self.steps) < max(len(made), count if isinstance(count, int) else 0)

    def prompt_bytes(self) -> list[bytes] | None:
        """Of each of the prompt's ids, if all are known."""
        tokens = self.get("prompt") or ()
        known = [t.get("bytes") for t in tokens]
        if len(known) == len(self.ids) and all(_ids(b) for b in known):
            return [_bytes(b) for b in known]
        return [b for i in self.ids if (b := self.bytes_of(i)) is not None] if self._vocab else None

    @property
    def knows_bytes(self) -> bool:
        """Whether the bytes of all its ids are known."""
        prompt = self.prompt_bytes()
        steps = range(len(self.steps))
        return prompt is not None and len(prompt) == len(self.ids) and None not in map(self.step_bytes, steps)

    def step_bytes(self, step: int) -> bytes | None:
        made = self.steps[step]
        return _bytes(made["bytes"]) if made.get("bytes") is not None else self.bytes_of(made["id"])

    def bytes_of(self, token: int) -> bytes | None:
        """As far as the run itself or its open model knows."""
        if token in self._said:
            return self._said[token]
        return self._vocab.bytes_of(token) if self._vocab is not None and token >= 0 else None

    @cached_property
    def _said(self) -> dict[int, bytes]:
        listed = [*(self.get("prompt") or ()), *self.steps]
        return {t["id"]: _bytes(t["bytes"]) for t in listed if t.get("id") is not None and _ids(t.get("bytes"))}

    @property
    def _vocab(self) -> Any:
        return self.run.opened.tokenizer.vocab if self.run is not None and self.run.opened is not None else None


def side_of(what: Run | Mapping[str, Any] | str | Path, letter: str) -> Side:
    """A run, an object, or the path of a file that holds one. Raises PromptError, OSError."""
    if isinstance(what, Run):
        return Side(letter, what.to_dict(), what)
    if isinstance(what, str | Path):
        what = _read(Path(what))
    if not isinstance(what, Mapping):
        why = f"{letter} is not a run: an object as `glassbox trace --json` prints it is needed"
        raise PromptError(why, param=letter)
    _check(what, FIELDS, letter, "")
    for i, step in enumerate(what.get("steps") or ()):
        _check(step, OF_A_STEP, letter, f"steps[{i}].")
    return Side(letter, what)


def _read(path: Path) -> Any:
    if path.stat().st_size > MOST_BYTES:
        raise PromptError(f"{path} has more than {MOST_BYTES:,} bytes")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise PromptError(f"{path} is not JSON: {e}") from None


def _check(data: Mapping[str, Any], fields: Mapping[str, Any], letter: str, where: str) -> None:
    for name, (right, words) in fields.items():
        if data.get(name) is not None and not right(data[name]):
            raise PromptError(f"{letter}: {where}{name} must be {words}", param=name)


def _bytes(values: Sequence[int]) -> bytes:
    return bytes(b & 0xFF for b in values)
