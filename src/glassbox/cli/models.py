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
    from glassbox.weights.source import known_models

    out = console()
    for m in known_models():
        where = "here" if m.pulled else "not pulled"
        out.print(f"{m.name:<14} {m.size / 1e6:>5.0f} MB  {m.licence:<12} {where:<11} {m.file}", no_wrap=True)
    out.print(f"{'bigram':<14} {'':>8}  {'':<12} {'here':<11} the lab's four-token table", no_wrap=True)
