"""A beam search in a terminal: its hypotheses with what their scores are made of, and the candidates of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassbox.cli.names import Named
from glassbox.cli.output import Out
from glassbox.cli.show_text import inert, padded, quoted

if TYPE_CHECKING:
    from glassbox.trace.run import Run

TOKEN = 16  # columns of a token's text
TREE = 10  # columns of a live beam's token in the tree; two more name the beam it continues


def beams_of_run(out: Out, run: Run, vocab: Named) -> None:
    """The search in brief: how it was asked, who was live after each step, and what was found."""
    search = run.beams
    if search is None:
        return
    beam = search.beam
    out.print()
    groups = f" in {beam.groups} groups, diversity penalty {beam.diversity_penalty:g}" if beam.groups > 1 else ""
    early = beam.early_stopping if isinstance(beam.early_stopping, str) else "yes" if beam.early_stopping else "no"
    out.field("beams    ", f"{beam.width}{groups}, early stopping {early}", "")
    out.field("score    ", f"sum / tokens ** {beam.length_penalty:g}; the token that ends it counts in both", "")
    out.print()
    out.row(f"{'step':>4}  live beams: token, and the beam it continues", "bold")
    for step in range(search.steps):
        rows = search.at(step)
        cells = [_cell(quoted(vocab.bytes_of(r.id), TREE), r.parent) for r in rows if r.state == "live"]
        ended = sum(r.state == "finished" for r in rows)
        out.row(f"{step:>4}  {'  '.join(cells)}" + (f"  ({ended} ended)" if ended else ""))
    out.print()
    out.row(f"{'score':>9} {'sum':>9} {'tokens':>6}  hypothesis", "bold")
    for h in search.hypotheses:
        state = "" if h.finished else " (cut off)"
        text = inert(h.text) if run.retain == "text" else " ".join(map(str, h.ids))
        out.row(f"{h.score:>9.4f} {h.total:>9.4f} {len(h.ids):>6}  {text}{state}")


def _cell(token: str, parent: int | None) -> str:
    return padded(f"{token}{'' if parent is None else f'<{parent}'}", TREE + 2)


def beams_at(out: Out, run: Run, at: int, vocab: Named) -> None:
    """Every candidate of one step: whom it continues, and what became of it."""
    search = run.beams
    if search is None:
        return
    out.print()
    out.row(f"  {'beam':>4} {'from':>4}  {'candidate':<{TOKEN + 7}} {'logprob':>9} {'sum':>9}  state", "bold")
    for r in search.at(at):
        place, parent = ("-" if x is None else str(x) for x in (r.beam, r.parent))
        name = padded(f"{r.id} {quoted(vocab.bytes_of(r.id), TOKEN)}", TOKEN + 7)
        out.row(f"  {place:>4} {parent:>4}  {name} {r.logprob:>9.4f} {r.score:>9.4f}  {r.state}")
