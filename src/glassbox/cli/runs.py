"""glassbox runs and glassbox show: what is in a trace store."""

from __future__ import annotations

import typer

from glassbox.cli.output import JsonOption, StoreOption, console, open_store, print_json


def runs(
    store: str = StoreOption,
    limit: int = typer.Option(20, "--limit", metavar="N", min=1, help="The newest N."),
    as_json: bool = JsonOption,
) -> None:
    """List recorded runs, newest first."""
    from glassbox.cli.show_text import inert
    from glassbox.trace.store import default_path

    found = []
    if store is not None or default_path().exists():
        with open_store(store, readonly=True) as opened:
            found = opened.runs(limit)
    if as_json:
        keys = ("id", "model", "finish_reason", "prompt", "prompt_tokens", "tokens", "problem")
        print_json([{"created": r.created.isoformat()} | {k: getattr(r, k) for k in keys} for r in found])
        return
    out = console()
    if not found:
        out.print('no runs yet; make one with: glassbox trace "Why is the sky blue?"')
    for r in found:
        when = r.created.astimezone().strftime("%m-%d %H:%M:%S")
        line = f"{r.id}  {when}  {r.model[:16]:<16} {r.tokens:>4} {r.finish_reason:<11} {inert(r.prompt)}"
        out.print(line, no_wrap=True, overflow="ellipsis")


def show(
    run: str = typer.Argument("last", help="A run id, the beginning of one, or last."),
    at: int = typer.Option(None, "--at", metavar="N", help="One step: its ledger and candidates."),
    store: str = StoreOption,
    as_json: bool = JsonOption,
) -> None:
    """Show a recorded run, or one step of it."""
    from glassbox.cli import render
    from glassbox.errors import ParameterError

    with open_store(store, readonly=True) as opened:
        found = opened.load(run)
    if at is not None and not 0 <= at < len(found.steps):
        most = len(found.steps) - 1
        raise ParameterError("at", at, f"a step from 0 to {most}" if found.steps else "left out: the run has no steps")
    if as_json:
        whole = found.to_dict()
        print_json(whole if at is None else whole["steps"][at])
        return
    out = console()
    if at is None:
        render.whole_run(out, found)
    else:
        render.one_step(out, found, at)
