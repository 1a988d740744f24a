"""glassbox bench: how fast this machine is, with the trace off, at level ids and at level look, interleaved."""

from __future__ import annotations

import typer

from glassbox.cli.output import JsonOption, ModelOption, console, load_model, note, print_json


def bench(
    model: str = ModelOption,
    tokens: int = typer.Option(64, "--tokens", metavar="N", min=2, help="Tokens to generate in each round."),
    rounds: int = typer.Option(5, "--rounds", metavar="N", min=1, help="Rounds; medians are shown."),
    as_json: bool = JsonOption,
) -> None:
    """Measure prefill and decode. Quote the medians, with nothing else running."""
    from glassbox.bench import measure

    loaded = load_model(model)
    result = measure(loaded, tokens, rounds, note)
    if as_json:
        print_json(result.to_dict())
        return
    out = console()
    out.print(f"{loaded!r}, {loaded.model.threads} threads")
    out.print(f"machine  {result.machine}")
    for n, per_second in result.prefill.items():
        out.print(f"prefill  {n:>5} tokens: {per_second:>8.1f} tokens/s")
    for level, per_second in result.decode.items():
        off = result.decode["off"]
        cost = "" if level == "off" else f" ({off / per_second - 1:+.1%} time)"
        out.print(f"decode   trace {level:<4} {per_second:>8.1f} tokens/s{cost}")
