"""Why a generation ends: stop strings in the text, and the limits on ids and counts.

In: pieces of text, as the detokenizer lets them go; ids and counts. Out: what may be shown, what is held
back, and the one `Ending`, recorded when it happens. `StopWatcher` holds back exactly the longest suffix
that could still become a stop string, so nothing is shown that a stop would take back, and nothing waits
that could not.

Of several causes one is recorded. For a token: end of sequence, stop id, stop string, max_tokens, end of the
context, in this order. Of stop strings: the one that completes first in characters; of those that complete
at the same character the one that begins earliest. So neither the borders of tokens nor the order of the
list matter. Before min_tokens neither ids nor strings end a run: a stop that completes there is ordinary
text; the first one that completes with token number min_tokens, or later, ends it.
But: it knows no tokens' text. A stop string may begin and end inside tokens; only characters count.
"""

from __future__ import annotations

import numbers
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from glassbox.errors import ParameterError
from glassbox.types import FinishReason

MAX_STOPS = 32
MAX_STOP_CHARS = 1024

Kind = Literal["eos", "stop_id", "stop_string", "grammar", "max_tokens", "context_end", "cancelled", "time", "error"]

_FINISH: dict[str, FinishReason] = {
    "eos": "stop",
    "stop_id": "stop",
    "stop_string": "stop",
    "grammar": "stop",
    "max_tokens": "length",
    "context_end": "length",
    "cancelled": "cancelled",
    "time": "time",
    "error": "error",
}
_DETAIL = {"eos": "id", "stop_id": "id", "stop_string": "text", "max_tokens": "limit", "context_end": "limit"}


@dataclass(frozen=True)
class Ending:
    """Why a run ended. `finish_reason` is the API's word for `kind`; `detail` is the id, text or limit."""

    finish_reason: FinishReason = field(init=False)
    kind: Kind
    detail: int | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "finish_reason", _FINISH[self.kind])

    @property
    def stop_reason(self) -> dict[str, Any]:
        """As JSON: {"kind": "eos", "id": 2}, {"kind": "stop_string", "text": "Paris"}, …"""
        if self.detail is None:
            return {"kind": self.kind}
        return {"kind": self.kind, _DETAIL.get(self.kind, "detail"): self.detail}


@dataclass(frozen=True)
class Limits:
    """What ends a run. `stop_ids` are the user's own: they hold even with `ignore_eos`."""

    eos_ids: Iterable[int] = ()
    stop_ids: Iterable[int] = ()
    max_tokens: int | None = None  # generated
    context: int | None = None  # prompt and generated
    ignore_eos: bool = False
    min_tokens: int = 0  # generated: before so many no id and no string ends it

    def __post_init__(self) -> None:
        for name in ("eos_ids", "stop_ids"):
            object.__setattr__(self, name, frozenset(_whole(name, i, 0) for i in getattr(self, name)))
        for name in ("max_tokens", "context"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(name, getattr(self, name), 1))
        object.__setattr__(self, "min_tokens", _whole("min_tokens", self.min_tokens, 0))

    def armed(self, generated: int) -> bool:
        """Whether ids and strings may end it at token number `generated`, from 1."""
        return generated >= self.min_tokens

    def check(
        self, token_id: int, *, generated: int, length: int, matched: str | None = None, complete: bool = False
    ) -> Ending | None:
        """Whether the token just made ends the run. `generated` counts it; `length` counts the prompt too;
        `matched` is the stop string its text completed; `complete`: a grammar allows no more. The first cause
        wins: a stop on the last allowed token is a stop."""
        if self.armed(generated):
            if token_id in self.eos_ids and not self.ignore_eos:
                return Ending("eos", token_id)
            if token_id in self.stop_ids:
                return Ending("stop_id", token_id)
            if matched is not None:
                return Ending("stop_string", matched)
            if complete:
                return Ending("grammar")
        if self.max_tokens is not None and generated >= self.max_tokens:
            return Ending("max_tokens", self.max_tokens)
        if self.context is not None and length >= self.context:
            return Ending("context_end", self.context)
        return None


