"""glassbox explain: why a token of a recorded run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import typer

from glassbox.cli.output import JsonOption, Out, StoreOption, console, print_json
from glassbox.cli.replay import ForceOption, model_for, recorded
from glassbox.cli.runs import check_step
from glassbox.cli.show_text import flow, inert, padded, quoted
from glassbox.cli.whatif import RunModelOption
from glassbox.trace.told import percent, searched

if TYPE_CHECKING:
    from glassbox.trace.attribution import Attribution
    from glassbox.trace.explained import Explained
    from glassbox.trace.run import Run

NAME = 14  # columns of a token
SOURCES = 24  # rows of the prompt's parts


def explain(
    run: str = typer.Argument("last", metavar="RUN", help="A run id, the beginning of one, or last."),
    at: int = typer.Option(..., "--at", metavar="N", help="The step, from 0."),
    against: int = typer.Option(
        None, "--against", metavar="ID", help="The id to compare it with; else the best other."
    ),
    model: str = RunModelOption,
    force: bool = ForceOption,
    store: str = StoreOption,
    as_json: bool = JsonOption,
) -> None:
    """Say why a token came: layers, attention, policy, draw. Computes the step again, and the hash proves it."""
    found = recorded(run, store, damaged=force)
    check_step(found, at, len(found.steps))  # said before a model is loaded
    explained = found.explain(at, model_for(found, model), against=against)
    if as_json:
        print_json(explained.to_dict())
    else:
        show(console(), found, explained)


def show(out: Out, run: Run, e: Explained) -> None:
    """From the sentence down to the numbers behind it."""
    out.field("run      ", f"{e.run_id}, step {e.step} of {len(run.steps)}, position {e.position}")
    out.field("why      ", inert(e.sentence))
    for note in e.notes:
        out.field("note     ", note, "yellow")
    proof = "recomputed, with the recorded hash" if e.proven else "recomputed, with another hash than the recorded one"
    out.field("logits   ", f"{proof}; the two are {e.margin:+.4f} apart", "")
    _sources(out, e)
    if e.layers:
        _layers(out, e)
    if e.reading:
        _reading(out, e)
    _policy(out, e)
    _draw(out, e)


def _sources(out: Out, e: Explained) -> None:
    out.print()
    out.row("the prompt came from", "bold")
    wide = max(len(s.origin) for s in e.sources)
    for s in e.sources[:SOURCES]:
        where = str(s.first) if s.first == s.last else f"{s.first}–{s.last}"
        out.row(f"  {where:<9} {s.origin:<{wide}}  {inert(s.text)}")
    if len(e.sources) > SOURCES:
        out.row(f"  … {len(e.sources) - SOURCES:,} more (--json has all)")


def _layers(out: Out, e: Explained) -> None:
    """The lens and what each layer adds, side by side. Ranks count from 1 here, as people do."""
    out.print()
    out.row(
        f"behind each layer: {_shown(e, e.chosen.id)} against {_shown(e, e.rival.id)}, who led, what it added", "bold"
    )
    out.row(f"{'layer':>5} {'rank':>6} {'prob':>6}  {'rank':>6} {'prob':>6}  {'leads':<21} {'attention':>9} {'MLP':>8}")
    added = {p.name: p.difference for p in e.attribution.parts} if e.attribution else {}
    for v in e.layers:
        name = "embed" if v.layer < 0 else str(v.layer)
        lead = f"{padded(_shown(e, v.top, NAME), NAME)} {percent(v.top_p):>6}"
        parts = (
            (added.get("embed"), None)
            if v.layer < 0
            else [added.get(f"{p}.{v.layer}") for p in ("attn_out", "mlp_out")]
        )
        numbers = " ".join(f"{'' if x is None else format(x, '+.3f'):>{w}}" for x, w in zip(parts, (9, 8), strict=True))
        ranks = f"{v.rank + 1:>6} {percent(v.p):>6}  {v.rival_rank + 1:>6} {percent(v.rival_p):>6}"
        out.row(f"{name:>5} {ranks}  {lead} {numbers}")
    if e.attribution:
        _sum(out, e.attribution)


def _sum(out: Out, a: Attribution) -> None:
    def total(kind: str) -> float:
        return sum(p.difference for p in a.parts if p.name.startswith(kind))

    kinds = [("embedding", "embed"), ("attention", "attn_out"), ("MLPs", "mlp_out"), ("bias of the norm", "bias")]
    summands = " ".join(f"{total(kind):+.4f} ({name})" for name, kind in kinds if name[0] != "b" or total(kind))
    out.field("sum      ", f"{summands} = {a.difference:+.4f}, but for {_under(a.residue)} of rounding", "")
    best = sorted(a.heads, key=lambda p: -abs(p.difference))[:6]
    first, *rest = flow([f"{p.name} {p.difference:+.3f}" for p in best], out.width - 9)
    out.row(f"heads    of layer {a.layer}, whose attention said most:")
    for line in (first, *rest):
        out.row(f"         {line}")


def _under(x: float) -> str:
    """The power of ten that a rounding error stays below; its digits are no one's business."""
    return f"less than 1e{max(-9, math.ceil(math.log10(abs(x) or 1e-9)))}"


def _reading(out: Out, e: Explained) -> None:
    r = e.reading
    assert r is not None
    out.print()
    out.row("what it read (attention, the mean over layers and heads)", "bold")
    out.row(f"  {r.first:>6.1%}  position 0, where heads look that have nothing to say; {r.own:.1%} itself")
    for t in r.tokens:
        name = padded(_shown(e, t.id, NAME), NAME)
        out.row(f"  {t.share:>6.1%}  {t.position:>5} {name} at most {t.most:.2f}, by layer {t.layer} head {t.head}")
    if r.others:
        out.row(f"  {r.others:>6.1%}  all others")


def _policy(out: Out, e: Explained) -> None:
    out.print()
    two = [padded(_shown(e, t.id, NAME), NAME) for t in (e.chosen, e.rival)]
    out.row(f"  {'policy step':<22} {'alive':>9}  {two[0]}   {two[1]}", "bold")
    for w in e.ways:
        name = w.name + "".join(f" {value:g}" for value in list(w.params.values())[:1])
        cells = [
            "removed" if who in w.removed else percent(p) if p else "-"
            for who, p in (("chosen", w.chosen), ("rival", w.rival))
        ]
        out.row(f"  {name:<22} {w.alive:>9,}  {cells[0]:<{NAME}}   {cells[1]}")


def _draw(out: Out, e: Explained) -> None:
    d = e.draw
    out.print()
    if d.kind != "drawn" or d.u is None:
        words = {"greedy": "none: greedy takes the best", "alone": "of one token only", "forced": "it was put there"}
        words["beam"] = f"none: {searched(d)}"
        out.field("draw     ", words.get(d.kind, "not known"), "")
        return
    ends = [
        f"{gap:.6f} {side} lies {_shown(e, other)}"
        for gap, side, other in ((d.u - d.lo, "lower", d.below), (d.hi - d.u, "higher", d.above))
        if other is not None
    ]
    out.field("draw     ", f"{d.u:.6f} in [{d.lo:.6f}, {d.hi:.6f}); {' and '.join(ends) or 'nothing lies beyond'}", "")


def _shown(e: Explained, token: int, width: int | None = None) -> str:
    data = e.names.get(token, b"")
    return quoted(data, width) if data else f"#{token}"
