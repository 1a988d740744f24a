"""glassbox trace: one generation, seen whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from glassbox.cli.chat import (
    ContinueOption,
    MessagesOption,
    TemplateArgOption,
    TemplateOption,
    ToolsOption,
    chat_flags,
    template_text,
)
from glassbox.cli.intervene import AblateOption, PositionsOption, ReplaceOption, ScaleOption, interventions
from glassbox.cli.main import INTERRUPTED
from glassbox.cli.output import (
    JsonOption,
    ModelOption,
    StoreOption,
    load_model,
    note,
    open_store,
    print_json,
    read_text,
)
from glassbox.cli.policy import policy_of
from glassbox.errors import GlassboxError, ParameterError, PromptError

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.cli.render import Live
    from glassbox.policy.policy import Policy
    from glassbox.stream import Stream
    from glassbox.trace.record import Run

NO_TEMPLATE = "this model has no chat template: the prompt goes in as it is"
# parameter -> (key in a GGUF file, value when neither the file nor a flag says anything)
DEFAULTS: Mapping[str, tuple[str, float]] = {
    "temperature": ("general.sampling.temp", 0.8),
    "top_k": ("general.sampling.top_k", 0),
    "top_p": ("general.sampling.top_p", 0.95),
    "min_p": ("general.sampling.min_p", 0.0),
}


def trace(
    prompt: str = typer.Argument(None, help="What to say to the model. - reads it from standard input."),
    model: str = ModelOption,
    system: str = typer.Option(None, "--system", metavar="TEXT", help="A system message before the prompt."),
    messages: str = MessagesOption,
    continue_final: bool = ContinueOption,
    tools: str = ToolsOption,
    template: str = TemplateOption,
    template_arg: list[str] = TemplateArgOption,
    raw: bool = typer.Option(False, "--raw", help="The prompt as it is, without the chat template."),
    seed: int = typer.Option(None, "--seed", metavar="N", help="Drawn and shown when not given."),
    max_tokens: int = typer.Option(256, "--max-tokens", metavar="N", help="Stop after N tokens."),
    stop: list[str] = typer.Option([], "--stop", metavar="TEXT", help="Stop where the text reads so; may be repeated."),
    time_limit: float = typer.Option(None, "--time-limit", metavar="SECONDS", help="Stop after so long."),
    ignore_eos: bool = typer.Option(False, "--ignore-eos", help="Go on past the end-of-sequence token."),
    speculate: bool = typer.Option(False, "--speculate", help="Check guessed ids in one pass; changes no token."),
    no_reuse: bool = typer.Option(False, "--no-reuse", help="Compute all of the prompt, whatever is cached."),
    ablate: list[str] = AblateOption,
    scale: list[str] = ScaleOption,
    replace: list[str] = ReplaceOption,
    positions: str = PositionsOption,
    kv: str = typer.Option("f32", "--kv", metavar="KIND", help="How keys and values are kept: f32 (exact), f16 or q8."),
    level: str = typer.Option(
        "look", "--level", metavar="LEVEL", help="What is recorded: look (all), or ids (no ledger, no candidates)."
    ),
    as_json: bool = JsonOption,
    store: str = StoreOption,
    flags: Any = None,
) -> None:
    """Generate from PROMPT and show every step: template, ids, each token's probabilities, policy and draw.

    Sampling parameters that are not given come from the model file where it has them; the output says which.
    """
    from glassbox.cache.pages import KINDS
    from glassbox.cli.names import model_name
    from glassbox.cli.render import Live

    # All that can be wrong without a model is said before one is loaded.
    policy_of(flags)
    for name, value, allowed in (("level", level, ("look", "ids")), ("kv", kv, tuple(KINDS))):
        if value not in allowed:
            raise ParameterError(name, value, f"one of {', '.join(allowed)}")
    if raw and system is not None:
        raise PromptError("--system needs the chat template, which --raw leaves out", param="system")
    chat = chat_flags(messages, tools, template, template_arg, continue_final)
    if raw and chat:
        raise PromptError("--raw leaves out the chat template, which the other flags are for")
    text, head = said(prompt, system, messages is not None)
    asked: dict[str, Any] = dict(
        seed=seed, max_tokens=max_tokens, stop=stop, time_limit=time_limit, ignore_eos=ignore_eos, speculate=speculate,
        reuse=not no_reuse, level=level, interventions=interventions(ablate, scale, replace, positions),
    )  # fmt: skip
    with open_store(store) as opened:
        loaded = load_model(model, kv)
        plain = not loaded.tokenizer.templates and template is None
        if plain and (head or chat):
            flag = "--system" if head else "--messages" if messages else "--tools or --template-arg"
            raise PromptError(f"{flag} needs a chat template, and {model_name(model)} has none", param="system")
        if template is not None:
            chat["template"] = template_text(template, loaded.tokenizer.templates)
        talk = {"messages": [*head, {"role": "user", "content": text}]}
        asked |= {"prompt": text} if raw or plain else talk | chat
        asked["policy"], asked["sources"] = choose_policy(loaded, flags)
        stream = loaded.stream(store=opened, **asked)
        live = None if as_json else Live(loaded, "" if raw or not plain else NO_TEMPLATE)
        run, interrupted = run_trace(stream, live)
        if live:
            live.tail(run, opened, store is not None)
        else:
            print_json(run.to_dict())
            if run.problem:
                note(f"glassbox: the trace is {run.problem}")
    if interrupted:
        raise Interrupted(f"interrupted; what was made is kept as run {run.run_id}")


def said(prompt: str | None, system: str | None, in_file: bool) -> tuple[str, list[dict[str, str]]]:
    """The prompt, and the system message before it, if there is one; nothing where a file has it all."""
    if in_file:
        if prompt is not None or system is not None:
            raise PromptError("--messages stands in place of PROMPT and --system")
        return "", []
    if prompt is None:
        raise PromptError("Missing argument 'PROMPT': give it, or --messages (see glassbox trace --help)")
    text = read_text(prompt)
    if not text:
        raise PromptError("the prompt is empty")
    return text, [] if system is None else [{"role": "system", "content": read_text(system)}]


class Interrupted(GlassboxError):
    """Ctrl-C, after what there is has been kept and shown."""

    exit_code = INTERRUPTED


def choose_policy(model: Model, given: Mapping[str, Any]) -> tuple[Policy, dict[str, str]]:
    """The policy, and where each value came from: flag, preset, model file or default."""
    from glassbox.policy.presets import PRESETS

    values, sources = dict(given), {"order" if name == "steps" else name: "flag" for name in given}
    if "preset" in given:
        name = f"preset {values['preset']}"
        sources = {**dict.fromkeys(PRESETS[values["preset"]].defaults, name), "order": name, **sources}
        return policy_of(values), sources
    for name, (key, fallback) in DEFAULTS.items():
        if name not in values and name in values.get("steps", DEFAULTS):
            in_file = model.metadata.get(key)
            values[name] = fallback if in_file is None else in_file
            sources[name] = "default" if in_file is None else "model file"
    return policy_of(values), sources


def run_trace(stream: Stream, live: Live | None) -> tuple[Run, bool]:
    """Generate, showing each step. Whatever leaves the loop ends the generation; Ctrl-C is told, the rest raised."""
    interrupted = False
    with stream:
        try:
            if live:
                live.head(stream.request)
                for step in stream.inherited:
                    live.step(step)
            for step in stream:
                if live:
                    live.step(step)
        except KeyboardInterrupt:
            interrupted = True
    return stream.run, interrupted
