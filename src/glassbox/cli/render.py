"""How a run looks in a terminal, line by line as it is made. Readable at 80 columns, and at fewer."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from glassbox.cli.beams import beams_at, beams_of_run
from glassbox.cli.names import Named, Names, described, model_name
from glassbox.cli.output import Out, console
from glassbox.cli.prompt import prompt
from glassbox.cli.show_text import flow, inert, padded, quoted

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.choose import Choice
    from glassbox.events import Step
    from glassbox.policy.policy import Candidate, LedgerRow
    from glassbox.request import Request
    from glassbox.trace.run import Run
    from glassbox.trace.store import Store

TOKEN = 14  # columns of a token's text
CANDIDATE = 24
INSTEAD = 55  # where the column of alternatives begins
ROOM = 17  # the least it needs


class Live:
    """Prints a run while it happens. `note`: what to say before."""

    def __init__(self, model: Model, note: str = "") -> None:
        self.model, self.note, self.out = model, note, console()
        self.beams = False

    def head(self, request: Request) -> None:
        """What goes in: template with its segments, ids with their bytes, policy."""
        self.beams = request.beam is not None
        if self.note:
            self.out.field("note: ", self.note, "yellow")
        self.out.field("", f"{model_name(request.model)}: {described(self.model)}")
        prompt(self.out, request, self.model.tokenizer.vocab)
        steps_head(self.out)

    def step(self, step: Step) -> None:
        undrawn = "beams" if self.beams else "greedy"
        self.out.row(step_line(step, self.model.tokenizer.vocab, self.out.width, undrawn))

    def tail(self, run: Run, store: Store, store_given: bool) -> None:
        """What came of it. Commands to be copied are not broken, whatever the width."""
        summary(self.out, run)
        where = f"in {store.path}" if run.recorded else "is not in the store"
        self.out.print(f"run      {run.run_id} {where}", soft_wrap=True)
        if run.steps and run.recorded:
            store_option = f" --store {shlex.quote(str(store.path))}" if store_given else ""
            self.out.print(f"look in  glassbox show {run.run_id} --at 0{store_option}", style="dim", soft_wrap=True)


def steps_head(out: Out) -> None:
    out.print()
    head = f"{'step':>4}  {'token':<{TOKEN}} {'before':>6} {'after':>6}  {'draw':<18} "
    out.row(head + "instead" * (out.width >= INSTEAD + ROOM), "bold")


def step_line(step: Step, vocab: Named, width: int, undrawn: str = "greedy") -> Text:
    """One generated token: its text, probability before and after the policy, the draw, the best alternatives."""
    c = step.choice
    before, after = percent(c.logprob_raw), percent(c.logprob_final)
    draw = undrawn if c.u is None else f"{bare(c.u)} [{bare(c.cdf_lo)},{bare(c.cdf_hi)})"
    if off_the_draw(c):
        draw = "forced" if c.u is None else f"forced, drew {bare(c.u)}"
    line = Text(f"{step.step:>4}{'+' if step.drafted else ' '} ")
    line.append(padded(token(step, vocab), TOKEN), "bold green")
    line.append(f" {before:>6} {after:>6}  {draw:<18} ")
    room = width - INSTEAD
    if room >= ROOM:
        others = (alternative(x, vocab, room) for x in step.candidates if x.id != step.id)
        line.append("".join(flow(list(others)[:3], room)[:1]), "dim")
    return line


def off_the_draw(c: Choice) -> bool:
    """Whether the token was put there, for the number drawn does not lie in its interval."""
    return not c.cdf_lo <= (c.u or 0.0) < c.cdf_hi


def token(step: Step, vocab: Named) -> str:
    """A token's bytes; where they complete a character that earlier ones began, what became visible."""
    completes = b"\x80" <= step.bytes[:1] < b"\xc0" and step.text
    shown = f" → {inert(step.text, width=4)}" if completes else ""
    return quoted(step.bytes or vocab.bytes_of(step.id), TOKEN - cell_len(shown)) + shown


def alternative(x: Candidate, vocab: Named, room: int) -> str:
    share = f" {percent_of(x.p_raw)}"
    return quoted(vocab.bytes_of(x.id), room - len(share)) + share


