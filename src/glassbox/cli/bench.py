"""glassbox bench: how fast this machine is, with the trace off, at level ids and at level look, interleaved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from glassbox.cli.output import JsonOption, ModelOption, console, load_model, note, print_json
from glassbox.errors import ParameterError

if TYPE_CHECKING:
    from glassbox.bench import Result

PROMPT = 64  # tokens before those that are generated


def bench(
    model: str = ModelOption,
    tokens: int = typer.Option(64, "--tokens", metavar="N", min=2, help="Tokens to generate in each round."),
    rounds: int = typer.Option(5, "--rounds", metavar="N", min=1, help="Rounds; medians are shown."),
    as_json: bool = JsonOption,
) -> None:
    """Measure prefill and decode. Quote the medians, with nothing else running."""
    from glassbox.bench import measure
    from glassbox.cli.names import described, model_name

    loaded = load_model(model)
    if PROMPT + tokens > loaded.context:
        raise ParameterError("tokens", tokens, f"at most {loaded.context - PROMPT}: the context holds {loaded.context}")
    result = measure(loaded, tokens, rounds, note)
    if as_json:
        print_json(result.to_dict())
        return
    out = console()
    out.field("model    ", f"{model_name(model)}: {described(loaded)}", "")
    for line in lines(result):
        out.row(line)


def lines(r: Result) -> list[str]:
    """A result as people read it."""
    near = r.decode.get(64)
    rows = [f"machine  {r.machine}, {r.threads} threads, medians of {r.rounds} rounds"]
    rows += [f"prefill  {n:>5} tokens        {rate:>8.1f} tokens/s" for n, rate in r.prefill.items()]
    rows += [
        f"decode   {n:>5} before it     {rate:>8.1f} tokens/s, the forward pass alone" for n, rate in r.decode.items()
    ]
    rows += [
        f"decode   {n:>5} sequences     {rate:>8.1f} tokens/s together, whole pipeline" for n, rate in r.batch.items()
    ]
    for level, rate in r.trace.items():
        cost = "" if level == "off" else f", {r.trace_cost[level]:+.1%} time"
        rows.append(f"trace    {level:<5}               {rate:>8.1f} tokens/s, whole pipeline{cost}")
    if near and r.read_rate:
        moved = r.weight_bytes * near
        rows.append(
            f"memory   {r.weight_bytes / 1e6:.0f} MB of weights a token: {moved / 1e9:.1f} GB/s of the "
            f"{r.read_rate / 1e9:.1f} GB/s there are ({moved / r.read_rate:.0%})"
        )
    rows.append(f"peak     {r.peak_memory / 1e6:.0f} MB for {r.peak_tokens:,} tokens, process and all")
    rows.append(f"start    {r.cold_start:.2f} s from process start to first token")
    return rows