@dataclass(frozen=True)
class Shown:
    text: str  # may be shown now
    held: str  # may yet become a stop
    matched: str | None  # the stop string that ended the text; nothing follows it


class StopWatcher:
    """Watches text for stop strings, piece by piece, with the same result however it is cut into pieces.

    The stop that completes first in characters wins; of several that end at the same character, the
    longest, which began earliest. The order of `stops` never matters. An Aho-Corasick automaton ("Efficient
    string matching", CACM 18, 1975): its state is the longest suffix of the text that begins a stop, which
    is also what must be held back, so each character is looked at once.
    """

    def __init__(self, stops: str | Sequence[str] = (), *, include_stop: bool = False) -> None:
        self._include = include_stop
        self._next, self._fail, self._depth, self._stop = _automaton(_checked_stops(stops))
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    def feed(self, text: str, *, armed: bool = True) -> Shown:
        """Take more text. After a match everything more is dropped. Not `armed`: a stop that completes in this text
        is ordinary text, though one that begins in it may complete later."""
        if self._matched is not None:
            return Shown("", "", self._matched)
        if len(self._next) == 1:  # no stops: nothing to look for
            return Shown(text, "", None)
        seen = self._held + text
        for at, char in enumerate(text, start=len(self._held) + 1):
            self._state = self._step(self._state, char)
            stop = self._stop[self._state]
            if not armed:
                while self._state and not self._next[self._state]:  # nothing longer can come of it
                    self._state = self._fail[self._state]
            elif stop is not None:
                self._matched, self._held, self._state = stop, "", 0
                return Shown(seen[: at if self._include else at - len(stop)], "", stop)
        shown = len(seen) - self._depth[self._state]
        self._held = seen[shown:]
        return Shown(seen[:shown], self._held, None)

    def flush(self) -> str:
        """The run ended otherwise: what was held back is text after all."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _step(self, state: int, char: str) -> int:
        while char not in self._next[state]:
            if not state:
                return 0
            state = self._fail[state]
        return self._next[state][char]


def _automaton(stops: Sequence[str]) -> tuple[list[dict[str, int]], list[int], list[int], list[str | None]]:
    """For each state: where a character leads; the state of its longest proper suffix; its length; the
    longest stop that its text ends with. State 0 is the empty text."""
    goto: list[dict[str, int]] = [{}]
    depth, stop_at = [0], list[str | None]([None])
    for stop in stops:
        state = 0
        for char in stop:
            if char not in goto[state]:
                goto[state][char] = len(goto)
                goto.append({})
                depth.append(depth[state] + 1)
                stop_at.append(None)
            state = goto[state][char]
        stop_at[state] = stop
    fail = [0] * len(goto)
    queue = deque(goto[0].values())
    while queue:  # breadth first, so a shorter state is done before the longer ones that fall back on it
        state = queue.popleft()
        for char, child in goto[state].items():
            back = fail[state]
            while back and char not in goto[back]:
                back = fail[back]
            fail[child] = goto[back].get(char, 0)
            stop_at[child] = stop_at[child] or stop_at[fail[child]]
            queue.append(child)
    return goto, fail, depth, stop_at


def _checked_stops(stops: str | Sequence[str]) -> list[str]:
    """Each stop once. A lone string is one stop, not its letters."""
    listed = [stops] if isinstance(stops, str) else list(stops)
    allowed = f"up to {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters"
    if len(listed) > MAX_STOPS:
        raise ParameterError("stop", f"{len(listed)} strings", allowed)
    for stop in listed:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARS:
            shown = f"{stop[:20]}… ({len(stop)} characters)" if isinstance(stop, str) and stop else stop
            raise ParameterError("stop", shown, allowed)
    return list(dict.fromkeys(listed))


def _whole(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise ParameterError(name, value, f"a whole number of {low} or more")
    return int(value)
