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
    console,
    load_model,
    note,
    open_store,
    print_json,
    read_text,
)
from glassbox.cli.policy import policy_of, values_of
from glassbox.errors import GlassboxError, ParameterError, PromptError

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.beam import Beam
    from glassbox.cli.render import Live
    from glassbox.policy.policy import Policy
    from glassbox.stream import Stream
    from glassbox.trace.run import Run
    from glassbox.trace.store import Store

EARLY: Mapping[str, bool | str] = {"no": False, "yes": True, "never": "never"}
NO_TEMPLATE = "this model has no chat template: the prompt goes in as it is"


def trace(
    prompt: str = typer.Argument(
        None, metavar="PROMPT", help="What to say to the model. - reads it from standard input."
    ),
    model: str = ModelOption,
    system: str = typer.Option(None, "--system", metavar="TEXT", help="A system message before the prompt."),
    messages: str = MessagesOption,
    continue_final: bool = ContinueOption,
    tools: str = ToolsOption,
    template: str = TemplateOption,
    template_arg: list[str] = TemplateArgOption,
    raw: bool = typer.Option(False, "--raw", help="The prompt as it is, without the chat template."),
    negative_prompt: str = typer.Option(
        None, "--negative-prompt", metavar="TEXT", help="As --negative-ids, in words; see --guidance-scale."
    ),
    seed: int = typer.Option(None, "--seed", metavar="N", help="Drawn and shown when not given."),
    max_tokens: int = typer.Option(256, "--max-tokens", metavar="N", help="Stop after N tokens."),
    stop: list[str] = typer.Option([], "--stop", metavar="TEXT", help="Stop where the text reads so; may be repeated."),
    time_limit: float = typer.Option(None, "--time-limit", metavar="SECONDS", help="Stop after so long."),
    include_stop: bool = typer.Option(False, "--include-stop", help="The text keeps the stop that ended it."),
    n: int = typer.Option(1, "--n", metavar="N", help="So many texts at once, under one seed."),
    beams: int = typer.Option(None, "--beams", metavar="N", help="Search with N beams instead of drawing."),
    length_penalty: float = typer.Option(None, "--length-penalty", metavar="P", help="Above 0 favours long texts."),
    early_stopping: str = typer.Option(None, "--early-stopping", metavar="HOW", help="no, yes or never."),
    beam_groups: int = typer.Option(None, "--beam-groups", metavar="G", help="Beams in G groups that differ."),
    diversity_penalty: float = typer.Option(None, "--diversity-penalty", metavar="D", help="How much they differ."),
    returned: int = typer.Option(None, "--returned", metavar="R", help="Show the best R hypotheses."),
    ignore_eos: bool = typer.Option(False, "--ignore-eos", help="Go on past the end-of-sequence token."),
    speculate: bool = typer.Option(False, "--speculate", help="Check guessed ids in one pass; changes no token."),
    no_file_defaults: bool = typer.Option(
        False, "--no-file-defaults", help="Leave aside what the model file says about sampling."
    ),
    no_reuse: bool = typer.Option(False, "--no-reuse", help="Compute all of the prompt, whatever is cached."),
    ablate: list[str] = AblateOption,
    scale: list[str] = ScaleOption,
    replace: list[str] = ReplaceOption,
    positions: str = PositionsOption,
    kv: str = typer.Option("f32", "--kv", metavar="KIND", help="How keys and values are kept: f32 (exact), f16 or q8."),
    truncate: bool = typer.Option(
        False, "--truncate", help="Leave out the oldest messages, or tokens, of a prompt that is too long."
    ),
    prompt_logprobs: bool = typer.Option(
        False, "--prompt-logprobs", help="How likely each token of the prompt was; computes all of it."
    ),
    level: str = typer.Option(
        "look", "--level", metavar="LEVEL", help="What is recorded: look (all), or ids (no ledger, no candidates)."
    ),
    retain: str = typer.Option(
        "text", "--retain", metavar="WHAT", help="What of the content is recorded: text (all), ids, or none."
    ),
    as_json: bool = JsonOption,
    store: str = StoreOption,
    flags: Any = None,
) -> None:
    """Generate from PROMPT and show every step: template, ids, each token's probabilities, policy and draw.

    Sampling parameters that are not given come from the model file where it has them; the output says which.
    """
    from glassbox.cache.pages import KINDS
    from glassbox.cli.beams import beams_of_run
    from glassbox.cli.names import model_name
    from glassbox.cli.render import Live

    # All that can be wrong without a model is said before one is loaded.
    policy_of(flags)
    kept = ("retain", retain, ("text", "ids", "none"))
    for name, value, allowed in (("level", level, ("look", "ids")), kept, ("kv", kv, tuple(KINDS))):
        if value not in allowed:
            raise ParameterError(name, value, f"one of {', '.join(allowed)}")
    if negative_prompt is not None and "negative_ids" in flags:
        raise ParameterError("negative_prompt", negative_prompt, "left out where negative_ids is given")
    if negative_prompt is not None and policy_of(flags).guidance_scale == 1.0:
        raise ParameterError("negative_prompt", negative_prompt, "left out: guidance_scale is 1, which is off")
    if raw and system is not None:
        raise PromptError("--system needs the chat template, which --raw leaves out", param="system")
    chat = chat_flags(messages, tools, template, template_arg, continue_final)
    if raw and chat:
        raise PromptError("--raw leaves out the chat template, which the other flags are for")
    beam = beam_of(
        beams, n, length_penalty=length_penalty, early_stopping=early_stopping, groups=beam_groups,
        diversity_penalty=diversity_penalty, returned=returned,
    )  # fmt: skip
    text, head = said(prompt, system, messages is not None)
    asked: dict[str, Any] = dict(
        seed=seed, max_tokens=max_tokens, stop=stop, time_limit=time_limit, ignore_eos=ignore_eos, speculate=speculate,
        reuse=not no_reuse, level=level, retain=retain, include_stop=include_stop, prompt_logprobs=prompt_logprobs,
        truncate=truncate, interventions=interventions(ablate, scale, replace, positions),
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
        if negative_prompt is not None:
            flags = {**flags, "negative_ids": negative_ids(loaded, negative_prompt)}
        use_file = not no_file_defaults
        asked["policy"], asked["sources"] = (
            choose_policy(loaded, flags, use_file) if beam is None else (policy_of(flags), {})
        )
        if n != 1:
            many(loaded, n, asked | {"store": opened}, as_json)
            return
        stream = loaded.stream(store=opened, beam=beam, **asked)
        live = None if as_json else Live(loaded, "" if raw or not plain else NO_TEMPLATE)
        run, interrupted = run_trace(stream, live)
        if live and run.beams:
            beams_of_run(live.out, run, loaded.tokenizer.vocab)
        told(run, live, opened, store is not None)
    if interrupted:
        raise Interrupted(f"interrupted; what was made is kept as run {run.run_id}")


def told(run: Run, live: Live | None, store: Store, named: bool) -> None:
    """The end of what is shown live; else all of it as JSON. named: whether the store was."""
    if live:
        live.tail(run, store, named)
        return
    print_json(run.to_dict())
    if run.problem:
        note(f"glassbox: the trace is {run.problem}")


def beam_of(width: int | None, n: int, **flags: Any) -> Beam | None:
    """The beam search that the flags ask for. Raises ParameterError."""
    from glassbox.beam import Beam

    given = {name: value for name, value in flags.items() if value is not None}
    if width is None:
        if given:
            name, value = next(iter(given.items()))
            raise ParameterError(name, value, "given with --beams only")
        return None
    if n != 1:
        raise ParameterError("n", n, "left out with --beams")
    if "early_stopping" in given:
        if given["early_stopping"] not in EARLY:
            raise ParameterError("early_stopping", given["early_stopping"], f"one of {', '.join(EARLY)}")
        given["early_stopping"] = EARLY[given["early_stopping"]]
    return Beam(width, **given)


def many(model: Model, n: int, asked: dict[str, Any], as_json: bool) -> None:
    """Several texts at once: each with its number, its end and the sum of its log-probabilities."""
    from glassbox.cli import samples

    streams = model.sample_streams(n=n, **asked)
    out = None if as_json else console()
    if out:
        samples.head(out, streams[0], model)
    interrupted = samples.run(streams, out)
    runs = [stream.run for stream in streams]
    if out:
        samples.show(out, runs)
    else:
        print_json({"samples": [run.to_dict() for run in runs]})
    if interrupted:
        raise Interrupted(f"interrupted; what was made is kept as runs {', '.join(run.run_id for run in runs)}")


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


def choose_policy(model: Model, given: Mapping[str, Any], from_file: bool) -> tuple[Policy, dict[str, str]]:
    """The policy, and where each value came from: flag, preset, model file or default."""
    from glassbox.policy.presets import PRESETS

    if "preset" not in given:
        return model.default_policy(values_of(given), from_file=from_file)
    name = f"preset {given['preset']}"
    made, brought = policy_of(given), PRESETS[given["preset"]]
    own = dict.fromkeys((*brought.parameters, *brought.fixed), "default")
    own |= dict.fromkeys((*brought.defaults, *brought.fixed, "order"), name)
    return made, own | dict.fromkeys(values_of(given), "flag")


def negative_ids(model: Model, text: str) -> tuple[int, ...]:
    """The ids of a negative prompt. Raises PromptError for one that has none."""
    ids = model.encode(text).ids
    if not ids:
        raise PromptError("the negative prompt has no ids", param="negative_prompt")
    return ids


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
