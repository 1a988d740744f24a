"""glassbox export and glassbox import: runs in other formats, and runs of another store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from glassbox.cli.main import FOUND
from glassbox.cli.output import JsonOption, StoreOption, console, open_store, print_json

if TYPE_CHECKING:
    from glassbox.cli.names import Names


def export(
    runs: list[str] = typer.Argument(metavar="RUN…", help="Run ids, the beginnings of them, or last."),
    to: str = typer.Option(..., "--to", metavar="FORMAT", help="html, json, parquet, otlp, perfetto or run."),
    out: str = typer.Option(None, "--out", metavar="PATH", help="Where to. Default: the run's id, in this folder."),
    store: str = StoreOption,
) -> None:
    """Write recorded runs as a page, a table, a timeline, or a store of their own."""
    from glassbox.cli.names import Names
    from glassbox.trace.export import FORMATS, Source
    from glassbox.trace.export import export as write

    with open_store(store, readonly=True) as opened:
        found: dict[str, Source] = {}
        for name in runs if to in FORMATS else ():
            run = opened.load(name)
            found[run.run_id] = Source(run, opened.rows(run.run_id, tensors=True), partial(_known, Names(run)))
    for path in write(list(found.values()), to, None if out is None else Path(out)):
        console().print(str(path), soft_wrap=True)


def _known(names: Names, token: int) -> bytes:
    """Nothing where the vocabulary is not here, and the id stands for itself."""
    data = names.bytes_of(token)
    return b"" if data == b"#%d" % token else data


def import_runs(
    file: str = typer.Argument(metavar="FILE", help="A store, or a run exported with --to run."),
    store: str = StoreOption,
    as_json: bool = JsonOption,
) -> None:
    """Copy the runs of FILE into the store. Those that are there already stay; damaged ones are named and left out."""
    from glassbox.trace.merge import merge
    from glassbox.trace.store import default_path

    done = merge(Path(file), Path(store) if store is not None else default_path())
    if as_json:
        refused = [{"id": name, "why": why} for name, why in done.refused]
        print_json({"added": done.added, "same": done.same, "refused": refused})
    else:
        out = console()
        out.field("added    ", f"{len(done.added):,}")
        out.field("same     ", f"{len(done.same):,}", "")
        for name, why in done.refused:
            out.field("refused  ", f"{name}: {why}", "yellow")
    if done.refused:
        raise typer.Exit(FOUND)
