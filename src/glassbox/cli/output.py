"""What all commands share: console, input, progress of downloads, opening a model or a store as people name them."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from glassbox.cli.show_text import inert, inert_text
from glassbox.errors import PromptError

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.trace.store import Store

MOST_BYTES = 16 << 20  # of a file or of standard input that is read whole
WIDTH = 80  # columns when the output is not a terminal and COLUMNS does not say
LEAST_WIDTH = 20  # on fewer, nothing of a line would be left to read

ModelOption = typer.Option(
    "smollm2-135m",
    "--model",
    "-m",
    help="A known name (glassbox models), a .gguf file, a folder, hf:owner/repo, or bigram.",
)
StoreOption = typer.Option(None, "--store", metavar="FILE", help="Trace store. Default: in your data folder.")
JsonOption = typer.Option(False, "--json", help="Print one JSON object instead.")


# What json leaves as it is, though a terminal may obey it: C1 controls, marks and overrides of direction, line ends.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class Out(Console):
    """A console whose lines end where their text does, and whose reader may go away.

    All that people read goes through here, and none of it can steer the terminal: names and texts may come from
    anywhere.
    """

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*map(_safe, objects), **how)

    def row(self, text: str | Text = "", style: str = "") -> None:
        """One line of a table, cut at the width of the screen."""
        line = Text(inert(text)) if isinstance(text, str) else inert_text(text)
        line.rstrip()
        self.print(line, style=style, no_wrap=True, overflow="ellipsis")

    def field(self, label: str, value: str, style: str = "bold") -> None:
        """A label in its style, and what it says beside it, on as many lines as that takes."""
        label = inert(label)
        room = max(self.width - len(label), 8)
        for line in Text(inert(value, lines=True)).wrap(self, room):
            self.row(Text.assemble((label, style), line))
            label = " " * len(label)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with code 1


def _safe(thing: Any) -> Any:
    if isinstance(thing, str):
        return inert(thing, lines=True)
    return inert_text(thing, lines=True) if isinstance(thing, Text) else thing


def console(*, stderr: bool = False) -> Out:
    """A console with colour on a terminal only. What it prints is never read as markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream is not None and stream.isatty() else WIDTH  # None: the terminal's own, whenever asked
    if re.fullmatch("0*[1-9][0-9]{0,4}", said := os.environ.get("COLUMNS", "")):
        width = max(int(said), LEAST_WIDTH)
    # rich would take these two by itself: 0 for an empty page, and numbers that are none with a traceback
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return Out(
        stderr=stderr, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False, _environ=environ
    )


def print_json(value: Any) -> None:
    unicode = "utf" in str(getattr(sys.stdout, "encoding", "")).lower()
    text = json.dumps(value, ensure_ascii=not unicode, allow_nan=False)
    print(_STEERING.sub(lambda c: f"\\u{ord(c[0]):04x}", text))  # these stand in strings only


def note(text: str) -> None:
    """A line beside the output. Where stderr is closed, nobody wants to know."""
    if sys.stderr is not None:  # to print, None is standard output
        with suppress(OSError):
            print(inert(text, lines=True), file=sys.stderr, flush=True)


def read_text(argument: str) -> str:
    """A text as the command line gives it; - stands for standard input. Raises PromptError for what is not UTF-8."""
    try:
        # A byte that the locale has no character for comes as half of a surrogate pair, and goes back to be that byte
        data = _standard_input() if argument == "-" else argument.encode("utf-8", "surrogateescape")
        return data.decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as e:
        raise PromptError(f"the input is not UTF-8 at byte {e.start}") from None


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise PromptError("there is no standard input")
    try:
        data = sys.stdin.buffer.read(MOST_BYTES + 1)
    except OSError as e:
        raise PromptError(f"standard input cannot be read: {e.strerror or e}") from None
    if len(data) > MOST_BYTES:
        raise PromptError(f"standard input has more than {MOST_BYTES:,} bytes")
    return data


def read_file(path: str, flag: str) -> str:
    """The text of a file that a flag names; - stands for standard input. Raises PromptError, OSError."""
    if path == "-":
        return read_text(path)
    if not path:
        raise PromptError(f"{flag} is empty: it must name a file", param="messages")
    mode = os.stat(path).st_mode  # asked first: to open a pipe would wait for ever
    if not stat.S_ISREG(mode):
        found = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise PromptError(f"{flag} {path}: is {found}, not a file", param="messages")
    with Path(path).open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise PromptError(f"{flag} {path}: has more than {MOST_BYTES:,} bytes", param="messages")
    try:
        return data.decode("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as e:
        raise PromptError(f"{flag} {path}: is not UTF-8 at byte {e.start}", param="messages") from None


def load_model(name: str, kv: str = "f32") -> Model:
    """Load a model, with a progress bar where it must be fetched and a word where kernels must be compiled."""
    import glassbox

    with Downloads() as downloads:
        return glassbox.load(name, kv=kv, announce=note, progress=downloads.report)


def open_store(path: str | None, *, readonly: bool = False) -> Store:
    from glassbox.trace.store import open_store as opened

    return opened(path, readonly=readonly)


class Downloads:
    """Progress on stderr when there is some: a bar where the end is known, else a line."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Downloads:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._bar is None:
            return
        if failed is None:
            self._bar.stop()
        else:  # no bar, and no empty line after one, stays beside the line that says what went wrong
            self._bar.live.transient = True
            self._bar.live.stop()

    def report(self, stage: str, done: int, total: int | None) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._begin(inert(stage), total)
        if self._tasks[stage] is not None:
            self._bar.update(self._tasks[stage], completed=done, total=total)

    def _begin(self, stage: str, total: int | None) -> Any:
        if total is None:
            note(f"{stage} …")
            return None
        if self._bar is None:
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
            self._bar = Progress(*columns, console=console(stderr=True))
            self._bar.start()
        return self._bar.add_task(stage, total=total)
