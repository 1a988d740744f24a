"""glassbox diff: where two runs part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from glassbox.cli.names import model_name
from glassbox.cli.output import JsonOption, Out, StoreOption, console, open_store, print_json
from glassbox.cli.show_text import flow, inert, middle_cut

if TYPE_CHECKING:
    from glassbox.trace.diff import Diff
    from glassbox.trace.run import Run
    from glassbox.trace.side import Side

MARKS: Mapping[bool | None, tuple[str, str]] = {True: ("=", ""), False: ("≠", "bold red"), None: ("?", "yellow")}
PARTS, CHARS = 6, 400  # of a prompt that differs: segments, and characters of each
STEPS = 12  # of the table of steps; --json has all


def diff(
    a: str = typer.Argument(
        ..., metavar="A", help="A run id, the beginning of one, last, or a file that `trace --json` wrote."
    ),
    b: str = typer.Argument(..., metavar="B", help="The same, of the other run."),
    store: str = StoreOption,
    store_b: str = typer.Option(None, "--store-b", metavar="FILE", help="The store of B. Default: the same as A's."),
    force: bool = typer.Option(False, "--force", help="Go on with a damaged trace."),
    as_json: bool = JsonOption,
) -> None:
    """Name the first stage in which two runs differ, with the evidence of each. Exit code 1 where they do."""
    from glassbox.api import load  # noqa: F401  (with it, a run knows how to open its model)
    from glassbox.trace.diff import diff as compare

    found = compare(_given(a, store, force), _given(b, store_b or store, force))
    if as_json:
        print_json(found.to_dict())
    else:
        show(console(), found)
    if not found.equal:
        raise typer.Exit(1)


def _given(name: str, store: str | None, damaged: bool) -> Run | str:
    """A run of the store, or the path of a file: what has a slash or ends with .json is one."""
    if name.endswith(".json") or os.sep in name:
        return name
    with open_store(store, readonly=True) as opened:
        return opened.load(name, verify=not damaged)


def show(out: Out, d: Diff) -> None:
    for side in (d.a, d.b):
        out.field(f"{side.name}        ", _described(side))
    out.field("result   ", inert(d.sentence))
    out.print()
    for name, found in d.stages.items():
        mark, style = MARKS[found.same]
        out.field(f"{mark} {name:<10} ", inert(found.says), style)
    for name, details in DETAILS.items():
        if d.stages[name].same is False:
            details(out, d.stages[name].evidence)


def _described(side: Side) -> str:
    words = [
        side.get("run_id") or "a capture",
        f"of {model_name(inert(str(side.get('model') or 'a model not named')))}",
    ]
    kv = side.get("provenance.kv")
    words += [f"kv {kv}"] if kv not in (None, "f32") else []
    return ", ".join([" ".join(words[:2]), f"{len(side.ids)} + {len(side.steps)} tokens", *words[2:]])


def _prompt(out: Out, evidence: Mapping[str, Any]) -> None:
    out.print()
    out.row(f"prompt, after …{inert(evidence['before'])}", "bold")
    for block in evidence["segments"]:
        for side in ("a", "b"):
            for origin, text in block[side][:PARTS]:
                out.field(f"  {side.upper()} {origin} ", inert(middle_cut(text or "not kept", CHARS)), "cyan")


def _ids(out: Out, evidence: Mapping[str, Any]) -> None:
    out.print()
    out.row(f"ids around position {evidence['position']}", "bold")
    for side in ("a", "b"):
        for line in flow(map(inert, evidence[side]), out.width - 4):
            out.row(f"  {side.upper()} {line}")


def _layers(out: Out, evidence: Mapping[str, Any]) -> None:
    out.print()
    out.row(f"behind each layer, before step {evidence['step']}: how far apart, cosine", "bold")
    cells = [f"{v['layer']:>3} {_number(v['distance']):>8} {_number(v['cosine']):>8}" for v in evidence["layers"]]
    for line in flow(cells, out.width - 2):
        out.row(f"  {line}")


def _logits(out: Out, evidence: Mapping[str, Any]) -> None:
    made = {name: both for name, both in evidence["made_with"].items() if both[0] != both[1]}
    rows = evidence.get("rows") or []
    if made or rows:
        out.print()
    for name, (one, other) in made.items():
        out.field(f"  {name} ", f"{str(one)[:24]} against {str(other)[:24]}", "")
    if rows:
        out.row(
            f"{'step':>6} {'logits apart':>13} {'shift':>9} {'KL raw':>9} {'KL drawn from':>14} {'TV drawn from':>14}",
            "bold",
        )
    for r in rows[:STEPS]:
        numbers = [_number(r["largest"]), _number(r["shift"]), _number(r["raw"]["kl"]), _number(r["final"]["kl"])]
        far = _number(r["final"]["total_variation"])
        out.row(f"{r['step']:>6} {numbers[0]:>13} {numbers[1]:>9} {numbers[2]:>9} {numbers[3]:>14} {far:>14}")
    if len(rows) > STEPS:
        out.row(f"  … {len(rows) - STEPS:,} more steps (--json has all)")


def _policy(out: Out, evidence: Mapping[str, Any]) -> None:
    out.print()
    for letter, order in zip("AB", evidence["order"], strict=True):
        out.field(f"  policy of {letter} ", " → ".join(order) or "none", "")
    effect = evidence["effect"]
    if effect:
        for letter, ledger, only in zip("AB", effect["ledgers"], effect["removed_in_one"], strict=True):
            way = " → ".join(f"{name} {alive:,}" for name, alive in ledger if alive is not None)
            out.field(f"  step {effect['step']} of {letter} ", f"{way}", "")
            gone = ", ".join(f"{inert(token)} ({by})" for token, by in list(only.items())[:8])
            if gone and effect["comparable"]:
                out.field(f"    removed in {letter} only ", gone, "")


def _text(out: Out, evidence: Mapping[str, Any]) -> None:
    if "text" in evidence:
        out.print()
        for letter, text in zip("AB", evidence["text"], strict=True):
            out.field(f"  text of {letter} ", inert(middle_cut(text, CHARS)), "cyan")


def _number(x: float | None) -> str:
    """Four digits, and never more than eight columns; infinite where JSON has null."""
    return "∞" if x is None else f"{x:.1e}" if x and abs(x) < 1e-4 else f"{x:.4g}"


DETAILS = {
    "prompt": _prompt, "ids": _ids, "layers": _layers, "logits": _logits, "policy": _policy, "text": _text,
}  # fmt: skip
