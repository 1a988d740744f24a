"""The forward pass, from top to bottom: embed, then for each layer norm, attention, add, norm, MLP, add; norm, head.

`write` says it once, as a list of operations on named buffers; kernels/team.py runs that list for any number of tokens
of any number of sequences. `norm(a, x, …)` reads "a = norm of x". A buffer has a row for each token, its width is in
the comment beside it. What a model has not, its spec says, and nothing is written for it. `see` marks the points that
may be looked at; looking adds a copy and changes no value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from glassbox.model.intervene import Intervention, edit_of
from glassbox.model.kernels.program import GELU, GELU_ERF, RELU, SILU, Program
from glassbox.model.rope import RopeTables
from glassbox.model.spec import ModelSpec
from glassbox.model.weights import Layer, Linear, Norm, Routed, Weights
from glassbox.types import F32

ACTIVATIONS = {"silu": SILU, "gelu": GELU, "gelu_erf": GELU_ERF, "relu": RELU}


@dataclass(slots=True)
class Sheet:
    """A written forward pass: the program, where ids' logits come out, and the buffer of each point looked at."""

    program: Program
    logits: int = -1
    points: dict[str, int] = field(default_factory=dict)
    kept: list[F32] = field(default_factory=list)  # values that the program names by address


def write(
    spec: ModelSpec, w: Weights, ropes: RopeTables, look: frozenset[str] = frozenset(),
    interventions: Sequence[Intervention] = (),
) -> Sheet:  # fmt: skip
    """Write the forward pass down. `look`: points to copy out (checked by the caller, as are the interventions)."""
    p = Program()
    sheet = Sheet(p)
    edit = _editor(sheet, spec, interventions)
    see = _seer(sheet, look, edit)
    slots = max(1, spec.experts_used)  # S: MLPs that a token goes through
    kind = ACTIVATIONS[spec.activation]

    x = p.buffer(spec.width)  # D: the residual stream
    a = p.buffer(spec.width)  # D: what is read from it and what will be added to it
    q = p.buffer(spec.heads * spec.head_width)  # H·W
    k = p.buffer(spec.kv_heads * spec.head_width)  # K·W
    v = p.buffer(spec.kv_heads * spec.head_width)  # K·W
    z = p.buffer(spec.heads * spec.head_width)  # H·W: values mixed by attention
    g = p.buffer(slots * spec.mlp_width)  # S·F
    u = p.buffer(slots * spec.mlp_width)  # S·F
    b = p.buffer(spec.width) if spec.parallel else a  # D: what attention adds
    r = p.buffer(spec.experts) if spec.experts else -1  # E: the router's scores
    c = p.buffer(2 * spec.experts_used) if spec.experts else -1  # 2·S: weights of the chosen experts, their numbers
    e = p.buffer(slots * spec.width) if spec.experts else -1  # S·D: what each of them gives

    def norm(to: int, of: int, n: Norm) -> None:
        _norm(p, spec, to, of, n)

    def head_norm(of: int, n: Norm, heads: int, *, free: bool = False) -> None:
        """Of queries or keys: each head by itself, or all of them as one row."""
        width, parts = (heads * spec.head_width, 1) if spec.qk_norm == "row" else (spec.head_width, heads)
        own = spec.qk_norm == "heads"
        if spec.norm == "rms":
            p.norm(of, of, n.weight, width, spec.norm_eps, heads=parts, own=own, free=free)
        else:
            p.layer_norm(of, of, n.weight, 0, width, spec.norm_eps, heads=parts, own=own, free=free)

    def products(of: int, *to: tuple[int, Linear | None]) -> None:
        """Each buffer of `to` = its matrix · of, plus its bias."""
        there = [(buffer, linear) for buffer, linear in to if linear is not None]
        for i, (buffer, linear) in enumerate(there):
            p.matmul(buffer, of, linear.matrix, free=i > 0)
        biased = [(buffer, linear) for buffer, linear in there if linear.bias]
        for i, (buffer, linear) in enumerate(biased):
            p.bias(buffer, linear.bias, linear.matrix.rows, free=i > 0)

    def attention(layer: Layer, i: int) -> None:
        """b = o · attention(q · a, k · a, v · a), over the cache."""
        products(a, (q, layer.q), (k, layer.k), (v, layer.v))
        if layer.q_norm is not None and layer.k_norm is not None:
            head_norm(q, layer.q_norm, spec.heads)
            head_norm(k, layer.k_norm, spec.kv_heads, free=True)
        rope = spec.rope_of(i)
        if rope is not None:
            cos, sin = ropes.address(rope)
            for buffer, heads in ((q, spec.heads), (k, spec.kv_heads)):
                p.rope(
                    buffer, heads, spec.head_width, cos, sin, rotated=rope.width, paired=spec.neighbours,
                    free=buffer == k,
                )  # fmt: skip
        see(f"q.{i}", q)
        see(f"k.{i}", k)
        see(f"v.{i}", v)
        p.store_kv(k, v, spec.kv_heads, spec.head_width, spec.place_of(i))
        p.attend(
            z, q, spec.heads, spec.kv_heads, spec.head_width, spec.place_of(i), spec.attn_scale, spec.window_of(i),
            scores=_square(sheet, f"attn_scores.{i}", look), probs=_square(sheet, f"attn_probs.{i}", look),
            cap=spec.attn_cap, slopes=w.slopes,
        )  # fmt: skip
        edit(f"attn_out.{i}", z, heads=True)
        see(f"z.{i}", z)
        products(z, (b, layer.o))

    def mlp(layer: Layer, i: int) -> None:
        """a = down · (activation(gate · a) · (up · a)), or down · activation(up · a)."""
        products(a, (g, layer.gate), (u, layer.up))
        if layer.gate is not None:
            p.gate(g, g, u, spec.mlp_width, kind)
        else:
            p.activate(g, u, spec.mlp_width, kind)
        see(f"mlp_act.{i}", g)
        products(g, (a, layer.down))

    def experts(routed: Routed, i: int) -> None:
        """a = Σ weight · MLP(a) over the experts that the router chooses for the token."""
        p.matmul(r, a, routed.router)
        p.route(c, r, spec.experts, slots, normed=spec.experts_normed)
        p.experts(g, a, routed.gate, c, slots, apart=False)
        p.experts(u, a, routed.up, c, slots, apart=False, free=True)
        p.gate(g, g, u, slots * spec.mlp_width, kind)
        see(f"mlp_act.{i}", g)
        p.experts(e, g, routed.down, c, slots, apart=True)
        p.mix(a, e, c, slots, spec.width)

    def after(what: int, layer_norm: Norm | None) -> None:
        """What attention or the MLP gave, as it will be added."""
        if layer_norm is not None:
            norm(what, what, layer_norm)
        if spec.residual_scale != 1.0:
            p.scale(what, what, spec.width, spec.residual_scale)

    def before(layer_norm: Norm | None) -> None:
        """a = norm of x, or x itself where the model norms only afterwards."""
        if layer_norm is not None:
            norm(a, x, layer_norm)
        elif not spec.pre_norms:
            p.copy(a, x, spec.width)

    p.embed(x, w.embedding, spec.embed_scale)
    if w.positions is not None:
        p.position(x, x, w.positions, spec.position_offset)
    if w.embed_norm is not None:
        norm(x, x, w.embed_norm)
    see("embed", x)
    for i, layer in enumerate(w.layers):
        see(f"resid_pre.{i}", x)
        before(layer.attn_norm)
        see(f"attn_norm.{i}", a)
        attention(layer, i)
        after(b, layer.attn_post_norm)
        see(f"attn_out.{i}", b)
        if not spec.parallel:
            p.add(x, x, b, spec.width)
            see(f"resid_mid.{i}", x)
        before(layer.mlp_norm)  # in parallel, of the same x; where the norm is shared, `a` still holds it
        see(f"mlp_norm.{i}", a)
        if layer.routed is not None:
            experts(layer.routed, i)
        else:
            mlp(layer, i)
        after(a, layer.mlp_post_norm)
        see(f"mlp_out.{i}", a)
        if spec.parallel:
            p.add(x, x, b, spec.width)
            see(f"resid_mid.{i}", x)
        p.add(x, x, a, spec.width)
        see(f"resid_post.{i}", x)

    last = p.buffer(spec.width, out=True)  # D, for the rows whose logits are wanted
    sheet.logits = p.buffer(spec.vocab, out=True)  # V
    p.gather(last, x, spec.width)
    _norm(p, spec, last, last, w.final_norm, out=True)
    see("final_norm", last, out=True)
    _head(p, spec, w, sheet.logits, last)
    return sheet


