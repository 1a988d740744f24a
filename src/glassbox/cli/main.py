"""Where the command line begins and ends: exit codes, and what is said of an interrupt whenever it comes.

Exit codes: 0 done, 1 a check found something, 2 bad input, 130 interrupted. Nothing heavy is imported before `run` is
ready for Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper

FOUND = 1
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for what the terminal's encoding cannot say
    sys.unraisablehook = not_lost
    try:
        code = run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:  # pressed again while the first one was being told of
        code = INTERRUPTED
    go_deaf()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        from glassbox.cli.app import invoke

        return invoke(arguments)
    except KeyboardInterrupt:
        go_deaf()
        if sys.stderr is not None:  # to print, None is standard output
            print("glassbox: interrupted", file=sys.stderr)
        return INTERRUPTED


def not_lost(told: sys.UnraisableHookArgs) -> None:
    """Ctrl-C in a finalizer, from which nothing can be raised: it comes again when that one is done."""
    if not issubclass(told.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(told)
        return
    import threading

    main_thread = threading.main_thread().ident
    assert main_thread is not None
    threading.Timer(0.02, signal.pthread_kill, (main_thread, signal.SIGINT)).start()  # wakes it, too, where it waits


def go_deaf() -> None:
    """Nothing is left to interrupt: one more Ctrl-C would only say so again, or change the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
