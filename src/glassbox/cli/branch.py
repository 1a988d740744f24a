"""glassbox branch: a recorded run that goes another way from some step, as a new run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from glassbox.cli.intervene import AblateOption, PositionsOption, ReplaceOption, ScaleOption, interventions
from glassbox.cli.output import JsonOption, StoreOption, open_store
from glassbox.cli.replay import model_for
from glassbox.cli.runs import NO_RUNS, newest
from glassbox.cli.trace import Interrupted, run_trace, told
from glassbox.cli.whatif import RunArgument, RunModelOption, laid_over
from glassbox.errors import GlassboxError, ParameterError, PromptError

if TYPE_CHECKING:
    from glassbox.trace.run import Run


def branch(
    run: str = RunArgument,
    at: int = typer.Option(None, "--at", metavar="N", help="The first step that may differ; those before are kept."),
    token: int = typer.Option(None, "--token", metavar="ID", help="Put this id there."),
    text: str = typer.Option(None, "--text", metavar="TEXT", help="Another prompt, without a template, and no --at."),
    message_edit: list[str] = typer.Option(
        [], "--message-edit", metavar="I=TEXT", help="Another text of message I of the prompt, and no --at. Repeatable."
    ),
    seed: int = typer.Option(None, "--seed", metavar="N", help="Of the draws from there on. Default: the run's."),
    max_tokens: int = typer.Option(None, "--max-tokens", metavar="N", help="In all, with the steps before."),
    ablate: list[str] = AblateOption,
    scale: list[str] = ScaleOption,
    replace: list[str] = ReplaceOption,
    positions: str = PositionsOption,
    model: str = RunModelOption,
    store: str = StoreOption,
    as_json: bool = JsonOption,
    flags: Any = None,
) -> None:
    """Begin a new run where RUN was at step N: with another token, policy or seed, or with an edited prompt.

    The policy flags are laid over the recorded policy. The branch has the keys of the run's draws, so what changes
    nothing gives the same run again.
    """
    from glassbox.cli.render import Live
    from glassbox.trace.branch import branch as begin

    if not newest(store, 1):
        raise GlassboxError(NO_RUNS)
    with open_store(store) as opened:
        found = opened.load(run)
        if at is None and text is None and not message_edit:
            raise ParameterError("at", None, "given: a step, unless the prompt is edited (--text, --message-edit)")
        asked: dict[str, Any] = {"at": at, "token_id": token, "text": text, "seed": seed, "max_tokens": max_tokens}
        asked["interventions"] = interventions(ablate, scale, replace, positions)
        if message_edit:
            asked["messages"] = edited(found, message_edit)
        if flags:
            asked |= {"policy": laid_over(found.policy, flags), "sources": sources(found, flags)}
        loaded = model_for(found, model)
        stream = begin(found, loaded, store=opened, **asked)
        live = None if as_json else Live(loaded, f"steps before {at} are those of run {found.run_id}" if at else "")
        made, interrupted = run_trace(stream, live)
        told(made, live, opened, store is not None)
    if interrupted:
        raise Interrupted(f"interrupted; what was made is kept as run {made.run_id}")


def edited(run: Run, edits: Sequence[str]) -> list[dict[str, Any]]:
    """The messages of the run, some with other text. Raises PromptError, ParameterError."""
    if not run.request.messages:
        raise PromptError(f"run {run.run_id} has no messages to edit", param="messages")
    messages = [dict(m) for m in run.request.messages]
    for edit in edits:
        number, equals, text = edit.partition("=")
        if not equals or not number.isdecimal() or int(number) >= len(messages):
            raise ParameterError("--message-edit", edit, f"I=TEXT with a message I from 0 to {len(messages) - 1}")
        messages[int(number)]["content"] = text
    return messages


def sources(run: Run, flags: Mapping[str, Any]) -> dict[str, str]:
    """Where each parameter comes from: a flag, or as in the run; with a preset all that is no flag is the preset's."""
    given = {"order" if name == "steps" else name: "flag" for name in flags if name != "preset"}
    return given if "preset" in flags else {**run.request.sources, **given}