def write_lens(spec: ModelSpec, w: Weights, *, normed: bool = True) -> tuple[Program, int]:
    """The end of the forward pass alone, from residual vectors in buffer 0: (program, buffer of logits).

    not normed: the head's product alone, without the norm before it and the scale and cap behind it.
    """
    p = Program()
    resid, logits = p.buffer(spec.width, out=True), p.buffer(spec.vocab, out=True)
    if normed:
        _norm(p, spec, resid, resid, w.final_norm, out=True)
        _head(p, spec, w, logits, resid)
    else:
        p.matmul(logits, resid, w.head, out=True)
    return p, logits


def _norm(p: Program, spec: ModelSpec, to: int, of: int, n: Norm, *, out: bool = False) -> None:
    if spec.norm == "rms":
        p.norm(to, of, n.weight, spec.width, spec.norm_eps, out=out)
    else:
        p.layer_norm(to, of, n.weight, n.bias, spec.width, spec.norm_eps, out=out)


def _head(p: Program, spec: ModelSpec, w: Weights, logits: int, last: int) -> None:
    """logits = head · last, scaled and capped as the model has it."""
    p.matmul(logits, last, w.head, out=True)
    if spec.logit_scale != 1.0:
        p.scale(logits, logits, spec.vocab, spec.logit_scale, out=True)
    if spec.logit_cap:
        p.cap(logits, logits, spec.vocab, spec.logit_cap, out=True)