def summary(out: Out, run: Run) -> None:
    """How it ended, and what it took."""
    if run.request.prompt_logprobs:
        prompt_logprobs(out, run)
    out.print()
    out.row("text", "bold")
    out.field("", inert(run.text, lines=True) if run.retain == "text" else "not kept", "")
    if run.mute:
        out.field("note     ", f"ids without a text in this tokenizer: {run.mute}", "yellow")
    out.print()
    out.field("stop     ", ending(run), "")
    u, drafted = run.usage, sum(s.drafted for s in run.steps)
    guessed = f", {drafted} of them guessed (+)" if drafted else ""
    cut = f", {u.dropped} of {u.submitted_tokens} dropped" if u.dropped else ""
    used = f"{u.prompt_tokens} prompt ({u.cached_tokens} cached{cut}) + {u.completion_tokens} completion tokens"
    out.field("usage    ", used + guessed, "")
    if run.outcome and run.outcome.reuse:
        out.field("cache    ", run.outcome.reuse, "")
    out.field("time     ", times(run), "")
    if run.speed and run.speed.prefill_per_s is not None:
        read = f"{run.speed.evaluated_tokens:,} prompt tokens read at {run.speed.prefill_per_s:,.0f}/s"
        out.field("speed    ", f"{read}, after {run.speed.queue_s * 1e3:.1f} ms in the queue", "")
    problem(out, run)


def prompt_logprobs(out: Out, run: Run) -> None:
    """Of each token of the prompt its logprob, given the ones before it."""
    out.print()
    out.row("prompt logprobs", "bold")
    numbers = ((p, "-" if p.logprob is None else f"{p.logprob:.4f}") for p in run.prompt)
    for line in flow((f"{p.id} {quoted(p.bytes, TOKEN)} {number}" for p, number in numbers), out.width - 2):
        out.row(f"  {line}")


def problem(out: Out, run: Run) -> None:
    """A trace that holds less than happened must not look whole."""
    if run.problem:
        out.field("trace    ", run.problem, "yellow")


def ending(run: Run) -> str:
    """Why it ended: the API's word, and what exactly ended it."""
    kind, *details = (run.stop_reason or {"kind": run.finish_reason}).values()
    if kind == "time":
        kind, details = "time_limit", [run.request.time_limit]
    if not details:
        return run.finish_reason if kind in (run.finish_reason, "error") else f"{run.finish_reason} ({kind})"
    words = [quoted(d.encode()) if kind == "stop_string" else inert(str(d)) for d in details]
    return f"{run.finish_reason} ({' '.join(words if kind == run.finish_reason else [kind, *words])})"


def times(run: Run) -> str:
    """Time to the first token apart from time per token: they measure prefill and decode."""
    s = run.speed
    if s is None:
        return "no token was made"
    text = f"first token {s.first_token_s * 1e3:.1f} ms"
    if s.gap_s is not None and s.decode_per_s is not None:
        text += f", then {s.gap_s * 1e3:.1f} ms a token ({s.decode_per_s:.0f} tokens/s)"
    return text


def lineage(out: Out, run: Run, branches: Sequence[tuple[str, int | None]] = ()) -> None:
    """Where a run comes from, and which runs go another way from it."""
    if (b := run.request.branch) is not None:
        forced = ", where its token was put" if b.step in b.forced else ""
        out.field("branch   ", f"of {b.parent} " + (with_another_prompt(b.step) or f"at step {b.step}{forced}"), "")
    for run_id, step in branches:
        out.field("branches ", f"{run_id} {with_another_prompt(step) or f'at step {step}'}", "")


def with_another_prompt(step: int | None) -> str:
    return "with another prompt" if step is None else ""


