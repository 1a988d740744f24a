"""Comparing what leads to the logits: template, prompt, ids, embedding, layers, and the logits themselves.

In: a pair of runs. Out: for each stage a `Found`.
But: where no model is at hand, logits are compared as far as the traces list them, and inner values not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from glassbox.trace.apart import candidates_apart, text_apart
from glassbox.trace.pair import Inner, Pair
from glassbox.trace.side import Side
from glassbox.trace.stage import Found, all_of, changed, many, named, unknown

CLOSE = 1e-3  # nats and probability: what counts as the same where there is no hash to prove it
SEGMENTS = 4  # that differ are listed
AROUND = 3  # ids on each side of the first that differs


def template(pair: Pair) -> Found:
    """By its hash, and what it was given beside the messages."""
    one, other = pair.both("provenance.template_sha256")
    chats = [dict(side.get("chat") or {}) for side in pair.sides]
    evidence: dict[str, Any] = {"sha256": [one, other], "clock": list(pair.both("provenance.clock"))}
    if one != other:
        sources = [_template_source(side) for side in pair.sides]
        if None not in sources:
            evidence["text"] = text_apart(str(sources[0]), str(sources[1]))
        missing = [side.name for side, sha in zip(pair.sides, (one, other), strict=True) if sha is None]
        says = f"{missing[0]} went through no chat template" if missing else "the chat templates have different hashes"
        return Found(False, says, evidence)
    lost = [side.name for side in pair.sides if side.get("retain") not in (None, "text")]
    if len(lost) == 1 and any(chats):  # of a prompt without a template nothing is lost
        return unknown(f"the hash is the same, and what {lost[0]} gave the template was not kept", evidence)
    given = changed(*({k: v for k, v in c.items() if k not in ("source", "template")} for c in chats))
    if given:
        return Found(False, f"the template was given other {', '.join(given)}", evidence | {"given": given})
    return Found(True, "no chat template" if one is None else f"the same hash, {one[:12]}…", evidence)


def _template_source(side: Side) -> str | None:
    given = side.get("chat.source")
    if given is not None:
        return str(given)
    templates = side.run.opened.tokenizer.templates if side.run is not None and side.run.opened is not None else None
    return templates.sources.get(side.get("chat.template") or "default") if templates else None


def prompt(pair: Pair) -> Found:
    one, other = pair.both("prompt_text")
    where = text_apart(one, other)
    if where is None:
        return Found(True, f"the same {many(len(one), 'character')}")
    x, y = ([(s.get("origin"), s.get("text")) for s in side.get("segments") or ()] for side in pair.sides)
    blocks = SequenceMatcher(None, x, y, autojunk=False).get_opcodes()
    segments = [{"a": x[i:j], "b": y[k:m]} for kind, i, j, k, m in blocks if kind != "equal"][:SEGMENTS]
    origin = next((s[0] for block in segments for s in (*block["a"], *block["b"])), None)
    whose = f", in {origin}" if origin else ""
    says = f"the texts differ from character {where['character']} on{whose}: {where['a']!r} against {where['b']!r}"
    return Found(False, says, where | {"segments": segments})


def ids(pair: Pair) -> Found:
    tokens: list[Any] = [side.prompt_bytes() if pair.by_bytes else list(side.ids) for side in pair.sides]
    for side, found in zip(pair.sides, tokens, strict=True):
        if not found or len(found) != len(side.ids):
            lacking = "no prompt_ids" if not side.ids else "another tokenizer, and the bytes of its ids are not known"
            return unknown(f"{side.name} has {lacking}")
    counts = [len(t) for t in tokens]
    at = next((i for i, (x, y) in enumerate(zip(*tokens, strict=False)) if x != y), None)
    if at is None and counts[0] == counts[1]:
        how = "the same bytes token by token, under different tokenizers" if pair.by_bytes else "the same"
        return Found(True, f"{many(counts[0], 'id')}, {how}")
    at = min(counts) if at is None else at
    texts = pair.both("prompt_text")
    shown = [[named(side, i) for i in side.ids[max(0, at - AROUND) : at + AROUND + 1]] for side in pair.sides]
    why = "the text is the same, so the tokenizers differ" if None not in texts and texts[0] == texts[1] else ""
    first = [named(side, side.ids[at]) if at < len(side.ids) else "the end" for side in pair.sides]
    says = f"they differ from position {at} on: {first[0]} against {first[1]}" + (f"; {why}" if why else "")
    evidence = {"position": at, "counts": counts, "a": shown[0], "b": shown[1], "same_text": bool(why)}
    return Found(False, says, evidence | {"tokenizer_sha256": list(pair.both("provenance.tokenizer_sha256"))})


def _inner(pair: Pair) -> Inner | Found:
    """The inner values of both; or what can be said without them."""
    if implied := _implied(pair):
        return implied
    return unknown(pair.inner) if isinstance(pair.inner, str) else pair.inner


def embedding(pair: Pair) -> Found:
    inner = _inner(pair)
    if isinstance(inner, Found):
        return inner
    if inner.embedding is None:
        return unknown(inner.unlike)
    evidence = inner.embedding | {"step": inner.step}
    where = f"of the token before step {inner.step}"
    if inner.embedding["equal"]:
        return Found(True, f"the same to the bit, {where}", evidence)
    says = f"the embedding {where} differs: {_distance(inner.embedding)}"
    return Found(False, says + _done(pair, evidence), evidence)


def layers(pair: Pair) -> Found:
    inner = _inner(pair)
    if isinstance(inner, Found):
        return inner
    evidence = {"step": inner.step, "first_point": inner.first_point, "layers": inner.layers, "notes": inner.notes}
    if inner.embedding is None:
        return unknown(inner.unlike, evidence)
    if not inner.layers:
        return Found(True, "the models have no layers", evidence)
    first = next((v for v in inner.layers if not v["equal"]), None)
    if first is None:
        return Found(
            True, f"{all_of(len(inner.layers), 'layer')} the same to the bit, before step {inner.step}", evidence
        )
    last = inner.layers[-1]
    end = f"; behind the last {_distance(last)}" if last is not first else ""
    says = f"from layer {first['layer']} on ({inner.first_point} first): {_distance(first)}{end}"
    return Found(False, says + _done(pair, evidence), evidence)


def _implied(pair: Pair) -> Found | None:
    """Equal logits of the same model came of equal hidden states."""
    one, other = pair.both("provenance.model_sha256")
    if pair.same_logits and one is not None and one == other:
        return Found(True, f"not looked into: the logits of {all_of(pair.aligned, 'step')} have the same hash")
    return None


def _done(pair: Pair, evidence: dict[str, Any]) -> str:
    """What was done to inner values in one of them only, or in another way; it is put beside the evidence."""
    done = [[str(one) for one in side.run.request.interventions] if side.run else [] for side in pair.sides]
    if done[0] == done[1]:
        return ""
    evidence["interventions"] = done
    return "; inner values were changed: " + " against ".join(", ".join(d) or "nothing" for d in done)


def _distance(v: Mapping[str, Any]) -> str:
    far = "from nothing" if v["distance"] is None else f"{v['distance']:.1e} of its length away"
    return far + ("" if v["cosine"] is None else f", cosine {v['cosine']:.6f}")


def logits(pair: Pair) -> Found:
    if not pair.aligned:
        return unknown("there is no step that both have")
    made = _made_with(pair)
    if pair.same_logits:
        return Found(True, f"the same hash at {all_of(pair.aligned, 'step')}", made)
    at = next(i for i, same in enumerate(pair.hashes) if not same)
    inner = pair.inner
    if not isinstance(inner, str):
        row = inner.rows[at] if at < len(inner.rows) else inner.rows[-1]
        if all(r["only_shift"] or pair.hashes[r["step"]] for r in inner.rows):
            says = f"the same but for a constant, {row['shift']:+g}, which changes no probability"
            return Found(True, says, made | {"step": at, "rows": inner.rows})
        shift = f", beside a shift of {row['shift']:+.2g}" if abs(row["shift"]) > row["largest"] else ""
        kl = "infinite" if row["raw"]["kl"] is None else f"{row['raw']['kl']:.2g}"
        says = f"from step {at} on: at most {row['largest']:.2g} apart{shift}, KL {kl}"
        says += _done(pair, made)
        return Found(False, says, made | {"step": at, "rows": inner.rows, "notes": inner.notes})
    return _listed_logits(pair, at, made | {"not_recomputed": inner})


def _listed_logits(pair: Pair, at: int, evidence: dict[str, Any]) -> Found:
    """From what the traces list: the hash, the chosen token's logprob, the candidates."""
    known, worst = 0, 0.0
    for i in range(pair.aligned):
        x, y = pair.a.steps[i], pair.b.steps[i]
        if pair.hashes[i]:
            known += 1
            continue
        apart = {} if pair.by_bytes else candidates_apart(_candidates(x), _candidates(y))
        gaps = [apart["largest_p"]] if "largest_p" in apart else []
        same_token = pair.diverges is None or i < pair.diverges
        if same_token and None not in (x.get("logprob_raw"), y.get("logprob_raw")):
            gaps.append(abs(y["logprob_raw"] - x["logprob_raw"]))
        if apart.get("only_shift"):
            evidence["shift"] = apart["shift"]
            known += 1
            continue
        if not gaps and pair.hashes[i] is None:
            continue
        known, worst = known + 1, max([worst, *gaps])
        if pair.hashes[i] is False or max(gaps) > CLOSE:
            how = f", by {max(gaps):.2g} in what is listed" if gaps else ""
            told = "their hashes differ" if pair.hashes[i] is False else "what is listed differs"
            return Found(False, f"from step {i} on: {told}{how}", evidence | {"step": i, "listed": apart})
    if not known:
        return unknown("neither hashes nor logprobs of the same tokens are in both", evidence)
    if "shift" in evidence:
        return Found(True, f"what is listed is the same but for a constant, {evidence['shift']:+g}", evidence)
    says = f"no hash to prove it, but what {many(known, 'step')} list is within {worst:.1g}"
    return Found(True, says, evidence | {"largest": worst, "step": at})


def _made_with(pair: Pair) -> dict[str, Any]:
    names = ("model_sha256", "engine", "glassbox", "threads", "kv")
    return {"made_with": {name: list(pair.both(f"provenance.{name}")) for name in names}}


def _candidates(step: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {c["id"]: c for c in step.get("candidates") or () if isinstance(c.get("id"), int)}
