"""The commands, and what becomes of what they raise: one line on stderr and an exit code; never a traceback.

Commands import what they need when they run, so that --help answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

import typer

from glassbox.cli import (
    bench,
    branch,
    diff,
    explain,
    export,
    models,
    policy,
    purge,
    replay,
    runs,
    score,
    tokenize,
    trace,
    whatif,
)
from glassbox.cli.main import INTERRUPTED, go_deaf
from glassbox.errors import GlassboxError

LONGEST = 1000  # characters of a complaint
UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)  # what a write may end in

app = typer.Typer(
    name="glassbox",
    help="The LLM generation engine you can see through.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)
# short_help: what `glassbox --help` has room for, where the first sentence is longer
app.command("trace", short_help="Generate from PROMPT and show every step.")(policy.with_flags(trace.trace))
app.command("policy", short_help="Show the steps of a policy, each with its formula.")(policy.with_flags(policy.policy))
app.command("runs")(runs.runs)
app.command("show")(runs.show)
app.command("whatif", short_help="Show what RUN would have chosen under another policy.")(
    policy.with_flags(whatif.whatif)
)
app.command("branch", short_help="Begin a new run where RUN was at step N.")(policy.with_flags(branch.branch))
app.command("replay", short_help="Make a recorded run again and compare every step.")(replay.replay)
app.command("tensor", short_help="Show an inner value of any step of a recorded run.")(replay.tensor)
app.command("explain")(explain.explain)
app.command("diff", short_help="Name the first stage in which two runs differ.")(diff.diff)
app.command("export", short_help="Write recorded runs in another format.")(export.export)
app.command("import")(export.import_runs)
app.command("purge", short_help="Remove runs so that no byte of them is left.")(purge.purge)
app.command("tokenize", short_help="Show the ids of TEXT, and the bytes each stands for.")(tokenize.tokenize)
app.command("score", short_help="Show how likely each token of TEXT is.")(score.score)
app.command("pull")(models.pull_model)
app.command("models", short_help="List the models that have a name or are in a cache.")(models.models)
app.command("show-model", short_help="Describe a model by what its files say.")(models.show_model)
app.command("bench")(bench.bench)


@app.callback(invoke_without_command=True)
def options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from glassbox.version import VERSION

        print(f"glassbox {VERSION}")
        raise typer.Exit()


def invoke(arguments: list[str]) -> int:
    """Run a command; returns the exit code. Raises KeyboardInterrupt."""
    try:
        code = app(arguments, standalone_mode=False, prog_name="glassbox")
        if sys.stdout is not None:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # the reader of a pipe has seen enough; typer ends the process then
        return discard(sys.stdout)
    except OSError as e:
        if e.filename is not None:
            return complain(f"{os.fsdecode(e.filename)}: {e.strerror or e}", 2)
        if e.errno not in UNWRITTEN:  # a library that cannot be loaded, no memory, no more threads
            return complain(str(e.strerror or e), 2)
        discard(sys.stdout)
        return complain(f"the output cannot be written: {e.strerror}", 2)
    except GlassboxError as e:
        if e.exit_code == INTERRUPTED:
            go_deaf()
        return complain(str(e), e.exit_code)
    except typer.TyperException as e:
        text = e.format_message()
        if text.startswith("Usage:"):  # no command was given
            print(text)
            return 2
        at = getattr(e, "ctx", None)
        return complain(f"{text} (see {at.command_path if at else 'glassbox'} --help)", e.exit_code)
    if code == INTERRUPTED:  # typer's word for Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def complain(text: str, code: int) -> int:
    """One line on stderr, of a length to be read, whatever line breaks, control characters and names the text has."""
    from glassbox.cli.output import note
    from glassbox.cli.show_text import middle_cut

    note("glassbox: " + middle_cut(" ".join(text.split()), LONGEST))
    return code


def discard(stream: TextIO) -> int:
    """Let what is left in the stream's buffer go nowhere, or the interpreter would fail over it when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 0
