"""glassbox runs and glassbox show: what is in a trace store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from glassbox.cli.output import JsonOption, StoreOption, console, open_store, print_json
from glassbox.errors import GlassboxError, ParameterError, PromptError

if TYPE_CHECKING:
    from glassbox.trace.run import Run
    from glassbox.trace.store import RunSummary

NO_RUNS = 'no runs yet; make one with: glassbox trace "Why is the sky blue?"'


def runs(
    store: str = StoreOption,
    limit: int = typer.Option(20, "--limit", metavar="N", min=1, max=1_000_000, help="The newest N."),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON array instead."),
) -> None:
    """List recorded runs, newest first."""
    from glassbox.cli.names import model_name
    from glassbox.cli.show_text import inert, padded

    found = newest(store, limit)
    if as_json:
        keys = ["id", "model", "finish_reason", "prompt", "prompt_tokens", "tokens", "problem"]
        keys += ["group", "sequence", "beams", "parent", "parent_step"]
        print_json([{"created": r.created.isoformat()} | {k: getattr(r, k) for k in keys} for r in found])
        return
    out = console()
    if not found:
        out.field("", NO_RUNS)
        return
    out.row(f"{'run':<14}  {'model':<16} {'tokens':>6} {'ended':<11}  {'when':<11}  prompt", "bold")
    for r, depth in tree(found):
        name, when = inert(model_name(r.model), width=16), r.created.astimezone()
        what = f"{padded(name, 16)} {r.tokens:>6} {r.finish_reason:<11}  {when:%m-%d %H:%M}"
        out.row(f"{r.id:<14}  {what}  {branched(r, depth)}")
        if r.group is not None:
            out.field("  group  ", f"{r.group}, sample {r.sequence}", "")
        if r.beams is not None:
            out.field("  beams  ", str(r.beams), "")
        if r.problem:
            out.field("  trace  ", r.problem, "yellow")


def tree(found: Sequence[RunSummary]) -> Iterator[tuple[RunSummary, int]]:
    """Each run with its depth: newest first, but branches below the run they come from, oldest first."""
    here = {r.id for r in found}
    below: dict[str | None, list[RunSummary]] = {}
    for r in found:
        below.setdefault(r.parent if r.parent in here else None, []).append(r)
    waiting = [(r, 0) for r in reversed(below.get(None, []))]
    while waiting:
        r, depth = waiting.pop()
        yield r, depth
        waiting += [(child, depth + 1) for child in below.get(r.id, [])]


def branched(r: RunSummary, depth: int) -> str:
    """A run's prompt; of a branch, where it comes from."""
    if r.parent is None:
        return r.prompt
    of = "" if depth else f" of {r.parent}"
    return (
        "  " * max(depth - 1, 0)
        + "└ "
        + (f"{r.prompt}{of}" if r.parent_step is None else f"at step {r.parent_step}{of}")
    )


def newest(store: str | None, limit: int) -> list[RunSummary]:
    """The newest runs; none where the default store was never made. Raises StoreError."""
    from glassbox.trace.store import default_path

    if store is None and not default_path().exists():
        return []
    with open_store(store, readonly=True) as opened:
        return opened.runs(limit)


def show(
    run: str = typer.Argument("last", metavar="RUN", help="A run id, the beginning of one, or last."),
    at: int = typer.Option(None, "--at", metavar="N", help="One step: its ledger and candidates."),
    store: str = StoreOption,
    as_json: bool = JsonOption,
) -> None:
    """Show a recorded run, or one step of it."""
    from glassbox.cli import render
    from glassbox.cli.beams import beams_at
    from glassbox.cli.names import Names

    if not newest(store, 1):
        raise GlassboxError(NO_RUNS)
    with open_store(store, readonly=True) as opened:
        found = opened.load(run)
        branches = opened.branches(found.run_id)
    steps = max(len(found.steps), found.beams.steps if found.beams else 0)  # a search may go on after what it finds
    if at is not None:
        check_step(found, at, steps)
    if as_json:
        whole = found.to_dict()
        print_json(whole if at is None else step_of(whole, at))
        return
    out = console()
    if at is None:
        render.whole_run(out, found, branches)
    elif at >= len(found.steps):
        out.field("run      ", f"{found.run_id}, step {at}, after the end of what was found")
        beams_at(out, found, at, Names(found))
    else:
        render.one_step(out, found, at)


def check_step(run: Run, at: int, steps: int) -> None:
    """Raises ParameterError for what is no step; PromptError where none was kept."""
    if run.retain == "none":
        raise PromptError(f"run {run.run_id} was recorded without its steps")
    if not 0 <= at < steps:
        raise ParameterError("at", at, f"a step from 0 to {steps - 1}" if steps else "of a run that has a step")


def step_of(whole: dict[str, Any], at: int) -> dict[str, Any]:
    """One step of a run as plain values, with the candidates of a beam search beside it."""
    step: dict[str, Any] = whole["steps"][at] if at < len(whole["steps"]) else {"step": at}
    if whole["beams"] is None:
        return step
    return step | {"beams": [row for row in whole["beams"]["rows"] if row["step"] == at]}
