"""A run to export: the run, its rows as its store has them, and how its ids read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from glassbox.trace.copy import rows_of
from glassbox.trace.reader import Rows
from glassbox.trace.run import Run


@dataclass(frozen=True)
class Source:
    run: Run
    stored: Rows | None = None  # None: made from the run, as a store would have them
    bytes_of: Callable[[int], bytes] | None = None  # of ids that the run's own text does not show

    @cached_property
    def rows(self) -> Rows:
        return self.stored or rows_of(self.run)

    @cached_property
    def _own(self) -> dict[int, bytes]:
        run = self.run
        named = {r.id: r.bytes for r in run.tried} | {p.id: p.bytes for p in run.prompt}
        return named | {s.id: s.bytes for s in run.steps}

    def name(self, token: int) -> str | None:
        """How an id reads; None where it is not known, or the run keeps no text."""
        if self.run.retain != "text":
            return None
        data = self._own.get(token) or (self.bytes_of(token) if self.bytes_of else b"")
        return data.decode("utf-8", "backslashreplace") if data else None
