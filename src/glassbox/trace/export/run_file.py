"""Runs alone in a file of their own, of the store's schema, row by row and bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from glassbox.errors import PromptError
from glassbox.trace.copy import put
from glassbox.trace.export.source import Source
from glassbox.trace.sqlite import in_memory


def write(runs: Sequence[Source], path: Path) -> None:
    """Raises PromptError for a run that was read without its ids: only its store can tell its rows."""
    with closing(in_memory()) as conn:
        for one in runs:
            if one.stored is None and one.run.retain == "none":
                raise PromptError(f"run {one.run.run_id} keeps no ids: export it from its store (glassbox export)")
            put(conn, one.rows)
        path.write_bytes(conn.serialize())
