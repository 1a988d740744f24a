"""Comparing what follows the logits: policy, draw, tokens and text, ending.

In: a pair of runs. Out: for each stage a `Found`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from glassbox.errors import GlassboxError
from glassbox.policy.policy import Policy
from glassbox.trace.apart import text_apart
from glassbox.trace.pair import Pair
from glassbox.trace.side import Side
from glassbox.trace.stage import Found, changed, many, named, unknown
from glassbox.trace.told import interval

SHOWN = 60  # characters of a parameter's value
MADE = ("rule", "hypotheses", "rows")  # of a beam search what it found; the rest was asked


def policy(pair: Pair) -> Found:
    """Its values and order; and, where those are the same, what each step did."""
    one, other = map(_filled, pair.both("policy"))
    values = changed(*({k: v for k, v in p.items() if k != "order"} for p in (one, other)))
    orders = [_running(p) for p in (one, other)]
    evidence: dict[str, Any] = {"values": values, "order": orders}
    effect = _effect(pair)
    evidence["effect"] = effect
    inner = pair.inner if values or orders[0] != orders[1] or not pair.same_logits else None
    if inner is not None and not isinstance(inner, str):
        evidence["rows"] = [{"step": r["step"], **r["final"]} for r in inner.rows]
    told = f"; at step {effect['step']} {effect['says']}" if effect and effect["comparable"] else ""
    if values or orders[0] != orders[1]:
        words = [f"{k} {_short(a)} against {_short(b)}" for k, (a, b) in values.items()]
        if not words:
            words = [" → ".join(orders[0]) + " against " + " → ".join(orders[1])]
        return Found(False, ", ".join(words) + told, evidence)
    if effect and pair.same_logits:
        return Found(False, f"the same policy did other things to the same logits{told}", evidence)
    return Found(True, "the same steps and values" + ("; the ledgers follow the logits" if effect else ""), evidence)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _filled(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """With what is not said at its neutral value, as far as this is a policy of ours."""
    try:
        return Policy.from_dict(values).to_dict()
    except (GlassboxError, TypeError, ValueError):
        return values


def _running(values: Mapping[str, Any]) -> list[str]:
    """The steps that do something, in order, as far as this is a policy of ours."""
    try:
        made = Policy.from_dict(values)
    except (GlassboxError, TypeError, ValueError):
        return [str(name) for name in values.get("order") or ()]
    return [name for name in made.order if made.runs(name)]


def _effect(pair: Pair) -> dict[str, Any] | None:
    """The first aligned step whose ledgers differ, the first row that does, and who was removed in one of them only;
    comparable: where the logits are the same, so that it was the policy that did it."""
    for i in range(pair.aligned):
        x, y = (side.steps[i].get("ledger") for side in pair.sides)
        if not x or not y or x == y:
            continue
        rows = [[(r.get("name"), r.get("alive_after")) for r in ledger] for ledger in (x, y)]
        at = next((k for k, (r, s) in enumerate(zip(x, y, strict=False)) if r != s), min(len(x), len(y)))
        gone = [_removed(side.steps[i]) for side in pair.sides]
        only = [_only(pair.a, *gone), _only(pair.b, *reversed(gone))] if not pair.by_bytes else [{}, {}]
        words = [
            f"{by} removed {token} in {side.name} only"
            for side, of in zip(pair.sides, only, strict=True)
            for token, by in list(of.items())[:1]
        ]
        says = " and ".join(words) or f"row {at} of the ledger differs"
        told = {"step": i, "row": at, "removed_in_one": only, "ledgers": rows, "says": says}
        return told | {"comparable": pair.hashes[i] is not False}
    return None


def _only(side: Side, mine: Mapping[int, str], other: Mapping[int, str]) -> dict[str, str]:
    return {named(side, token): by for token, by in mine.items() if token not in other}


def _removed(step: Mapping[str, Any]) -> dict[int, str]:
    """Who was removed by which row, as far as the trace lists them: likeliest first."""
    listed = {c["id"]: c["removed_by"] for c in step.get("candidates") or () if c.get("removed_by")}
    for row in step.get("ledger") or ():
        for token in row.get("removed_ids") or ():
            listed.setdefault(token, row.get("name"))
    return listed


def draw(pair: Pair) -> Found:
    """Of numbers that were drawn; or of the beam searches that ran instead."""
    if any(pair.both("beams")):
        silent = [side.name for side in pair.sides if "beams" not in side.data]
        return unknown(f"{silent[0]} does not say whether it was searched") if silent else _search(*pair.both("beams"))
    steps = list(zip(pair.a.steps, pair.b.steps, strict=False))[: pair.aligned]
    seeds, us = pair.both("seed"), [(x.get("u"), y.get("u")) for x, y in steps]
    evidence: dict[str, Any] = {"seeds": list(seeds), "u": us}
    if not steps:
        return unknown("there is no step that both have", evidence)
    silent = [side.name for side, of in zip(pair.sides, zip(*steps, strict=True), strict=True) if "u" not in of[0]]
    if silent:
        return unknown(f"the steps of {' and '.join(silent)} have no u", evidence)
    at = next((i for i, (x, y) in enumerate(us) if x != y), None)
    if at is None:
        return Found(True, "nothing was drawn" if us[0] == (None, None) else "the same numbers", evidence)
    evidence |= {"step": at, "interval": [[s.get("cdf_lo"), s.get("cdf_hi")] for s in steps[at]]}
    told = [_drawn(step) for step in steps[at]]
    return Found(False, f"at step {at} {_why_other_draw(pair, at)}: A {told[0]}, B {told[1]}", evidence)


def _search(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> Found:
    """What was asked of both searches, then their candidates in order."""
    if not one or not other:
        return Found(False, f"{'A' if one else 'B'} is of a beam search, {'B' if one else 'A'} is not")
    asked = changed(*({k: v for k, v in b.items() if k not in MADE} for b in (one, other)))
    evidence: dict[str, Any] = {"beams": asked}
    rows = [b.get("rows") for b in (one, other)]
    if not asked and None in rows:
        return unknown("the candidates of the beam searches are not known", evidence)
    pairs = enumerate(zip_longest(*(r or () for r in rows)))
    at, both = next(((i, pair) for i, pair in pairs if pair[0] != pair[1]), (None, None))
    told = ""
    if both is not None:
        step = next(row.get("step") for row in both if row)
        evidence |= {"candidate": at, "step": step, "rows": list(both)}
        told = f"at step {step} A has {_candidate(both[0])}, B {_candidate(both[1])}"
    words = [f"{k} {_short(a)} against {_short(b)}" for k, (a, b) in asked.items()]
    if words or told:
        return Found(False, "; ".join(filter(None, [", ".join(words), told])), evidence)
    return Found(
        True, f"nothing was drawn: the same {many(len(rows[0] or ()), 'candidate')} of a beam search", evidence
    )


def _candidate(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "no such candidate"
    parent = "the prompt" if row.get("parent") is None else f"beam {row['parent']}"
    return _short(f"{row.get('id')} after {parent}, score {row.get('score')}, {row.get('state')}")


def _drawn(step: Mapping[str, Any]) -> str:
    u, lo, hi = (step.get(name) for name in ("u", "cdf_lo", "cdf_hi"))
    if u is None:
        return "drew nothing"
    return f"{u}" if lo is None or hi is None else interval(u, lo, hi)


def _why_other_draw(pair: Pair, at: int) -> str:
    for name in ("seed", "sequence"):
        one, other = pair.both(name)
        if one != other:
            return f"{name} {one} against {other}"
    places = [side.steps[at].get("position") for side in pair.sides]
    if None not in places and places[0] != places[1]:
        return f"the same seed at another position, {places[0]} against {places[1]}"
    return "another number"


def text(pair: Pair) -> Found:
    """The tokens that came out, and what they say."""
    counts, at = [len(side.steps) for side in pair.sides], pair.diverges
    texts = pair.both("text")
    evidence: dict[str, Any] = {"tokens": counts, "step": at}
    if None not in texts:
        evidence |= {"text": list(texts), "differs": text_apart(*texts)}
    lacking = [side.name for side in pair.sides if side.lacks_steps]
    nameless = at is not None and None in (pair.tokens[0][at], pair.tokens[1][at])
    if nameless or (lacking and at is None):
        if None in texts:
            why = f"the ids of {' and '.join(lacking)} are" if lacking else "the bytes of ids of two vocabularies are"
            return unknown(f"{why} not known, nor both texts", evidence)
        same = texts[0] == texts[1]
        return Found(same, f"the texts are {'the same' if same else 'different'}", evidence)
    if at is not None:
        one, other = (named(side, side.steps[at]["id"]) + _put(side, at) for side in pair.sides)
        return Found(False, f"from step {at} on: {one} against {other}".rstrip(","), evidence)
    if counts[0] != counts[1]:
        says = f"the same {many(min(counts), 'token')}, then one goes on: {counts[0]} against {counts[1]}"
        return Found(False, says, evidence)
    if None not in texts and texts[0] != texts[1]:
        return Found(False, "the same tokens, but another text came of them", evidence)
    kept = "" if None not in texts else ", the text was not kept"
    return Found(True, f"the same {many(counts[0], 'token')}{kept}", evidence)


def _put(side: Side, at: int) -> str:
    """Of a branch: that its token was not chosen."""
    return ", put there," if at in (side.get("forced") or ()) else ""


def ending(pair: Pair) -> Found:
    reasons, stops = pair.both("finish_reason"), pair.both("stop_reason")
    evidence = {"finish_reason": list(reasons), "stop_reason": list(stops)}
    shown = [_why_ended(*both) for both in zip(reasons, stops, strict=True)]
    kept = [] if None in stops else [key for key in stops[0] if key in stops[1]]  # what ended it is not always kept
    if reasons[0] != reasons[1] or any(stops[0][key] != stops[1][key] for key in kept):
        return Found(False, f"{shown[0]} against {shown[1]}", evidence)
    return Found(True, shown[0], evidence)


def _why_ended(reason: str, stop: Mapping[str, Any] | None) -> str:
    details = [] if stop is None else [str(v) if k != "text" else repr(v) for k, v in stop.items() if v != reason]
    return f"{reason} ({' '.join(details)})" if details else reason
