"""Several texts of one prompt, side by side in the engine, one after another on the screen."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from glassbox.cli.names import described, model_name
from glassbox.cli.output import console
from glassbox.cli.prompt import prompt
from glassbox.cli.render import ending, problem
from glassbox.cli.show_text import inert

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.stream import Stream
    from glassbox.trace.record import Run


def run(streams: list[Stream]) -> bool:
    """All of them to their ends; True where Ctrl-C ended them."""
    with ExitStack() as closing:
        for stream in streams:
            closing.enter_context(stream)
        try:
            while streams:
                streams = [stream for stream in streams if next(stream, None) is not None]
        except KeyboardInterrupt:
            return True
    return False


def show(runs: list[Run], model: Model) -> None:
    """What they have in common, then each: number, run, end, how likely it was, text."""
    out, first = console(), runs[0]
    out.field("", f"{model_name(first.model)}: {described(model)}")
    prompt(out, first.request, model.tokenizer.vocab)
    for run in runs:
        out.print()
        out.row(f"sample {run.request.sequence}  run {run.run_id}", "bold")
        total = sum(step.choice.logprob_final for step in run.steps)
        out.field("stop     ", f"{ending(run)}, {len(run.steps)} tokens, sum of logprobs {total:.4f}", "")
        problem(out, run)
        out.field("text     ", inert(run.text, lines=True), "")
