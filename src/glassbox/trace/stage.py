"""What a stage of a comparison is, and what the functions that compare share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassbox.trace.pair import Pair
from glassbox.trace.side import Side
from glassbox.trace.told import quoted


@dataclass(frozen=True)
class Found:
    """What a comparison found: `says` in words, `evidence` in plain values."""

    same: bool | None  # None: it could not be compared
    says: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Stage(NamedTuple):
    name: str
    needs: tuple[str, ...]  # fields that both must have
    compare: Callable[[Pair], Found]


def unknown(why: str, evidence: Mapping[str, Any] | None = None) -> Found:
    return Found(None, f"not compared: {why}", evidence or {})


def changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[Any]]:
    """{key: [of one, of the other]} where they differ."""
    keys = dict.fromkeys([*one, *other])
    return {k: [one.get(k), other.get(k)] for k in keys if one.get(k) != other.get(k)}


def many(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def all_of(n: int, what: str) -> str:
    return f"the one {what}" if n == 1 else f"all {n:,} {what}s"


def named(side: Side, token: int) -> str:
    """An id with its bytes, as far as they are known."""
    said = side.bytes_of(token)
    return f"#{token}" if not said else f"{token} {quoted(said)}"
