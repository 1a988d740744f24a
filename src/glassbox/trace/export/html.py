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

from glassbox.policy.policy import Policy
from glassbox.trace.export.source import Source
from glassbox.trace.record import Run

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
<p id="strip" role="group" aria-label="tokens"></p>
<section id="step" aria-label="step"></section>
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
    data = {"run": whole, "seed": str(one.run.seed), "names": names, "asked": asked(one.run)}
    text = json.dumps(data, allow_nan=False)
    for letter in "<>&":  # these stand in strings only
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def asked(run: Run) -> list[str]:
    """How its tokens were chosen and where it came from, a line each."""
    lines = [_policy(run.policy)]
    if run.beams:
        beam = run.beams.beam
        groups = f" in {beam.groups} groups" if beam.groups > 1 else ""
        lines.append(f"beam search: {beam.width} beams{groups}, score = sum / tokens ** {beam.length_penalty:g}")
    if branch := run.request.branch:
        where = "with another prompt" if branch.step is None else f"from step {branch.step}"
        lines.append(f"branch of {branch.parent} {where}")
    return lines + [str(intervention) for intervention in run.request.interventions]


def _policy(policy: Policy) -> str:
    """The parameters that do something, in the order of their steps; behind greedy nothing does."""
    order, greedy = list(policy.order), []
    if policy.greedy:
        order, greedy = order[: order.index("temperature")], ["greedy (temperature 0)"]
    steps = [" ".join(f"{name} {value}" for name, value in policy.shown(step)) for step in order if policy.runs(step)]
    return " \u2192 ".join(steps + greedy) or "the model's own distribution"
