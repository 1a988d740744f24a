"""glassbox replay and glassbox tensor: a recorded run computed again, whole or at one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from glassbox.cli.output import JsonOption, StoreOption, console, load_model, open_store, print_json
from glassbox.cli.runs import NO_RUNS, newest
from glassbox.cli.show_text import inert
from glassbox.errors import GlassboxError, ParameterError

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.cli.output import Out
    from glassbox.trace.replayed import Replayed
    from glassbox.trace.run import Run

RunArgument = typer.Argument("last", metavar="RUN", help="A run id, the beginning of one, or last.")
OtherModelOption = typer.Option(None, "--model", "-m", help="Instead of the model the run names.")
ForceOption = typer.Option(False, "--force", help="Go on with another model, engine or version, or a damaged trace.")


def recorded(name: str, store: str | None, *, damaged: bool = False) -> Run:
    """The run of this name. Raises StoreError where it is damaged, unless that is welcome."""
    if not newest(store, 1):
        raise GlassboxError(NO_RUNS)
    with open_store(store, readonly=True) as opened:
        return opened.load(name, verify=not damaged)


def model_for(run: Run, name: str | None) -> Model:
    """The model that was named, or the run's, with keys and values kept as the run kept them."""
    return load_model(name or run.model, run.provenance.kv)


def replay(
    run: str = RunArgument,
    model: str = OtherModelOption,
    force: bool = ForceOption,
    store: str = StoreOption,
    as_json: bool = JsonOption,
) -> None:
    """Make a recorded run again from its trace alone, and compare every step. Exit code 1: it is not the same."""
    found = recorded(run, store, damaged=force)
    replayed = found.replay(model_for(found, model), force=force)
    if as_json:
        print_json(replayed.to_dict())
    else:
        _report(console(), replayed)
    if not replayed.equal:
        raise typer.Exit(1)


def _report(out: Out, r: Replayed) -> None:
    run = r.run
    if r.equal:
        if not (r.compared or r.rows or r.failed):
            return out.field("", f"run {run.run_id} has no step to compare")
        ended = run.finish_reason if run.outcome else f"{run.status}: compared as far as it came"
        ended = f"the same error, {inert(run.error or '')}" if r.failed else ended
        tried = f" and {r.rows:,} candidates of the beams" if r.rows else ""
        out.field("equal    ", f"{r.compared} of {len(run.steps)} steps{tried}, every bit; {ended}", "bold green")
    elif r.difference:
        out.field("differs  ", str(r.difference), "bold red")
        if r.logprob_delta:
            out.field("by       ", f"logprobs up to {r.logprob_delta:.3g} nats, logits up to {r.logit_delta:.3g}")
        if r.diverged is not None:
            out.field("until    ", f"step {r.diverged}: another id, or none; nothing behind it is compared")
    for label, why in zip(("because  ", *[""] * 9), r.causes, strict=False):
        out.field(label or " " * 9, why)
    if r.equal:
        for m in r.mismatches:
            out.field("although ", str(m))
    return None


def tensor(
    run: str = RunArgument,
    at: int = typer.Option(..., "--at", metavar="N", help="The step whose token was chosen there, from 0."),
    point: list[str] = typer.Option(
        ..., "--point", metavar="P", help="resid_post.10, logits, q.5.head3, …; repeatable."
    ),
    all_positions: bool = typer.Option(False, "--all-positions", help="Of every position up to there, not of one."),
    out: str = typer.Option(
        None, "--out", metavar="FILE", help="Write .npy (several points: .npz), or .safetensors; replaces FILE."
    ),
    model: str = OtherModelOption,
    force: bool = ForceOption,
    store: str = StoreOption,
    as_json: bool = JsonOption,
) -> None:
    """An inner value of any step of a recorded run, computed again; the hash of the step's logits proves it."""
    from glassbox.cli.tensor_file import save, summary

    if len(set(point)) < len(point):
        raise ParameterError("point", point, "given once each")
    found = recorded(run, store, damaged=force)
    values = found.tensors(at, point, all_positions=all_positions, model=model_for(found, model), force=force)
    written = None if out is None else save(out, values)
    step = found.steps[at]
    if as_json:
        told = {"run_id": found.run_id, "step": at, "position": step.position - 1, "logits_hash": step.logits_hash}
        print_json(told | {"out": written, "points": {name: summary(value) for name, value in values.items()}})
        return
    screen = console()
    screen.field("run      ", f"{found.run_id}, step {at}, chosen from the logits at position {step.position - 1}")
    screen.field("logits   ", f"xxh64 {step.logits_hash}" + (" was recorded" if force else ", as recorded"))
    for name, value in values.items():
        shown = summary(value)
        screen.field(f"{name}  ", f"float32 {list(value.shape)}")
        numbers = ", ".join(f"{k} {_number(shown[k])}" for k in ("min", "max", "mean", "std", "norm"))
        screen.field("  ", numbers + (f", {shown['not_finite']} not finite" if shown["not_finite"] else ""))
        screen.field("  ", " ".join(map(_number, shown["first"])) + (" …" if value.size > len(shown["first"]) else ""))
    if written is not None:
        screen.print(f"written  {written}", soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
