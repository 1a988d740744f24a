"""The object of `glassbox trace --json`, as docs/run.schema.json describes it: ASCII, finite numbers, one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from glassbox.trace.export.source import Source


def write(runs: Sequence[Source], path: Path) -> None:
    (one,) = runs
    path.write_text(json.dumps(one.run.to_dict(), allow_nan=False) + "\n", encoding="ascii")