def whole_run(out: Out, run: Run, branches: Sequence[tuple[str, int | None]] = ()) -> None:
    """A recorded run, as it looked when it was made. Everything shown lies in the trace."""
    names = Names(run)
    out.field("run      ", f"{run.run_id} of {model_name(run.model)}, {run.created.astimezone():%Y-%m-%d %H:%M:%S}")
    lineage(out, run, branches)
    prompt(out, run.request, names)
    if run.retain == "none":
        out.print()
        out.field("note: ", "ids and texts, and so the steps, were not kept: the run was recorded so", "yellow")
    else:
        steps_head(out)
    for step in run.steps:
        out.row(step_line(step, names, out.width, "beams" if run.beams else "greedy"))
    not_kept(out, run)
    beams_of_run(out, run, names)
    if run.failed:
        out.print()
        out.field("failed   ", f"step {len(run.steps)}: the policy came so far", "yellow")
        ledger(out, run.failed, names)
    summary(out, run)


def one_step(out: Out, run: Run, at: int) -> None:
    """One step of a recorded run: what the policy did, who else was there, the draw."""
    names, step = Names(run), run.steps[at]
    c = step.choice
    before = "".join(s.text for s in run.steps[:at])[-60:]
    after = f"…{inert(before)}" if before else "the prompt" if run.retain == "text" or not at else "text not kept"
    chosen = f"{step.id} {quoted(step.bytes or names.bytes_of(step.id))}"
    out.field("run      ", f"{run.run_id}, step {step.step} of {len(run.steps)}, position {step.position}")
    out.field("after    ", after, "")
    out.field("chosen   ", f"{chosen}, rank {c.rank_raw} of the model's own distribution", "")
    out.field("logprob  ", f"{c.logprob_raw:.4f} before the policy, {c.logprob_final:.4f} after", "")
    undrawn = "put there" if off_the_draw(c) else "beams" if run.beams else "greedy"
    drawn = f"{undrawn}: nothing was drawn"
    if c.u is not None:
        aside = "not followed, the token was put there; its own is" if off_the_draw(c) else "in"
        drawn = f"{c.u:.6f} {aside} [{c.cdf_lo:.6f}, {c.cdf_hi:.6f})"
    out.field("draw     ", drawn + (f", {c.ties} others tied" if c.ties else ""), "")
    out.field("logits   ", f"xxh64 {step.logits_hash}, entropy {step.entropy:.3f} nats", "")
    problem(out, run)
    not_kept(out, run)
    if step.ledger:
        out.print()
        ledger(out, step.ledger, names)
    if step.candidates:
        out.print()
        candidates(out, step, names)
    beams_at(out, run, at, names)


def not_kept(out: Out, run: Run) -> None:
    if run.level == "ids":
        out.print()
        out.field("note: ", "ledger and candidates were not kept: the run was recorded at level ids", "yellow")


def ledger(out: Out, rows: Sequence[LedgerRow], vocab: Named) -> None:
    """What each policy step did."""
    names = [row.name + "".join(f" {value:g}" for value in list(row.params.values())[:1]) for row in rows]
    wide = max(16, *map(len, names))
    out.row(f"  {'policy step':<{wide}} {'alive':>16} {'mass removed':>12} {'entropy':>8}  best", "bold")
    for name, row in zip(names, rows, strict=True):
        alive = f"{row.alive_before:,} → {row.alive_after:,}" if row.removed_count else f"{row.alive_after:,}"
        best = f"{quoted(vocab.bytes_of(row.top[0][0]), TOKEN)} {percent_of(row.top[0][1])}" if row.top else ""
        unchanged = f"{row.changed:,} changed" if row.changed else "-"
        mass = f"{row.mass_removed:.3%}" if row.removed_count else unchanged
        out.row(f"  {name:<{wide}} {alive:>16} {mass:>12} {row.entropy:>8.3f}  {best}")


def candidates(out: Out, step: Step, vocab: Named) -> None:
    """Who could have been chosen, before and after the policy."""
    out.row(f"  {'candidate':<{CANDIDATE}} {'logit':>9} {'before':>8} {'after':>8}  removed by", "bold")
    for x in step.candidates:
        mark = "→" if x.id == step.id else " "
        name = f"{x.id} {quoted(vocab.bytes_of(x.id), CANDIDATE - len(str(x.id)) - 1)}"
        after = percent_of(x.p_final) if x.removed_by is None else "-"
        numbers = f"{x.logit:>9.4f} {percent_of(x.p_raw):>8} {after:>8}"
        out.row(f"{mark} {padded(name, CANDIDATE)} {numbers}  {x.removed_by or ''}")


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
