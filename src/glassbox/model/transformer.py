"""The forward pass, from top to bottom: embed, then for each layer norm, attention, add, norm, MLP, add; norm, head.

`write` says it once, as a list of operations on named buffers; kernels/team.py runs that list for any number of tokens
of any number of sequences. `p.norm(a, x, …)` reads "a = norm of x". A buffer has a row for each token, its width is in
the comment beside it. `see` marks the points that may be looked at; looking adds a copy and changes no value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from glassbox.model.kernels.program import GELU, SILU, Program
from glassbox.model.rope import RopeTables
from glassbox.model.spec import ModelSpec
from glassbox.model.weights import Layer, Weights

ACTIVATIONS = {"silu": SILU, "gelu": GELU}


@dataclass(slots=True)
class Sheet:
    """A written forward pass: the program, where ids' logits come out, and the buffer of each point looked at."""

    program: Program
    logits: int = -1
    points: dict[str, int] = field(default_factory=dict)


def write(spec: ModelSpec, w: Weights, ropes: RopeTables, look: frozenset[str] = frozenset()) -> Sheet:
    """Write the forward pass down. `look`: points to copy out (checked by the caller)."""
    p = Program()
    sheet = Sheet(p)
    see = _seer(sheet, look)

    x = p.buffer(spec.width)  # D: the residual stream
    a = p.buffer(spec.width)  # D: what is read from it and what will be added to it
    q = p.buffer(spec.heads * spec.head_width)  # H·W
    k = p.buffer(spec.kv_heads * spec.head_width)  # K·W
    v = p.buffer(spec.kv_heads * spec.head_width)  # K·W
    z = p.buffer(spec.heads * spec.head_width)  # H·W: values mixed by attention
    g = p.buffer(spec.mlp_width)  # F
    u = p.buffer(spec.mlp_width)  # F

    def attention(layer: Layer, i: int) -> None:
        """a = o · attention(q · a, k · a, v · a), over the cache."""
        p.matmul(q, a, layer.q)
        p.matmul(k, a, layer.k, free=True)
        p.matmul(v, a, layer.v, free=True)
        if layer.q_norm is not None and layer.k_norm is not None:
            p.norm(q, q, layer.q_norm, spec.head_width, spec.norm_eps, heads=spec.heads)
            p.norm(k, k, layer.k_norm, spec.head_width, spec.norm_eps, heads=spec.kv_heads, free=True)
        cos, sin = ropes.address(spec.rope_base_of(i))
        p.rope(q, spec.heads, spec.head_width, cos, sin)
        p.rope(k, spec.kv_heads, spec.head_width, cos, sin, free=True)
        see(f"q.{i}", q)
        see(f"k.{i}", k)
        see(f"v.{i}", v)
        p.store_kv(k, v, spec.kv_heads, spec.head_width, spec.place_of(i))
        p.attend(
            z, q, spec.heads, spec.kv_heads, spec.head_width, spec.place_of(i), spec.attn_scale, spec.window_of(i),
            scores=_square(sheet, f"attn_scores.{i}", look), probs=_square(sheet, f"attn_probs.{i}", look),
        )  # fmt: skip
        p.matmul(a, z, layer.o)
        if layer.attn_post_norm is not None:
            p.norm(a, a, layer.attn_post_norm, spec.width, spec.norm_eps)

    def mlp(layer: Layer, i: int) -> None:
        """a = down · (activation(gate · a) · (up · a))."""
        p.matmul(g, a, layer.gate)
        p.matmul(u, a, layer.up, free=True)
        p.gate(g, g, u, spec.mlp_width, ACTIVATIONS[spec.activation])
        see(f"mlp_act.{i}", g)
        p.matmul(a, g, layer.down)
        if layer.mlp_post_norm is not None:
            p.norm(a, a, layer.mlp_post_norm, spec.width, spec.norm_eps)

    p.embed(x, w.embedding, spec.embed_scale)
    see("embed", x)
    for i, layer in enumerate(w.layers):
        see(f"resid_pre.{i}", x)
        p.norm(a, x, layer.attn_norm, spec.width, spec.norm_eps)
        see(f"attn_norm.{i}", a)
        attention(layer, i)
        see(f"attn_out.{i}", a)
        p.add(x, x, a, spec.width)
        see(f"resid_mid.{i}", x)
        p.norm(a, x, layer.mlp_norm, spec.width, spec.norm_eps)
        see(f"mlp_norm.{i}", a)
        mlp(layer, i)
        see(f"mlp_out.{i}", a)
        p.add(x, x, a, spec.width)
        see(f"resid_post.{i}", x)

    last = p.buffer(spec.width, out=True)  # D, for the rows whose logits are wanted
    sheet.logits = p.buffer(spec.vocab, out=True)  # V
    p.gather(last, x, spec.width)
    p.norm(last, last, w.final_norm, spec.width, spec.norm_eps, out=True)
    see("final_norm", last, out=True)
    p.matmul(sheet.logits, last, w.head, out=True)
    return sheet


def _seer(sheet: Sheet, look: frozenset[str]) -> Callable[..., None]:
    """The function that marks a point: it writes a copy into the program if somebody wants to look there."""

    def see(point: str, buffer: int, *, out: bool = False) -> None:
        if point in look:
            width = sheet.program.widths[buffer]
            sheet.points[point] = sheet.program.buffer(width, out=out)
            sheet.program.copy(sheet.points[point], buffer, width, out=out)

    return see


def _square(sheet: Sheet, point: str, look: frozenset[str]) -> int:
    """The buffer for scores or probabilities [T, H, S]; its width is only known when it runs."""
    if point not in look:
        return -1
    sheet.points[point] = sheet.program.buffer(0)
    return sheet.points[point]
