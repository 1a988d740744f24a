"""glassbox trace: one generation, seen whole."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from glassbox.cli.output import JsonOption, ModelOption, StoreOption, load_model, note, open_store, print_json

if TYPE_CHECKING:
    from glassbox.api import Model
    from glassbox.policy.policy import Policy
    from glassbox.trace.store import Store

# parameter -> (key in a GGUF file, value when neither the file nor a flag says anything)
DEFAULTS: Mapping[str, tuple[str, float]] = {
    "temperature": ("general.sampling.temp", 0.8),
    "top_k": ("general.sampling.top_k", 0),
    "top_p": ("general.sampling.top_p", 0.95),
    "min_p": ("general.sampling.min_p", 0.0),
}


def trace(
    prompt: str = typer.Argument(help="What to say to the model. - reads it from standard input."),
    model: str = ModelOption,
    system: str = typer.Option(None, "--system", metavar="TEXT", help="A system message before the prompt."),
    raw: bool = typer.Option(False, "--raw", help="The prompt as it is, without the chat template."),
    temperature: float = typer.Option(None, "--temperature", metavar="T", help="0 is greedy."),
    top_k: int = typer.Option(None, "--top-k", metavar="K", help="Keep the K likeliest tokens; 0 is off."),
    top_p: float = typer.Option(None, "--top-p", metavar="P", help="Keep the smallest set of mass P; 1 is off."),
    min_p: float = typer.Option(
        None, "--min-p", metavar="P", help="Keep tokens at least P times as likely as the best."
    ),
    seed: int = typer.Option(None, "--seed", metavar="N", help="Drawn and shown when not given."),
    max_tokens: int = typer.Option(256, "--max-tokens", metavar="N", help="Stop after N tokens."),
    stop: list[str] = typer.Option([], "--stop", metavar="TEXT", help="Stop where the text reads so; may be repeated."),
    ignore_eos: bool = typer.Option(False, "--ignore-eos", help="Go on past the end-of-sequence token."),
    level: str = typer.Option("look", "--level", help="What the trace keeps: look, or ids (what replay needs)."),
    as_json: bool = JsonOption,
    store: str = StoreOption,
) -> int:
    """Generate from PROMPT and show every step: template, ids, each token's probabilities, policy and draw.

    Sampling parameters that are not given come from the model file where it has them; the output says which.
    """
    from glassbox.errors import ParameterError, PromptError
    from glassbox.policy.policy import Policy

    # All that can be wrong without a model is said before one is loaded.
    flags: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    given = {name: value for name, value in flags.items() if value is not None}
    Policy(**given)
    if level not in ("look", "ids"):
        raise ParameterError("level", level, "look or ids")
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise PromptError("the prompt is empty")
    with open_store(store) as opened:
        loaded = load_model(model)
        policy, sources = choose_policy(loaded, given)
        asked: dict[str, Any] = dict(
            policy=policy,
            sources=sources,
            seed=seed,
            max_tokens=max_tokens,
            stop=stop,
            ignore_eos=ignore_eos,
            level=level,
        )
        if raw or loaded.tokenizer.template is None:
            if system is not None:
                raise ParameterError("system", system, "left out: without a chat template there are no messages")
            asked["prompt"] = text
        else:
            head = [] if system is None else [{"role": "system", "content": system}]
            asked["messages"] = [*head, {"role": "user", "content": text}]
        return run_trace(loaded, asked, opened, as_json, plain=not raw and loaded.tokenizer.template is None)


def choose_policy(model: Model, given: Mapping[str, Any]) -> tuple[Policy, dict[str, str]]:
    """The policy, and where each value came from: flag, model file or default."""
    from glassbox.policy.policy import Policy

    values, sources = dict(given), dict.fromkeys(given, "flag")
    for name, (key, fallback) in DEFAULTS.items():
        if name not in values:
            in_file = model.metadata.get(key)
            values[name] = fallback if in_file is None else in_file
            sources[name] = "default" if in_file is None else "model file"
    return Policy(**values), sources


def run_trace(model: Model, asked: dict[str, Any], store: Store, as_json: bool, *, plain: bool) -> int:
    """Generate and print. Ctrl-C ends the generation, keeps what there is, and returns 130."""
    from glassbox.cli.render import Live

    live = None if as_json else Live(model)
    stream = model.stream(store=store, **asked)
    interrupted = False
    if live:
        if plain:
            live.note("This model has no chat template: the prompt goes in as it is.")
        live.head(stream.request)
    try:
        for step in stream:
            if live:
                live.step(step)
    except KeyboardInterrupt:
        interrupted = True
        stream.close()  # wherever the key was pressed, the generation ends here
    run = stream.run
    if as_json:
        print_json(run.to_dict())
    elif live:
        live.tail(run, store.path)
    if run.problem:
        note(f"glassbox: the trace is incomplete: {run.problem}")
    if interrupted:
        note(f"glassbox: interrupted; what was made is kept as run {run.run_id}")
    return 130 if interrupted else 0
