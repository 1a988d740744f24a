"""Interventions: a named inner value set to zero, scaled or replaced while the model computes, at some positions.

In: what somebody asks for, as plain data. Out: checked against a model, what the forward pass has to do where the value
stands (transformer.py writes it into the program). A part of attention's output by head is taken before the output
projection, where heads still lie apart.
But: nothing is measured here; what an intervention does is read off the run that has it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np

from glassbox.errors import ParameterError, UnknownPoint
from glassbox.model.points import HEADS, check_head, check_points, split_head
from glassbox.model.spec import ModelSpec
from glassbox.types import F32

OPS = ("zero", "scale", "replace")
MOST = 100_000  # in one list
END = 2**62  # behind every position
POINTS = ("embed", "resid_pre", "attn_norm", *HEADS, "resid_mid", "mlp_norm", "mlp_act", "mlp_out", "resid_post")


@dataclass(frozen=True)
class Intervention:
    """What is done to one inner value. `point` may name a head too: "attn_out.5.head3"."""

    point: str
    op: str  # zero | scale | replace
    value: Any = None  # scale: the factor. replace: numbers [width], or [positions, width], one row each
    head: int | None = None
    positions: tuple[int, int | None] = (0, None)  # from the first, up to but without the second; None: to the end

    def __post_init__(self) -> None:
        if not isinstance(self.point, str):
            raise ParameterError("point", self.point, "the name of a point, like mlp_out.3")
        name, head = split_head(self.point)
        if head is not None and self.head is None:
            object.__setattr__(self, "point", name)
            object.__setattr__(self, "head", head)
        if self.head is not None:
            if isinstance(self.head, bool) or not isinstance(self.head, Integral):
                raise ParameterError("head", self.head, "a whole number, from 0 on")
            object.__setattr__(self, "head", int(self.head))
        if self.op not in OPS:
            raise ParameterError("op", self.op, f"one of {', '.join(OPS)}")
        object.__setattr__(self, "positions", _positions(self.positions))
        object.__setattr__(self, "value", _value(self.op, self.value))

    @property
    def name(self) -> str:
        return self.point if self.head is None else f"{self.point}.head{self.head}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Intervention(**…)` gives it back."""
        rows = [list(row) for row in self.value] if self.op == "replace" else self.value
        return {"point": self.point, "op": self.op, "value": rows, "head": self.head, "positions": list(self.positions)}

    def __str__(self) -> str:
        first, end = self.positions
        where = "" if (first, end) == (0, None) else f" at positions {first}:{'' if end is None else end}"
        what = f"scale by {self.value:g}" if self.op == "scale" else self.op
        return f"{what} {self.name}{where}"


@dataclass(frozen=True, slots=True)
class Edit:
    """An intervention as the forward pass does it: `width` numbers from column `begin` on, of the rows at positions
    first … end - 1, times `factor`, or (rows not None) replaced."""

    begin: int
    width: int
    first: int
    end: int
    factor: float
    rows: F32 | None  # [1 or positions, width]


def digest(interventions: Sequence[Intervention]) -> str:
    """Equal for equal lists; "" for none: what was computed under one must not be used under another."""
    said = json.dumps([i.to_dict() for i in interventions])
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest() if interventions else ""


def check_interventions(given: Iterable[Intervention], spec: ModelSpec | None) -> tuple[Intervention, ...]:
    """The interventions, if this model has what they name. Raises UnknownPoint, ParameterError."""
    allowed = "a list of glassbox.Intervention"
    if not isinstance(given, Iterable):
        raise ParameterError("interventions", given, allowed)
    checked = tuple(islice(given, MOST + 1))  # an iterator may never end
    if len(checked) > MOST:
        raise ParameterError("interventions", given, f"{allowed}, at most {MOST:,}")
    for one in checked:
        if not isinstance(one, Intervention):
            raise ParameterError("interventions", one, allowed)
        check_points([one.point], spec.layers if spec else 0)
        if spec is None or one.point.split(".")[0] not in POINTS:
            raise UnknownPoint(one.point, [*POINTS] if spec else [])
        edit_of(one, spec)
    return checked


def edit_of(one: Intervention, spec: ModelSpec) -> Edit:
    """What the forward pass of this model does for it. Raises ParameterError."""
    kind = one.point.split(".")[0]
    keys = spec.kv_heads * spec.head_width
    whole = {"q": spec.heads * spec.head_width, "k": keys, "v": keys}
    width = whole.get(kind, max(1, spec.experts_used) * spec.mlp_width if kind == "mlp_act" else spec.width)
    begin = 0
    if one.head is not None:
        check_head(one.point, one.head, spec.heads, spec.kv_heads)
        begin, width = one.head * spec.head_width, spec.head_width
    first, end = one.positions
    rows = None
    if one.op == "zero":
        rows = np.zeros((1, width), np.float32)
    elif one.op == "replace":
        rows = np.array(one.value, np.float32)
        if rows.shape[1] != width or len(rows) not in (1, (END if end is None else end) - first):
            many = "" if end is None else f" or [{end - first}, {width}]"
            raise ParameterError("value", f"of shape {list(rows.shape)}", f"of shape [{width}]{many} for {one.name}")
    return Edit(begin, width, first, END if end is None else end, one.value if one.op == "scale" else 1.0, rows)


def _positions(given: Any) -> tuple[int, int | None]:
    allowed = "(first, end): whole numbers of 0 or more, first below end; None for no end"
    try:
        first, end = given
    except (TypeError, ValueError):
        raise ParameterError("positions", given, allowed) from None
    first = 0 if first is None else first
    if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first < END:
        raise ParameterError("positions", given, allowed)
    if end is not None and (isinstance(end, bool) or not isinstance(end, int) or not first < end <= END):
        raise ParameterError("positions", given, allowed)
    return first, end


def _value(op: str, value: Any) -> Any:
    if op == "zero":
        if value is not None:
            raise ParameterError("value", value, "left out: zero has none")
        return None
    try:
        with np.errstate(over="ignore"):
            numbers = np.array(value, np.float32) + np.float32(0)  # -0.0 is 0.0: they are equal, and so share a pass
    except (TypeError, ValueError, OverflowError):
        raise ParameterError("value", value, "numbers") from None
    if not np.all(np.isfinite(numbers)) or not numbers.size or numbers.ndim > (0 if op == "scale" else 2):
        allowed = "one finite number" if op == "scale" else "finite numbers, [width] or [positions, width]"
        raise ParameterError("value", value, allowed)
    return float(numbers) if op == "scale" else tuple(map(tuple, np.atleast_2d(numbers).tolist()))
