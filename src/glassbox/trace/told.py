"""An explanation in one sentence, and what must be said beside it.

In: an `Explained` without words. Out: the same with them. Only what the numbers show is said: "led from layer 22" is
what the lens reads, "removed" what the ledger has, and where another model computed it, that comes first.
But: it computes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassbox.trace.explained import Drawn, Explained, Token, Way

NEAR = 0.01  # a draw so close to another token's interval is worth a word
REMAKING = ("guidance", "dola")  # they set the logits against others, so what they change is not only who is left
RULING = ("forced_ids", "allowed_ids", "grammar")  # they say what is possible, whatever the model prefers


def with_words(e: Explained) -> Explained:
    said = [_preference(e), *_policy(e), _choice(e)]
    sentence = "; ".join(said)
    if not e.proven:
        sentence = "not this run's numbers, another model gave them: " + sentence
    return replace(e, sentence=sentence, notes=(*e.notes, *_notes(e)))


def _preference(e: Explained) -> str:
    """Who the model preferred, and since which layer."""
    c, r = e.chosen, e.rival
    if c.rank == 0:
        tied = f", tied with {_name(r)}" if r.logit == c.logit and r.id != c.id else ""
        if e.led_from is None:
            return f"{_name(c)} was the model's favourite at {percent(c.p)}{tied}"
        return f"{_name(c)} led from {_layer(e.led_from)} on, in the end at {percent(c.p)}{tied}"
    best = e.ways[0].best
    first = f"{_name(r)} ({percent(r.p)}{_since(e)})" if best == r.id else _named(e, best)
    led = "" if e.led_last is None else f" (it last led at {_layer(e.led_last)})"
    return f"the model preferred {first}; {_name(c)} was its {_nth(c.rank)} choice at {percent(c.p)}{led}"


def _since(e: Explained) -> str:
    """From where on the rival led to the end."""
    led = list(takewhile(lambda v: v.rival_rank == 0, reversed(e.layers)))
    return f", leading from {_layer(led[-1].layer)} on" if led else ""


def _policy(e: Explained) -> list[str]:
    """What the policy did to the two, where it did something that mattered."""
    said = []
    for way in e.ways[1:]:
        if way.name in ("greedy", e.draw.by):  # what it did, the choice tells
            continue
        said += [f"{way.name} removed {_name(e.rival if who == 'rival' else e.chosen)}" for who in way.removed]
        if way.name in REMAKING:
            said.append(f"{way.name} took {_name(e.chosen)} from {percent(way.chosen_before)} to {percent(way.chosen)}")
    before = e.ways[0]
    for way in e.ways[1:]:
        if before.best != e.chosen.id == way.best and not way.removed and way.name not in REMAKING:
            said.append(f"{way.name} put {_name(e.chosen)} first, at {percent(way.chosen)}")
        before = way
    return said


def _choice(e: Explained) -> str:
    d = e.draw
    if d.kind == "forced":
        return "it was put there, not drawn"
    if d.kind == "unknown":
        return "what it was drawn from is not known"
    if d.kind == "greedy":
        tied = f", of {d.ties + 1} tied the lowest id" if d.ties else ""
        return f"greedy took the best{' that was left' if _ruled(e.ways) else ''}{tied}"
    if d.kind == "beam":
        return f"nothing was drawn: {searched(d)}"
    if d.kind == "alone" and d.by == "contrastive":
        return _contrasted(e)
    if d.kind == "alone":
        return f"{d.by} allowed nothing else" if d.by in RULING else f"{d.by} removed all others"
    assert d.u is not None
    gap, other = d.nearest or (1.0, e.chosen.id)
    near = f", {gap:.1g} from {_named(e, other)}" if gap < NEAR else ""
    return f"the draw {interval(d.u, d.lo, d.hi)}{near}"


def searched(d: Drawn) -> str:
    """How a beam search came to a token of its best hypothesis."""
    if d.rank is None or d.score is None:
        return "a beam search found it"
    return f"in the beam search it was the {_nth(d.rank)} candidate of its step, at score {d.score:.4f}"


def _contrasted(e: Explained) -> str:
    before, way = next((a, b) for a, b in pairwise(e.ways) if b.name == "contrastive")
    p, alike, score, k = (way.params[name] for name in ("p", "similarity", "score", "top_k"))
    among = f"the best of {min(int(k), before.alive)}"
    return f"contrastive took it, {among}: probability {percent(p)} against likeness {alike:.2f}, score {score:.4f}"


def _ruled(ways: tuple[Way, ...]) -> bool:
    return any(way.removed and way.name != "greedy" for way in ways[1:])


def _notes(e: Explained) -> list[str]:
    notes = []
    if not e.proven:
        notes.append("the recomputed logits do not have the recorded hash: the model, or how it was run, is another")
    ruled = [way.name for way in e.ways[1:] if way.name in RULING and way.alive < e.ways[0].alive]
    if ruled:
        notes.append(f"{', '.join(ruled)} ruled what was possible; the lens shows what the model would have preferred")
    remade = [way.name for way in e.ways[1:] if way.name in REMAKING]
    if remade:
        notes.append(f"{', '.join(remade)} set the logits against others; what is shown of layers is without that")
    notes += [
        f"mirostat kept what surprises at most {way.params['mu']:.3g} bits, by how the output so far did"
        for way in e.ways[1:]
        if way.name == "mirostat"
    ]
    if e.attribution and e.attribution.capped:
        notes.append(f"the parts sum to the logits before the cap of {e.attribution.capped:g}, which comes after them")
    if not e.layers:
        notes.append("this model has no layers to look into")
    return notes


def interval(u: float, lo: float, hi: float) -> str:
    """The draw and the interval it fell into, with as many digits as tell the three apart."""
    for digits in range(2, 17):
        a, b, c = (round(x, digits) for x in (lo, u, hi))
        if a <= b < c and (a < b or lo == u):
            break
    return f"{u:.{digits}f} fell in [{lo:.{digits}f}, {hi:.{digits}f})"


def percent(p: float) -> str:
    """A probability that never rounds to 0 or to 1 unless it is."""
    if 0 < p < 0.0005:
        return f"{p:.0e}"
    return f"{p:.1%}" if p == 1 or p < 0.9995 else ">99.9%"


def quoted(data: bytes) -> str:
    """A token's bytes in quotes; what does not print, and what is no UTF-8, as an escape."""
    text = data.decode("utf-8", "backslashreplace")
    return "'" + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text) + "'"


def _layer(layer: int) -> str:
    return "the embedding" if layer < 0 else f"layer {layer}"


def _name(token: Token) -> str:
    return quoted(token.bytes) if token.bytes else f"#{token.id}"


def _named(e: Explained, token: int) -> str:
    return quoted(e.names[token]) if e.names.get(token) else f"#{token}"


def _nth(rank: int) -> str:
    """Rank 1 is the 2nd."""
    n = rank + 1
    tail = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{tail}"
