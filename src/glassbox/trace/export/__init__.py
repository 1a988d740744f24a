"""A run in the formats of other tools: one file here for each, one row in FORMATS.

In: recorded runs, and a path where nothing is yet. Out: a file or a folder there, whole, or none: everything is written
beside it first and then renamed. But: content that was not retained is not in any of them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassbox.errors import GlassboxError, ParameterError
from glassbox.trace.export import html, json, otlp, parquet, perfetto, run_file
from glassbox.trace.export.source import Source

PRIVATE = 0o600  # as the store they come from: they hold prompts

__all__ = ["FORMATS", "Format", "Source", "export"]


@dataclass(frozen=True)
class Format:
    about: str
    suffix: str
    write: Callable[[Sequence[Source], Path], None]
    many: bool  # whether one file holds several runs


FORMATS = {
    "html": Format("one page to look at, for any browser, without a network", ".html", html.write, False),
    "json": Format("what trace --json prints; docs/run.schema.json describes it", ".json", json.write, False),
    "parquet": Format("a folder with one file a table, for DuckDB and pandas", ".parquet", parquet.write, True),
    "otlp": Format("OpenTelemetry spans with the names of GenAI", ".otlp.json", otlp.write, True),
    "perfetto": Format("a timeline for ui.perfetto.dev", ".trace.json", perfetto.write, True),
    "run": Format("a store of its own, which glassbox import takes", ".db", run_file.write, True),
}


def export(runs: Sequence[Source], to: str, out: Path | None = None) -> list[Path]:
    """Write the runs; returns the paths. out: default, the run's id here, with the format's ending. Where a format
    holds one run and there are several, it is the folder they go to.

    Raises ParameterError (no such format, something is at the path), GlassboxError (a library is missing), OSError.
    """
    if to not in FORMATS:
        raise ParameterError("to", to, f"one of {', '.join(FORMATS)}")
    form = FORMATS[to]
    if form.many or len(runs) == 1:
        works = [(out or Path(runs[0].run.run_id + form.suffix), runs)]
    else:
        works = [((out or Path()) / (one.run.run_id + form.suffix), [one]) for one in runs]
    for path, _ in works:
        if os.path.lexists(path):
            raise ParameterError("out", str(path), "a path where nothing is yet")
    if out is not None and not form.many and len(runs) > 1:
        out.mkdir(exist_ok=True)
    for path, some in works:
        _whole(path, lambda place, some=some: form.write(some, place))  # type: ignore[misc]
    return [path for path, _ in works]


def _whole(path: Path, write: Callable[[Path], None]) -> None:
    """All of it or nothing: written in a folder beside, then renamed."""
    try:
        room = Path(tempfile.mkdtemp(prefix=".glassbox-", dir=path.parent))
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None
    try:
        made = room / path.name
        write(made)
        if made.is_dir():
            made.chmod(PRIVATE | 0o100)
        for file in sorted(made.iterdir()) if made.is_dir() else [made]:
            with file.open("rb+") as opened:
                os.fchmod(opened.fileno(), PRIVATE)
                os.fsync(opened.fileno())
        os.rename(made, path)
    except OSError as e:
        raise OSError(e.errno, e.strerror or str(e), str(path)) from None
    except (ValueError, TypeError, OverflowError) as e:
        raise GlassboxError(f"{path.name} cannot be written: {type(e).__name__}: {e}") from e
    finally:
        shutil.rmtree(room, ignore_errors=True)