def _seer(sheet: Sheet, look: frozenset[str], edit: Callable[..., None]) -> Callable[..., None]:
    """The function that marks a point: it writes the interventions there into the program, and then a copy if somebody
    wants to look."""

    def see(point: str, buffer: int, *, out: bool = False) -> None:
        edit(point, buffer)
        if point in look:
            width = sheet.program.widths[buffer]
            sheet.points[point] = sheet.program.buffer(width, out=out)
            sheet.program.copy(sheet.points[point], buffer, width, out=out)

    return see


def _editor(sheet: Sheet, spec: ModelSpec, interventions: Sequence[Intervention]) -> Callable[..., None]:
    """The function that writes what is to be done to a buffer at a point; heads: of attention's output, apart."""

    def edit(point: str, buffer: int, *, heads: bool = False) -> None:
        for one in interventions:
            if one.point == point and (point.startswith("attn_out") and one.head is not None) == heads:
                e = edit_of(one, spec)
                values, step = 0, 0
                if e.rows is not None:
                    sheet.kept.append(e.rows)
                    values, step = e.rows.ctypes.data, e.rows.strides[0] if len(e.rows) > 1 else 0
                sheet.program.edit(buffer, e.begin, e.width, e.first, e.end, e.factor, values, step)

    return edit


def _square(sheet: Sheet, point: str, look: frozenset[str]) -> int:
    """The buffer for scores or probabilities [T, H, S]; its width is only known when it runs."""
    if point not in look:
        return -1
    sheet.points[point] = sheet.program.buffer(0)
    return sheet.points[point]
