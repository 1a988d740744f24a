"""glassbox score: how likely a text is, token by token, and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from glassbox.cli.output import JsonOption, ModelOption, Out, console, load_model, print_json, read_file, read_text
from glassbox.errors import ParameterError, PromptError

if TYPE_CHECKING:
    from glassbox.score import Scored, ScoredToken

MOST, FIRST, WORST = 64, 20, 20  # tokens shown of a text: all up to MOST, else the first and the least likely
TOKEN = 24  # columns


def score(
    text: str = typer.Argument(None, help="The text. - reads it from standard input."),
    model: str = ModelOption,
    file: str = typer.Option(None, "--file", metavar="FILE", help="In place of TEXT: what this file holds."),
    ids: str = typer.Option(None, "--ids", metavar="ID,…", help="In place of TEXT: these ids, as they are."),
    context: int = typer.Option(None, "--context", metavar="N", help="At most N ids at once; default the model's."),
    stride: int = typer.Option(
        None, "--stride", metavar="S", help="A longer text: windows begin S ids apart; default half the context."
    ),
    as_json: bool = JsonOption,
) -> None:
    """Show how likely each token of TEXT is given the ones before it: logprob (nats), rank, perplexity."""
    given = [name for name, value in (("TEXT", text), ("--file", file), ("--ids", ids)) if value is not None]
    if len(given) != 1:
        raise PromptError(f"exactly one of TEXT, --file and --ids must be given; here: {', '.join(given) or 'none'}")
    listed = None if ids is None else _ids(ids)
    said = None if ids is not None else read_text(text) if file is None else read_file(file, "--file")
    if said == "":
        raise PromptError("the text is empty")
    found = load_model(model).score(said, ids=listed, context=context, stride=stride)
    if as_json:
        print_json(found.to_dict())
        return
    show(console(), found)


def _ids(text: str) -> list[int]:
    try:
        return [int(i) for i in text.split(",")]
    except ValueError:
        raise ParameterError("--ids", text, "of the form ID,…") from None


def show(out: Out, found: Scored) -> None:
    """A table of tokens, of many the first and the least likely, and the totals."""
    known = [t for t in found.tokens if t.logprob is not None]
    whole = len(found.tokens) <= MOST
    table(out, "", found.tokens if whole else found.tokens[:FIRST])
    if not whole:
        out.field("", f"… {len(found.tokens) - FIRST:,} more tokens (--json has all)", "")
        out.print()
        table(out, "the least likely", sorted(known, key=lambda t: (t.logprob, t.position))[:WORST])
    out.print()
    if len(found.windows) > 1:
        least = min(t.seen for t in found.tokens if t.position >= found.context)
        told = f"{len(found.windows):,} of up to {found.context:,} ids, beginning {found.stride:,} apart"
        told += f": from position {found.context:,} on, tokens were scored with {least:,} or more before them"
        out.field("windows  ", told, "")
    for text in found.warnings:
        out.field("  note: ", text, "yellow")
    out.field("scored   ", f"{len(known):,} of {len(found.tokens):,} tokens, {found.bytes:,} bytes", "")
    if found.perplexity is not None:
        told = f"{found.sum_logprob:.4f} in all, {found.sum_logprob / len(known):.4f} a token"
        out.field("logprob  ", f"{told} (perplexity {found.perplexity:.4f})", "")
    if found.bits_per_byte is not None:
        out.field("bits     ", f"{found.bits_per_byte:.4f} a byte", "")


def table(out: Out, title: str, tokens: Sequence[ScoredToken]) -> None:
    from glassbox.cli.show_text import padded, quoted

    out.row(f"{'at':>7} {'id':>7}  {'token':<{TOKEN}} {'logprob':>10} {'rank':>7}  {title}", "bold")
    for t in tokens:
        logprob = "-" if t.logprob is None else f"{t.logprob:.4f}"
        rank = "-" if t.rank is None else f"{t.rank:,}"
        out.row(f"{t.position:>7} {t.id:>7}  {padded(quoted(t.bytes, TOKEN), TOKEN)} {logprob:>10} {rank:>7}")
