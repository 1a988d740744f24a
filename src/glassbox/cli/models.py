"""glassbox pull and glassbox models: which models have a name, and fetching one."""

from __future__ import annotations

import typer

from glassbox.cli.output import Downloads, console, note


def pull_model(name: str = typer.Argument(help="A name from `glassbox models`, or hf:owner/repo.")) -> None:
    """Fetch a model into the cache folder and check it."""
    from glassbox.weights.source import pull

    if name == "bigram":
        note("bigram is built in: there is nothing to fetch")
        return
    with Downloads() as downloads:
        path = pull(name, downloads.report, show_terms=note)
    console().print(str(path), soft_wrap=True)


def models() -> None:
    """List the models that have a name, and which of them are here."""
    from glassbox.weights.source import known_models

    rows = [(m.name, f"{m.size / 1e6:.0f} MB", m.licence, "here" if m.pulled else "not pulled") for m in known_models()]
    rows.append(("bigram", "", "Apache-2.0", "built in: the lab's four-token table"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    out = console()
    for row in rows:
        out.row("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
