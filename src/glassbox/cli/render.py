"""How a run looks in a terminal, line by line as it is made. Readable at 80 columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from glassbox.cli.names import Names
from glassbox.cli.output import console
from glassbox.cli.show_text import inert, quoted

if TYPE_CHECKING:
    from rich.console import Console

    from glassbox.api import Model
    from glassbox.generation import Request, Step
    from glassbox.policy.policy import LedgerRow
    from glassbox.trace.record import Run

TOKEN = 14  # columns of a token's text
INDENT = "  "
Put = Callable[..., None]  # a console's print


class Named(Protocol):
    """A vocabulary, or what a recorded run knows of one."""

    def bytes_of(self, token: int, /) -> bytes: ...


class Live:
    """Prints a run while it happens."""

    def __init__(self, model: Model) -> None:
        self.model, self.out = model, console()

    def note(self, text: str) -> None:
        self.out.print(text, style="yellow")

    def head(self, request: Request) -> None:
        """What goes in: template with its segments, ids with their bytes, policy."""
        self.out.print(Text(f"{request.model}: {self.model.model!r}", "dim"))
        prompt(self.out.print, request, self.model.tokenizer.vocab)
        steps_head(self.out.print)

    def step(self, step: Step) -> None:
        self.out.print(step_line(step, self.model.tokenizer.vocab), no_wrap=True, overflow="ellipsis")

    def tail(self, run: Run, store: Path) -> None:
        summary(self.out.print, run)
        self.out.print(f"run      {run.run_id} in {store}", soft_wrap=True)
        self.out.print(f"look in  glassbox show {run.run_id} --at 0", style="dim", soft_wrap=True)


def prompt(put: Put, request: Request, vocab: Named) -> None:
    """The prompt: who wrote what of its text, its ids, and the policy."""
    encoding = request.encoding
    put()
    put(f"prompt   {len(encoding.ids)} ids", style="bold")
    segments = Table.grid(padding=(0, 1))
    for segment in encoding.segment_list:
        if segment.text:
            segments.add_row(" ", Text(segment.origin, "cyan"), Text(inert(segment.text)))
    put(segments)
    for text in (*encoding.lossy, *encoding.notes):
        put(f"{INDENT}note: {text}", style="yellow")
    put()
    put("ids", style="bold")
    put(Padding(Text("  ".join(f"{i} {quoted(vocab.bytes_of(i))}" for i in encoding.ids)), (0, 0, 0, 2)))
    put()
    put(Text.assemble(("policy   ", "bold"), policy_line(request)))
    put(f"seed     {request.seed}")


def policy_line(request: Request) -> str:
    """Each parameter that does something, in order, and where its value came from."""
    policy = request.policy
    running = {step.name for step in policy.steps} | ({"temperature"} if policy.greedy else set())
    parts = []
    for name in policy.order:
        value, source = getattr(policy, name), request.sources.get(name)
        if name in running or (name == "temperature" and source):
            parts.append(f"{name} {value:g}" + (f" ({source})" if source else ""))
    return " → ".join(parts) or "none: the model's own distribution"


def steps_head(put: Put) -> None:
    put()
    put(f"{'step':>4}  {'token':<{TOKEN}} {'before':>6} {'after':>6}  {'draw':<18} instead", style="bold")


def step_line(step: Step, vocab: Named) -> Text:
    """One generated token: its text, probability before and after the policy, the draw, the best alternatives."""
    c = step.choice
    before, after = percent(c.logprob_raw), percent(c.logprob_final)
    draw = "greedy" if c.u is None else f"{bare(c.u)} [{bare(c.cdf_lo)},{bare(c.cdf_hi)})"
    others = [x for x in step.candidates if x.id != step.id][:3]
    instead = "  ".join(f"{quoted(vocab.bytes_of(x.id))} {percent_of(x.p_raw)}" for x in others)
    line = Text(f"{step.step:>4}  ")
    line.append(fit(quoted(step.bytes), TOKEN), "bold green")
    line.append(f" {before:>6} {after:>6}  {draw:<18} ")
    line.append(instead, "dim")
    return line


def summary(put: Put, run: Run) -> None:
    """How it ended, and what it took."""
    put()
    put("text", style="bold")
    put(Text(inert(run.text, lines=True)))
    put()
    stop = run.stop_reason
    detail = "" if stop is None else ": " + ", ".join(f"{k} {inert(str(v))}" for k, v in stop.items() if k != "kind")
    kind = "" if stop is None else f" ({stop['kind']}{detail if len(detail) > 2 else ''})"
    put(f"stop     {run.finish_reason}{kind}")
    u = run.usage
    put(f"usage    {u.prompt_tokens} prompt ({u.cached_tokens} cached) + {u.completion_tokens} completion tokens")
    put(f"time     {times(run)}")


def times(run: Run) -> str:
    """Time to the first token apart from time per token: they measure prefill and decode."""
    t = run.timings
    if t is None or t.first_token_ns is None:
        return "no token was made"
    text = f"first token {t.first_token_ns / 1e6:.1f} ms"
    rest = run.usage.completion_tokens - 1
    if rest > 0:
        per = (t.total_ns - t.first_token_ns) / rest
        text += f", then {per / 1e6:.1f} ms a token ({1e9 / per:.0f} tokens/s)"
    return text


def ledger_lines(rows: Sequence[LedgerRow], vocab: Named) -> list[Text]:
    """What each policy step did."""
    lines = [Text(f"{INDENT}{'policy step':<16} {'alive':>16} {'mass removed':>12} {'entropy':>8}  best", "bold")]
    for row in rows:
        name = row.name + "".join(f" {value:g}" for value in row.params.values())
        alive = f"{row.alive_before:,} → {row.alive_after:,}" if row.removed_count else f"{row.alive_after:,}"
        best = f"{quoted(vocab.bytes_of(row.top[0][0]))} {percent_of(row.top[0][1])}" if row.top else ""
        mass = f"{row.mass_removed:.3%}" if row.removed_count else "-"
        lines.append(Text(f"{INDENT}{name:<16} {alive:>16} {mass:>12} {row.entropy:>8.3f}  {best}"))
    return lines


def whole_run(out: Console, run: Run) -> None:
    """A recorded run, as it looked when it was made. Everything shown lies in the trace."""
    names = Names(run)
    out.print(f"run      {run.run_id} of {run.model}, {run.created.astimezone():%Y-%m-%d %H:%M:%S}", style="bold")
    prompt(out.print, run.request, names)
    steps_head(out.print)
    for step in run.steps:
        out.print(step_line(step, names), no_wrap=True, overflow="ellipsis")
    summary(out.print, run)


def one_step(out: Console, run: Run, at: int) -> None:
    """One step of a recorded run: what the policy did, who else was there, the draw."""
    names, step = Names(run), run.steps[at]
    c = step.choice
    before = "".join(s.text for s in run.steps[:at])[-60:]
    out.print(f"run      {run.run_id}, step {step.step} of {len(run.steps)}, position {step.position}", style="bold")
    out.print(Text(f"after    …{inert(before)}" if before else "after    the prompt"))
    out.print(Text(f"chosen   {step.id} {quoted(step.bytes)}, rank {c.rank_raw} of the model's own distribution"))
    out.print(f"logprob  {c.logprob_raw:.4f} before the policy, {c.logprob_final:.4f} after")
    drawn = "greedy: nothing was drawn" if c.u is None else f"{c.u:.6f} in [{c.cdf_lo:.6f}, {c.cdf_hi:.6f})"
    out.print(f"draw     {drawn}" + (f", {c.ties} others tied" if c.ties else ""))
    out.print(f"logits   sha256 {step.logits_hash}…, entropy {step.entropy:.3f} nats")
    if step.ledger:
        out.print()
        for line in ledger_lines(step.ledger, names):
            out.print(line, no_wrap=True, overflow="ellipsis")
    if step.candidates:
        out.print()
        out.print(f"{INDENT}{'candidate':<24} {'logit':>9} {'before':>8} {'after':>8}  removed by", style="bold")
    for x in step.candidates:
        mark = "→" if x.id == step.id else " "
        name = fit(f"{x.id} {quoted(names.bytes_of(x.id))}", 24)
        after = percent_of(x.p_final) if x.removed_by is None else "-"
        row = f"{mark} {name} {x.logit:>9.4f} {percent_of(x.p_raw):>8} {after:>8}  {x.removed_by or ''}"
        out.print(row.rstrip(), no_wrap=True, overflow="ellipsis")


def percent(logprob: float) -> str:
    return percent_of(math.exp(logprob))


def percent_of(p: float) -> str:
    """A probability that never rounds to 0 or to 1 unless it is."""
    if 0 < p < 0.0005:
        return f"{p:.0e}"
    return f"{p:.1%}" if p == 1 or p < 0.9995 else ">99.9%"


def bare(x: float) -> str:
    """A number from 0 to 1 in four columns: .374, or 1.00."""
    return f"{x:.3f}"[1:] if x < 0.9995 else "1.00"


def fit(text: str, width: int) -> str:
    """Cut or padded to so many columns, whatever the width of its characters."""
    shown = Text(text)
    shown.truncate(width, overflow="ellipsis", pad=True)
    return shown.plain
