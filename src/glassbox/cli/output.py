"""What all commands share: consoles, progress of downloads, opening a model or a store the way people name them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.trace.store import Store

WIDTH = 80  # columns when the output is not a terminal

ModelOption = typer.Option(
    "smollm2-135m", "--model", "-m", help="A known name (glassbox models), a .gguf file, hf:owner/repo, or bigram."
)
StoreOption = typer.Option(None, "--store", metavar="FILE", help="Trace store. Default: in your data folder.")
JsonOption = typer.Option(False, "--json", help="Print one JSON object instead.")


def console(*, stderr: bool = False) -> Console:
    """A console with colour on a terminal only. What it prints is never read as markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDTH
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def note(text: str) -> None:
    """A line beside the output."""
    from glassbox.cli.show_text import inert

    print(inert(text, lines=True), file=sys.stderr, flush=True)


def load_model(name: str) -> Model:
    """Load a model, with a progress bar where it must be fetched and a word where kernels must be compiled."""
    import glassbox

    with Downloads() as downloads:
        return glassbox.load(name, announce=note, progress=downloads.report)


def open_store(path: str | None, *, readonly: bool = False) -> Store:
    from glassbox.trace.store import open_store as opened

    return opened(path, readonly=readonly)


class Downloads:
    """A progress bar on stderr that appears when there is something to report."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Downloads:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, stage: str, done: int, total: int | None) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
            self._bar = Progress(*columns, console=console(stderr=True))
            self._bar.start()
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=total)
        self._bar.update(self._tasks[stage], completed=done, total=total)
