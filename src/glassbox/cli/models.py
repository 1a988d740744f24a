"""glassbox pull and glassbox models: which models have a name, and fetching one."""

from __future__ import annotations

import typer

from glassbox.cli.output import Downloads, console, note


def pull_model(name: str = typer.Argument(help="A name from `glassbox models`, or hf:owner/repo.")) -> None:
    """Fetch a model into the cache folder and check it."""
    from glassbox.weights.source import pull

    with Downloads() as downloads:
        path = pull(name, downloads.report, show_terms=note)
    print(path)


def models() -> None:
    """List the models that have a name, and which of them are here."""
    from rich.table import Table
    from rich.text import Text

    from glassbox.weights.source import known_models

    table = Table.grid(padding=(0, 2))
    for m in known_models():
        table.add_row(*map(Text, (m.name, f"{m.size / 1e6:.0f} MB", m.licence, "here" if m.pulled else "not pulled")))
    table.add_row(*map(Text, ("bigram", "", "Apache-2.0", "here: the lab's four-token table")))
    console().print(table)
