"""glassbox purge: forget runs for good."""

from __future__ import annotations

import re
import time
from pathlib import Path

import typer

from glassbox.cli.output import JsonOption, StoreOption, console, open_store, print_json
from glassbox.errors import ParameterError

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_S = 10**11  # some thousand years


def purge(
    older_than: str = typer.Option(None, "--older-than", metavar="AGE", help="Runs older than this: 30d, 12h, 90m."),
    run: list[str] = typer.Option([], "--run", metavar="RUN", help="This run; may be repeated."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say which runs would go."),
    store: str = StoreOption,
    as_json: bool = JsonOption,
) -> None:
    """Remove runs so that no byte of them is left in the store's files, and give back their space."""
    from glassbox.trace.purge import purge as forget
    from glassbox.trace.store import default_path

    before = None if older_than is None else time.time_ns() // 1_000_000 - 1000 * age_s(older_than)
    if before is None and not run:
        raise ParameterError("older_than", older_than, "an age like 30d, unless --run says which")
    path = Path(store) if store is not None else default_path()
    ids: list[str] = []
    if run:
        with open_store(store, readonly=True) as opened:
            ids = [opened.rows(name).run["id"] for name in run]
    done = forget(path, before_ms=before, ids=ids, dry_run=dry_run)
    if as_json:
        print_json({"purged": done.gone, "running": done.running, "freed_bytes": done.freed, "dry_run": dry_run})
        return
    out = console()
    count = f"{len(done.gone):,} run{'' if len(done.gone) == 1 else 's'}"
    if dry_run:
        out.field("would go ", f"{count} {' '.join(done.gone)}")
    else:
        out.field("purged   ", f"{count}, {done.freed:,} bytes given back")
    if done.running:
        out.field("running  ", f"{' '.join(done.running)}: not yet ended, so left alone", "yellow")


def age_s(text: str) -> int:
    """Seconds of an age like 30d. Raises ParameterError."""
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if found is None or (age := int(found[1]) * UNITS_S[found[2]]) > MOST_S:
        raise ParameterError("older_than", text, "a whole number and one of s, m, h, d, w: 30d")
    return age
