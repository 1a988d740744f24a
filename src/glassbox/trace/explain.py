"""Why a token: where its prompt came from, what each layer preferred, who wrote that, what it read, what each policy
step did, and where the draw fell.

In: a run, a step, the model. Out: an `Explained`, plain values with one sentence on top. One prefill and one token
give all of it, and the hash of the recomputed logits proves that it is this run's.
But: the sentences are told.py's, the numbers of layers attribution.py's and inside.py's.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from glassbox.beam import Beams
from glassbox.choose import choose
from glassbox.errors import ParameterError
from glassbox.events import Step
from glassbox.generation import logits_hash
from glassbox.model.model import TransformerModel
from glassbox.policy.policy import Shaped
from glassbox.policy.step import whole
from glassbox.request import Request
from glassbox.text.tokenizer import Encoding
from glassbox.trace import attribution, inside, told
from glassbox.trace.again import Opened
from glassbox.trace.explained import Drawn, Explained, Source, Token, Way
from glassbox.trace.run import Run

EXCERPT = 60  # characters of a segment's text


def explain(run: Run, step: int, opened: Opened | None = None, *, against: int | None = None) -> Explained:
    """Everything about one generated token. against: the id to compare it with; the best other one when not given.

    Raises ParameterError (no such step, no such id, the chosen id itself), PromptError (the run has no ids).
    """
    with run.again(opened) as again:
        at = again.position(step)
        model, made = again.opened.model, run.steps[step]
        deep = model if isinstance(model, TransformerModel) else None
        points = {*attribution.points(deep.layers), *inside.points(deep.layers)} if deep else set()
        seen = again.observe(step, points | {"logits"})
        logits = seen["logits"][0]
        shaped = again.shaped(step, logits)
        other = _rival(shaped, made.id) if against is None else _against(against, made.id, model.vocab_size)
        with again.opened.engine.lock:  # the threads serve one at a time
            layers = inside.by_layer(deep, seen, made.id, other) if deep else ()
            found = attribution.attribute(deep, seen, logits, (made.id, other)) if deep else None
        read = inside.reading(seen, deep.layers, again.ids[: at + 1]) if deep else None
        proven = logits_hash(logits) == made.logits_hash
        ways, draw = _ways(shaped, made.id, other), _draw(run, made, shaped, proven)
        vocab = again.opened.tokenizer.vocab
    both = [Token(i, vocab.bytes_of(i), float(logits[i]), _p(shaped, i), shaped.raw_rank(i)) for i in (made.id, other)]
    ids = {v.top for v in layers} | {w.best for w in ways} | {t.id for t in both} | {shaped.raw.best}
    ids |= {i for i in (draw.below, draw.above) if i is not None} | {t.id for t in (read.tokens if read else ())}
    explained = Explained(
        run_id=run.run_id, model=run.model, step=step, position=made.position, sentence="", proven=proven,
        chosen=both[0], rival=both[1],
        sources=sources_of(run.request.encoding), layers=layers, attribution=found, reading=read, ways=ways, draw=draw,
        names={i: vocab.bytes_of(i) for i in sorted(ids)}, notes=_changed(run.request),
    )  # fmt: skip
    return told.with_words(explained)


def _changed(request: Request) -> tuple[str, ...]:
    """What was done to inner values, where something was."""
    if not request.interventions:
        return ()
    done = "; ".join(map(str, request.interventions))
    return (f"inner values were changed on the way ({done}): the parts need not sum to the logits",)


def sources_of(encoding: Encoding) -> tuple[Source, ...]:
    """Where each prompt token came from, consecutive ones together."""
    found, at = [], 0
    for index, group in groupby(encoding.segments):
        first, at = at, at + len(list(group))
        segment = encoding.segment_list[index]
        text = segment.text if len(segment.text) <= EXCERPT else segment.text[: EXCERPT - 1] + "…"
        found.append(Source(segment.origin, segment.role, first, at - 1, text))
    return tuple(found)


def _p(shaped: Shaped, token: int) -> float:
    return float(shaped.raw.probs(np.array([token]))[0])


def _rival(shaped: Shaped, chosen: int) -> int:
    """The best token but the chosen one; where there is no other, itself."""
    best = shaped.raw.ids_at(shaped.raw.ranking.first(2)).tolist()
    return next((int(i) for i in best if i != chosen), chosen)


def _against(token: int, chosen: int, vocab: int) -> int:
    allowed = f"another id than the chosen one, from 0 to {vocab - 1}"
    found = whole("against", token, 0, vocab - 1, allowed)
    if found == chosen:
        raise ParameterError("against", token, allowed)
    return found


def _ways(shaped: Shaped, chosen: int, rival: int) -> tuple[Way, ...]:
    pair, ways = np.array([chosen, rival]), []
    before = shaped.raw
    for row, after in zip(shaped.ledger, shaped.stages, strict=True):
        (c0, r0), (c1, r1) = before.probs(pair).tolist(), after.probs(pair).tolist()
        gone = before.positions(pair) >= 0
        gone &= after.positions(pair) < 0
        removed = tuple(name for name, out in zip(("chosen", "rival"), gone.tolist(), strict=True) if out)
        ways.append(Way(row.name, dict(row.params), row.alive_after, c0, c1, r0, r1, removed, after.best))
        before = after
    return tuple(ways)


def _draw(run: Run, made: Step, shaped: Shaped, proven: bool) -> Drawn:
    c, (below, above) = made.choice, _beside(shaped, made.id)
    if run.beams:
        return _searched(run.beams, made)
    seed, sequence, position = c.counter or (run.request.under(made.step)[1], run.request.sequence, made.position)
    again = choose(shaped, seed=seed, sequence=sequence, position=position)
    by = None
    if again.id != made.id or again.u != c.u:
        kind = "forced" if proven else "unknown"
    elif shaped.greedy:
        kind = "greedy"
    elif shaped.final.size == 1:
        kind, by = "alone", next(row.name for row in shaped.ledger if row.alive_after == 1)
    else:
        return Drawn("drawn", c.u, c.cdf_lo, c.cdf_hi, below, above, by, c.ties)
    return Drawn(kind, c.u, c.cdf_lo, c.cdf_hi, None, None, by, c.ties)


def _searched(beams: Beams, made: Step) -> Drawn:
    """Its row in the tree of the search, where that was kept whole."""
    way, c = beams.winner, made.choice
    if made.step >= len(way) or way[made.step].id != made.id:
        return Drawn("beam", None, c.cdf_lo, c.cdf_hi, None, None, None, c.ties)
    row = way[made.step]
    return Drawn("beam", None, c.cdf_lo, c.cdf_hi, None, None, None, c.ties, row.rank, row.score)


def _beside(shaped: Shaped, chosen: int) -> tuple[int | None, int | None]:
    """The ids before and after this one in the order of the draw."""
    final = shaped.final
    ids: list[int] = []
    for order in final.ranking.growing():
        ids = final.ids_at(order).tolist()
        if chosen in ids[:-1] or len(ids) == final.size:
            break
    if chosen not in ids:
        return None, None
    at = ids.index(chosen)
    return (ids[at - 1] if at else None), (ids[at + 1] if at + 1 < len(ids) else None)
