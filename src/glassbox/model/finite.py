"""Where NaN or infinity first came into a forward pass: the point, and the tensor if the weights themselves have it.

In: a model and the ids after which its logits were not finite. Out: the error, saying also where.
But: it computes the sequence anew, with points looked at, so it is for a generation that has failed already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from glassbox.errors import GlassboxError, NonFiniteLogits
from glassbox.model.intervene import Intervention
from glassbox.model.model import AnyModel, forward
from glassbox.model.points import LAYER_POINTS
from glassbox.model.tensors import ModelFile
from glassbox.types import F32
from glassbox.weights.opening import open_checkpoint
from glassbox.weights.quant import decode

_AT_ONCE = 64  # positions looked at together: bounds what their points take
_HIDING = ("attn_scores", "attn_probs")  # -inf is right there


def located(
    error: NonFiniteLogits, model: AnyModel, ids: Sequence[int], changed: tuple[Intervention, ...] = ()
) -> NonFiniteLogits:
    """The error with the place where it was first seen; as it was, if the model cannot be looked into again."""
    try:
        point = first_point(model, ids, changed)
    except (GlassboxError, MemoryError):
        return error
    tensor, path = None, getattr(model, "path", None)
    if path is not None:
        with suppress(GlassboxError, MemoryError, OSError):
            tensor = bad_tensor(open_checkpoint(path), point)
    return NonFiniteLogits(error.where, position=error.position, at=error.at, seen=point, tensor=tensor)


def first_point(model: AnyModel, ids: Sequence[int], changed: tuple[Intervention, ...] = ()) -> str:
    """The first point of the forward pass over `ids` that is not finite; "logits" if no earlier one is.

    changed: what is done to inner values on the way."""
    cache = model.new_cache()
    try:
        for begin in range(0, len(ids) if model.layers else 0, _AT_ONCE):
            piece = ids[begin : begin + _AT_ONCE]
            between = ["embed", *(f"resid_post.{i}" for i in range(model.layers)), "final_norm"]
            found = _first(between, forward(model, piece, cache, between, interventions=changed)[1])
            if found is not None and found.startswith("resid_post"):
                cache.truncate(begin)
                inside = [f"{name}.{found.split('.')[1]}" for name in LAYER_POINTS if name not in _HIDING]
                return _first(inside, forward(model, piece, cache, inside, interventions=changed)[1]) or found
            if found is not None:
                return found
    finally:
        cache.release()
    return "logits"


def _first(points: Sequence[str], seen: Mapping[str, F32]) -> str | None:
    return next((name for name in points if not np.isfinite(seen[name]).all()), None)


def bad_tensor(file: ModelFile, point: str) -> str | None:
    """The first tensor of the point's layer (of none, for a point outside the layers) that holds NaN or infinity."""
    layer = point.partition(".")[2]
    for name, t in file.tensors.items():
        own = re.search(r"\.(\d+)\.", name)
        if (own.group(1) if own else "") == layer and not np.isfinite(decode(t.format, file.raw(name), t.shape)).all():
            return name
    return None
