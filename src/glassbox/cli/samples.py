"""Several texts of one prompt, side by side in the engine, one after another on the screen."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from glassbox.cli.names import described, model_name
from glassbox.cli.prompt import prompt
from glassbox.cli.render import ending, problem, prompt_logprobs
from glassbox.cli.show_text import inert

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.cli.output import Out
    from glassbox.stream import Stream
    from glassbox.trace.run import Run


def run(streams: list[Stream], out: Out | None = None) -> bool:
    """All of them to their ends, each told as it comes to its own; True where Ctrl-C ended them."""
    count = len(streams)
    with ExitStack() as closing:
        for stream in streams:
            closing.enter_context(stream)
        try:
            while streams:
                going = [stream for stream in streams if next(stream, None) is not None]
                if out:
                    for stream in streams:
                        if stream not in going:
                            _ended(out, stream.run, count)
                streams = going
        except KeyboardInterrupt:
            return True
    return False


def _ended(out: Out, run: Run, count: int) -> None:
    which = f"sample {run.request.sequence} (of {count})"
    out.field("ended    ", f"{which}: {ending(run)}, {len(run.steps)} tokens", "")


def head(out: Out, first: Stream, model: Model) -> None:
    """What they have in common, before any of them begins."""
    out.field("", f"{model_name(first.request.model)}: {described(model)}")
    prompt(out, first.request, model.tokenizer.vocab)
    out.print()


def show(out: Out, runs: list[Run]) -> None:
    """Each of them: number, run, end, how likely it was, text."""
    if runs[0].request.prompt_logprobs:
        prompt_logprobs(out, runs[0])
    for run in runs:
        out.print()
        out.row(f"sample {run.request.sequence}  run {run.run_id}", "bold")
        total = sum(step.choice.logprob_final for step in run.steps)
        out.field("stop     ", f"{ending(run)}, {len(run.steps)} tokens, sum of logprobs {total:.4f}", "")
        problem(out, run)
        out.field("text     ", inert(run.text, lines=True), "")
