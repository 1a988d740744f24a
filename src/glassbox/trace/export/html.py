"""A run as one page: strip of tokens, and for each step its draw, ledger and candidates.

In: a run. Out: one file that needs nothing else and may do nothing else: its policy allows this very script and style,
known by their hashes, and no connection. All of the run is data for the script, which puts it into the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from glassbox.trace.export.source import Source

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Glassbox run {name}</title>
<style>{style}</style>
</head>
<body>
<header id="head"></header>
<main>
<p id="strip" aria-label="tokens"></p>
<section id="step" aria-live="polite"></section>
</main>
<noscript>This page shows its run by a script, which is switched off.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write(runs: Sequence[Source], path: Path) -> None:
    (one,) = runs
    path.write_text(page(one), encoding="ascii")


def page(one: Source) -> str:
    """The whole page, in ASCII."""
    style, script = (resources.files(__package__).joinpath(name).read_text("ascii") for name in ("page.css", "page.js"))
    rules = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    rules += [f"style-src {_hash(style)}", f"script-src {_hash(script)}"]
    return PAGE.format(
        policy="; ".join(rules), name=escape(one.run.run_id), style=style, data=_data(one), script=script
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(one: Source) -> str:
    """JSON that stays inside its script element: no letter in it can end one, or begin a comment."""
    whole = one.run.to_dict()
    ids = {c["id"] for s in whole["steps"] for c in s["candidates"] or ()}
    ids |= {token for s in whole["steps"] for row in s["ledger"] or () for token, _ in row["top"]}
    names = {str(token): name for token in sorted(ids) if (name := one.name(token)) is not None}
    text = json.dumps({"run": whole, "seed": str(one.run.seed), "names": names}, allow_nan=False)
    for letter in "<>&":  # these stand in strings only
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
