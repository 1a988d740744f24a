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
from glassbox.trace.run import Run

MOST_BYTES = 1 << 30  # of a file that is read whole


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_id, value))


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


Kind = tuple[Callable[[Any], bool], str]
TEXT, OBJECT, OBJECTS = (_text, "a text"), (_object, "an object"), (_objects, "a list of objects")
TEXTS = (_texts, "a list of texts")
IDS, NUMBER, ID = (_ids, "a list of whole numbers"), (_number, "a finite number"), (_id, "a whole number")
# What is read, and what it must be where it is there and not null; and the same of the objects inside.
FIELDS: Mapping[str, Mapping[str, Kind]] = {
    "": {
        "run_id": TEXT, "model": TEXT, "prompt_text": TEXT, "prompt_ids": IDS, "segments": OBJECTS, "prompt": OBJECTS,
        "steps": OBJECTS, "text": TEXT, "policy": OBJECT, "provenance": OBJECT, "chat": OBJECT, "usage": OBJECT,
        "stop_reason": OBJECT, "beams": OBJECT, "finish_reason": TEXT, "fingerprint": TEXT, "seed": ID, "sequence": ID,
        "forced": IDS,
    },
    "provenance": dict.fromkeys(("model_sha256", "tokenizer_sha256", "template_sha256", "engine", "kv"), TEXT),
    "policy": {"order": TEXTS},
    "beams": {"rows": OBJECTS},
    "chat": {"source": TEXT, "template": TEXT},
    "segments": {"origin": TEXT, "text": TEXT},
    "prompt": {"id": ID, "bytes": IDS},
    "steps": {
        "id": ID, "bytes": IDS, "text": TEXT, "position": ID, "logprob_raw": NUMBER, "u": NUMBER, "cdf_lo": NUMBER,
        "cdf_hi": NUMBER, "logits_hash": TEXT, "ledger": OBJECTS, "candidates": OBJECTS,
    },
    "steps.ledger": {"name": TEXT, "alive_after": ID, "removed_ids": IDS},
    "steps.candidates": {"id": ID, "logit": NUMBER, "p_raw": NUMBER, "removed_by": TEXT},
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
    _check(what, "", letter, "")
    return Side(letter, what)


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise PromptError(f"{path} has more than {MOST_BYTES:,} bytes")
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise PromptError(f"{path} is not JSON: {e}") from None


def _check(data: Mapping[str, Any], of: str, letter: str, where: str) -> None:
    """Raise PromptError for the first field that is not what FIELDS says of it."""
    for name, (right, words) in FIELDS[of].items():
        value = data.get(name)
        if value is not None and not right(value):
            raise PromptError(f"{letter}: {where}{name} must be {words}", param=name)
        inner = f"{of}.{name}" if of else name
        if value is None or inner not in FIELDS:
            continue
        for i, item in enumerate(value if isinstance(value, list) else [value]):
            _check(item, inner, letter, f"{where}{name}{f'[{i}]' if isinstance(value, list) else ''}.")


def _bytes(values: Sequence[int]) -> bytes:
    return bytes(b & 0xFF for b in values)
