"""The names of the inner values, as interpretability people use them. A name and a layer: `resid_post.10`.

One head of those that fall into heads (HEADS): `q.5.head3`, [T, W]. Of attention's output, `attn_out.5.head3`, it is
what that head mixed, before the output matrix: the part of `z.5` that an intervention of this name changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glassbox.errors import ParameterError, UnknownPoint

LAYER_POINTS: Mapping[str, str] = {
    "resid_pre": "[T, D] the residual stream as it enters the layer",
    "attn_norm": "[T, D] after the norm before attention",
    "q": "[T, H, W] queries as attention reads them: after query norm and rotary embedding",
    "k": "[T, K, W] keys as they are cached: after key norm and rotary embedding",
    "v": "[T, K, W] values as they are cached",
    "attn_scores": "[T, H, S] scaled scores; -inf where a query may not look",
    "attn_probs": "[T, H, S] their softmax",
    "z": "[T, H, W] values as attention mixed them, before the output matrix",
    "attn_out": "[T, D] what attention adds to the residual stream",
    "resid_mid": "[T, D] the residual stream between attention and MLP",
    "mlp_norm": "[T, D] after the norm before the MLP",
    "mlp_act": "[T, F] activation(gate) · up, or activation(up) alone; [T, S, F] of each chosen expert",
    "mlp_out": "[T, D] what the MLP adds to the residual stream",
    "resid_post": "[T, D] the residual stream as it leaves the layer",
}
MODEL_POINTS: Mapping[str, str] = {
    "embed": "[T, D] the embedding of each token",
    "final_norm": "[T, D] after the last norm, what the head reads",
    "logits": "[T, V]",
}


HEADS: Mapping[str, str] = {"q": "q", "k": "k", "v": "v", "attn_out": "z"}  # and the point where its heads lie apart
DIGITS = 9  # of the number of a head, at most


def all_points(layers: int) -> list[str]:
    """Every point of a model with that many layers, in the order of the forward pass."""
    inner = [f"{name}.{i}" for i in range(layers) for name in LAYER_POINTS]
    return ["embed", *inner, "final_norm", "logits"]


def check_points(points: Iterable[str], layers: int) -> frozenset[str]:
    """The points as a set. Raises UnknownPoint, with what exists, for one that does not; ParameterError for no name."""
    wanted = frozenset(_names(points))
    unknown = sorted(wanted - set(all_points(layers)))
    if unknown:
        inner = [f"{name}.0 … .{layers - 1}" for name in LAYER_POINTS] if layers else []
        raise UnknownPoint(unknown[0], [*MODEL_POINTS, *inner])
    return wanted


def _names(points: Iterable[str]) -> list[str]:
    listed = list(points)
    if no_names := [point for point in listed if not isinstance(point, str)]:
        raise ParameterError("point", no_names[0], "the name of a point, such as 'resid_post.0'")
    return listed


def split_head(name: str) -> tuple[str, int | None]:
    """ "attn_out.5.head3" -> ("attn_out.5", 3); a name without a head as it is, and None."""
    point, dot, head = name.rpartition(".head")
    return (point, int(head)) if dot and head.isdecimal() and len(head) < DIGITS else (name, None)


def check_head(point: str, head: int, heads: int, kv_heads: int) -> None:
    """Raises ParameterError where this point has no heads, or not so many."""
    kind = point.split(".")[0]
    if kind not in HEADS:
        raise ParameterError("head", head, f"left out: {kind} has none, only {', '.join(HEADS)} have")
    last = (kv_heads if kind in ("k", "v") else heads) - 1
    if not 0 <= head <= last:
        raise ParameterError("head", head, f"from 0 to {last}")


def sources(names: Iterable[str], layers: int, heads: int, kv_heads: int) -> dict[str, tuple[str, int | None]]:
    """What each name is read from: a point, and one head of it or None for all. Raises UnknownPoint, ParameterError."""
    split = {name: split_head(name) for name in _names(names)}
    check_points((point for point, _ in split.values()), layers)
    for point, head in split.values():
        if head is not None:
            check_head(point, head, heads, kv_heads)
    return {name: (point if head is None else _apart(point), head) for name, (point, head) in split.items()}


def _apart(point: str) -> str:
    kind, layer = point.split(".")
    return f"{HEADS[kind]}.{layer}"
