"""glassbox whatif: a recorded run under another policy, with the same draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from glassbox.cli.output import JsonOption, Out, StoreOption, console, print_json
from glassbox.cli.replay import model_for, recorded
from glassbox.errors import ParameterError

if TYPE_CHECKING:
    from glassbox.cli.names import Names
    from glassbox.policy.policy import Policy
    from glassbox.trace.run import Run
    from glassbox.trace.whatif import WhatIf

TOKEN = 16  # columns of a token's text
RunArgument = typer.Argument(..., metavar="RUN", help="A run id, the beginning of one, or last.")
RunModelOption = typer.Option(None, "--model", "-m", help="Where its model is now. Default: the one it names.")


def whatif(
    run: str = RunArgument,
    at: int = typer.Option(None, "--at", metavar="N", help="With --threshold: of this step alone."),
    draws: int = typer.Option(0, "--draws", metavar="N", help="Fresh draws a step: how often it goes another way."),
    threshold: str = typer.Option(
        None, "--threshold", metavar="PARAMETER", help="From which of its values on steps become another token."
    ),
    model: str = RunModelOption,
    store: str = StoreOption,
    as_json: bool = JsonOption,
    flags: Any = None,
) -> None:
    """Show what RUN would have chosen under another policy: its own logits and draws, step by step.

    The policy flags are laid over the recorded policy; a preset takes its place. The recorded text is kept, so what
    comes after the first change holds given that text. Nothing is recorded.
    """
    found = recorded(run, store)
    policy = laid_over(found.policy, flags)
    if at is not None and threshold is None:
        raise ParameterError("at", at, "left out: it goes with --threshold")
    loaded = model_for(found, model)
    steps = None if at is None else [at]
    what = found.what_if(policy, opened=loaded, draws=draws, threshold=threshold, steps=steps)
    if as_json:
        print_json(what.to_dict())
    else:
        show(console(), found, what)


def laid_over(recorded: Policy, flags: Mapping[str, Any]) -> Policy:
    """The recorded policy with what the flags say in place of what it has. Raises ParameterError."""
    from glassbox.cli.policy import policy_of
    from glassbox.policy.policy import Policy

    if "preset" in flags:
        return policy_of(flags)
    return Policy.from_dict(
        recorded.to_dict() | {"order" if name == "steps" else name: value for name, value in flags.items()}
    )


def show(out: Out, run: Run, what: WhatIf) -> None:
    from glassbox.cli.names import Names, model_name

    names = Names(run)
    out.field("run      ", f"{run.run_id} of {model_name(run.model)}, {len(run.steps)} steps")
    out.field("was      ", repr(run.policy), "")
    out.field("what if  ", repr(what.policy), "")
    out.field("text     ", likely(what), "")
    out.field("changes  ", changes(what), "")
    if other := [row.step for row in what.rows if not row.proven]:
        told = f"from step {other[0]} on the logits are not those that were recorded; see glassbox replay"
        out.field("note     ", told, "yellow")
    if what.changes:
        table(out, what, names)
    if what.rows and what.rows[0].draws:
        fresh(out, what, names)
    if what.parameter:
        thresholds(out, what, names)


def likely(what: WhatIf) -> str:
    """The probability of the whole recorded text, then and now."""
    then = f"logprob {what.logprob_recorded:.4f} as recorded"
    if what.forbidden:
        row = what.forbidden[0]
        more = f" (and {len(what.forbidden) - 1} more)" if len(what.forbidden) > 1 else ""
        return f"{then}, impossible now: {row.removed_by} forbids the token of step {row.step}{more}"
    return f"{then}, {what.logprob:.4f} now: {times(what.logprob - what.logprob_recorded)}"


def times(gain: float) -> str:
    """How much likelier it became, of a difference of logprobs."""
    return "as likely" if abs(gain) < 1e-9 else f"{math.exp(min(gain, 700)):.3g} times as likely"


def changes(what: WhatIf) -> str:
    first = what.first
    if first is None:
        return "none: every step chooses what was recorded"
    later = len(what.changes) - 1
    return f"step {first.step} first" + (f"; given the recorded text, {later} more" if later else "")


def table(out: Out, what: WhatIf, names: Names) -> None:
    from glassbox.cli.render import bare, percent
    from glassbox.cli.show_text import padded, quoted

    out.print()
    out.row(f"{'step':>4}  {'recorded':<{TOKEN}} {'was':>6} {'now':>6}  {'becomes':<{TOKEN}} draw", "bold")
    for row in what.changes:
        was, now = percent(row.logprob_recorded), percent(row.logprob) if row.logprob > -math.inf else "-"
        recorded = padded(quoted(names.bytes_of(row.id), TOKEN), TOKEN)
        if row.choice is None:
            becomes, draw = row.refused or "", ""
        else:
            c = row.choice
            becomes = padded(quoted(names.bytes_of(c.id), TOKEN), TOKEN)
            draw = "greedy" if c.u is None else f"{bare(c.u)} [{bare(c.cdf_lo)},{bare(c.cdf_hi)})"
        style = "bold green" if row is what.first else ""
        out.row(f"{row.step:>4}  {recorded} {was:>6} {now:>6}  {becomes} {draw}", style)


def fresh(out: Out, what: WhatIf, names: Names) -> None:
    """How often fresh draws go another way: exactly, and by trying."""
    from glassbox.cli.render import percent_of
    from glassbox.cli.show_text import padded, quoted

    out.print()
    head = f"{'step':>4}  {'recorded':<{TOKEN}} {'away':>7} {'drawn':>13}  instead"
    out.row(head, "bold")
    for row in what.rows:
        if row.draws is None:
            continue
        drawn = f"{row.draws.away:,} of {row.draws.n:,}"
        others = "  ".join(f"{quoted(names.bytes_of(i), TOKEN)} {count}" for i, count in row.draws.ids)
        recorded = padded(quoted(names.bytes_of(row.id), TOKEN), TOKEN)
        out.row(f"{row.step:>4}  {recorded} {percent_of(row.away):>7} {drawn:>13}  {others}")


def thresholds(out: Out, what: WhatIf, names: Names) -> None:
    """Where a step becomes another token than the recorded one; both sides of each edge were tried."""
    from glassbox.cli.show_text import padded, quoted

    out.print()
    out.row(f"{'step':>4}  {'recorded':<{TOKEN}} becomes, by {what.parameter}", "bold")
    for row in what.rows:
        parts = []
        for edge in row.edges:
            into = edge.below if edge.above == row.id else edge.above
            where = f"below {edge.high:.5g}" if edge.above == row.id else f"above {edge.low:.5g}"
            parts.append(f"{'no token' if into is None else quoted(names.bytes_of(into), TOKEN)} {where}")
        if parts:
            out.row(f"{row.step:>4}  {padded(quoted(names.bytes_of(row.id), TOKEN), TOKEN)} {'; '.join(parts)}")
    if not any(row.edges for row in what.rows):
        out.row("      nothing else in the range that was tried")
