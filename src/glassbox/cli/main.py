"""The command line. Every error is one line on stderr and an exit code; never a traceback.

Exit codes: 0 done, 1 a check found something, 2 bad input, 130 interrupted. Commands import what they need when they
run, so that --help answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from glassbox.cli import bench, models, runs, tokenize, trace
from glassbox.errors import GlassboxError

app = typer.Typer(
    name="glassbox",
    help="The LLM generation engine you can see through.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.command("trace")(trace.trace)
app.command("runs")(runs.runs)
app.command("show")(runs.show)
app.command("tokenize")(tokenize.tokenize)
app.command("pull")(models.pull_model)
app.command("models")(models.models)
app.command("bench")(bench.bench)


@app.callback(invoke_without_command=True)
def options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from glassbox.version import VERSION

        print(f"glassbox {VERSION}")
        raise typer.Exit()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        code = app(arguments, standalone_mode=False, prog_name="glassbox")
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except typer.Exit as e:
        return e.exit_code
    except GlassboxError as e:
        return complain(str(e), e.exit_code)
    except typer.TyperException as e:
        text = e.format_message()
        if text.startswith("Usage:"):  # no command was given
            print(text)
            return 2
        return complain(f"{text} (see glassbox --help)", e.exit_code)


def complain(text: str, code: int) -> int:
    """One line on stderr, whatever line breaks and control characters the text has."""
    from glassbox.cli.show_text import inert

    print("glassbox: " + inert(" ".join(text.split())), file=sys.stderr)
    return code
