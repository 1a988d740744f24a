"""The names of the inner values, as interpretability people use them. A name and a layer: `resid_post.10`."""

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


def all_points(layers: int) -> list[str]:
    """Every point of a model with that many layers, in the order of the forward pass."""
    inner = [f"{name}.{i}" for i in range(layers) for name in LAYER_POINTS]
    return ["embed", *inner, "final_norm", "logits"]


def check_points(points: Iterable[str], layers: int) -> frozenset[str]:
    """The points as a set. Raises UnknownPoint, with what exists, for one that does not; ParameterError for no name."""
    listed = list(points)
    if no_names := [point for point in listed if not isinstance(point, str)]:
        raise ParameterError("point", no_names[0], "the name of a point, such as 'resid_post.0'")
    wanted = frozenset(listed)
    unknown = sorted(wanted - set(all_points(layers)))
    if unknown:
        inner = [f"{name}.0 … .{layers - 1}" for name in LAYER_POINTS] if layers else []
        raise UnknownPoint(unknown[0], [*MODEL_POINTS, *inner])
    return wanted
