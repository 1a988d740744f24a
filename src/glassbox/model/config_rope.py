"""Reads the rotary embedding from a config.json, in its older spelling (rope_theta, rope_scaling) and its newer one
(rope_parameters, also one for each kind of layer)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

from glassbox.model.architectures import Architecture
from glassbox.model.fields import Fields
from glassbox.model.rope import longrope_gain, yarn_gain
from glassbox.model.spec import Rope

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "su")  # su: what longrope was called first
SPELLINGS = {
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
}
LAYERS = ("full_attention", "sliding_attention")


def ropes(read: Fields, row: Architecture, head_width: int, context: int) -> tuple[Rope | None, Rope | None, int]:
    """(rope of all layers, that of local layers if it is another, positions). Takes the keys it knows out of `read`."""
    if not row.rotary:
        return None, None, context
    new, old = read.get("rope_parameters") or {}, read.get("rope_scaling") or {}
    for key, value in (("rope_parameters", new), ("rope_scaling", old)):
        if not isinstance(value, dict):
            read.fail(key, "must be an object")
    theta = read.real(row.theta_key, row.theta)
    partial = read.real(row.partial_key, row.partial) if row.partial else 1.0
    original = read.get("original_max_position_embeddings")
    common = {"rope_theta": theta, "partial_rotary_factor": partial}
    if original is not None:
        common["original_max_position_embeddings"] = read.whole("original_max_position_embeddings")
    if not row.local_theta:
        said = {**common, **new, **old, **_original(common)}
        _check_agreement(read, row, common, new, old, said)
        rope, most = _rope(said, row, head_width, context)
        return rope, None, most
    nested = {key: new.get(key) or {} for key in LAYERS}
    if new.keys() - set(LAYERS) or not all(isinstance(value, dict) for value in nested.values()):
        read.fail("rope_parameters", f"must have an object for each of {', '.join(LAYERS)} and nothing else")
    local = {**common, "rope_theta": read.real("rope_local_base_freq", row.local_theta), **nested["sliding_attention"]}
    said = {**common, **nested["full_attention"], **old}
    _check_agreement(read, row, common, nested["full_attention"], old, said)
    rope, most = _rope(said, row, head_width, context)
    local_rope, most = _rope(local, row, head_width, most)
    return rope, local_rope, most


def _check_agreement(
    read: Fields, row: Architecture, common: Mapping[str, Any], new: Mapping[str, Any], old: Mapping[str, Any],
    said: Mapping[str, Any],
) -> None:  # fmt: skip
    """Old and new spelling may both be there if they say the same, and so may keys that the architecture's own code
    does not read."""
    if new and old and _plain({**common, **new}) != _plain({**common, **old}):
        read.fail("rope_scaling", "differs from rope_parameters; only one of them can be meant")
    used = {"rope_theta": row.theta_key, "partial_rotary_factor": row.partial_key if row.partial else ""}
    for name, keys in SPELLINGS.items():
        for key in keys:
            if key == used[name] or read.get(key) is None:
                continue
            if (value := read.real(key)) != said[name]:
                read.fail(key, f"is {value}, but this architecture does not read it and has {short(said[name])}")


def _plain(rope: Mapping[str, Any]) -> dict[str, Any]:
    """A rope's values, its kind by one name."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return {k: v for k, v in rope.items() if v is not None and k not in ("type", "rope_type")} | {"rope_type": kind}


def _original(common: Mapping[str, Any]) -> dict[str, Any]:
    """Beside the sizes of the model it has precedence over the same inside rope_scaling."""
    return {k: v for k, v in common.items() if k == "original_max_position_embeddings"}


def _rope(values: Mapping[str, Any], row: Architecture, head_width: int, context: int) -> tuple[Rope, int]:
    """One rope, and how many positions it is good for."""
    read = Fields(values, "config.json rope_parameters ")
    kind = read.word(("rope_type", "type"), KINDS, "default")
    read.get("type")
    base, partial = read.real("rope_theta"), read.real("partial_rotary_factor", 1.0)
    if partial != 1 and not row.partial:
        read.fail("partial_rotary_factor", f"is {partial}, but this architecture rotates whole heads")
    width = int(head_width * partial)
    if width % 2 or not 0 < width <= head_width:
        read.fail("partial_rotary_factor", f"rotates {width} of {head_width} numbers; an even number of them is needed")
    if base <= 1:
        read.fail("rope_theta", f"is {base}, but must be over 1")
    original = read.whole("original_max_position_embeddings", context, least=2)
    rope = Rope(base, width)
    if kind == "linear":
        rope = Rope(base, width, kind, factor=read.real("factor"))
    elif kind == "dynamic":  # stretches only sequences longer than the context, which are refused here
        read.real("factor")
    elif kind == "llama3":
        low, high = read.real("low_freq_factor"), read.real("high_freq_factor")
        if low >= high:
            read.fail("low_freq_factor", f"is {low}, but must be under high_freq_factor")
        rope = Rope(base, width, kind, factor=read.real("factor"), original=original, low=low, high=high)
    elif kind == "yarn":
        rope = _yarn(read, base, width, context, original)
    elif kind in ("longrope", "su"):
        rope, context = _longrope(read, base, width, context, original)
    read.finish({}, ())
    return rope, context


def _yarn(read: Fields, base: float, width: int, context: int, original: int) -> Rope:
    factor = read.real("factor", context / original)
    weights = read.get("mscale"), read.get("mscale_all_dim")
    gain = yarn_gain(factor)
    if all(weights):
        gain = yarn_gain(factor, read.real("mscale")) / yarn_gain(factor, read.real("mscale_all_dim"))
    return Rope(
        base, width, "yarn", factor=factor, original=original, fast=read.real("beta_fast", 32.0),
        slow=read.real("beta_slow", 1.0), truncate=read.flag("truncate", True),
        gain=read.real("attention_factor", gain),
    )  # fmt: skip


def _longrope(read: Fields, base: float, width: int, context: int, original: int) -> tuple[Rope, int]:
    """Sequences up to the original length have divisors of their own, and others once they grow past it: what was
    computed before would have to be computed anew. So the context ends there."""
    divisors = {key: _divisors(read, key, width // 2) for key in ("short_factor", "long_factor")}
    gain = longrope_gain(read.real("factor", context / original), original)
    rope = Rope(base, width, divisors=divisors["short_factor"], gain=read.real("attention_factor", gain))
    return rope, min(context, original)


def _divisors(read: Fields, key: str, count: int) -> tuple[float, ...]:
    given = read.several(key, count, (int, float))
    if given is None:
        read.fail(key, "is missing")
    if not all(0 < d < math.inf for d in given):
        read.fail(key, "must be positive numbers")
    return tuple(float(d) for d in given)
