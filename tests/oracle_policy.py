"""The policy as anybody would write it, slowly: Python floats and a full sort. The tests' oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

TOP_P_TOLERANCE = 1e-9  # stated again on purpose: a changed tolerance must show
MIN_P_TOLERANCE = 2.0**-24


def ranked(logits: Sequence[float]) -> list[int]:
    """Ids that are possible, by descending logit, ties by lower id."""
    return sorted((i for i, x in enumerate(logits) if x > -math.inf), key=lambda i: (-logits[i], i))


def softmax(logits: Sequence[float], alive: Sequence[int], temperature: float = 1.0) -> dict[int, float]:
    """p of the ids alive (in ranking order), exactly summed."""
    top = logits[alive[0]]
    weights = {i: math.exp((logits[i] - top) / temperature) for i in alive}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in weights.items()}


def entropy(p: dict[int, float]) -> float:
    return -math.fsum(x * math.log(x) for x in p.values() if x > 0)


def shape(logits: Sequence[float], steps: Sequence[tuple[str, float]]) -> list[dict[int, float]]:
    """The distribution before the first step and after each one; ids that are gone are absent."""
    alive, temperature = ranked(logits), 1.0
    p = softmax(logits, alive)
    stages = [p]
    for name, value in steps:
        if name == "temperature" and value == 0:
            alive = alive[:1]
        elif name == "temperature":
            temperature *= value
        elif name == "top_k" and value > 0:
            alive = alive[: int(value)]
        elif name == "top_p" and value < 1:
            alive = _nucleus(alive, p, value)
        elif name == "min_p" and value > 0:
            bound = math.log(value) * (1 + MIN_P_TOLERANCE)
            alive = [i for i in alive if (logits[i] - logits[alive[0]]) / temperature >= bound]
        p = softmax(logits, alive, temperature)
        stages.append(p)
    return stages


def _nucleus(alive: list[int], p: dict[int, float], top_p: float) -> list[int]:
    mass = 0.0
    for n, i in enumerate(alive, start=1):
        mass += p[i]
        if mass >= top_p - TOP_P_TOLERANCE:
            return alive[:n]
    return alive


# ---- every step there is, one at a time, over {id: logit}


TOLERANCE = 1e-9  # of epsilon, eta, top-h, top-n-sigma and XTC


class State:
    """Logits of the ids alive, and the temperature they stand under. `wide`: no longer float32."""

    def __init__(self, logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], u: float) -> None:
        self.logits = {i: float(x) for i, x in enumerate(logits) if x > -math.inf}
        self.t, self.wide, self.u = 1.0, False, u
        self.prompt, self.output = list(prompt), list(output)
        self.whole: dict[int, float] | None = None  # p when the tail was first cut
        self.drawn: list[float] = []  # nats, of each id of the output

    def order(self) -> list[int]:
        return sorted(self.logits, key=lambda i: (-self.logits[i], i))

    def p(self) -> dict[int, float]:
        order = self.order()
        return softmax([self.logits.get(i, -math.inf) for i in range(max(order) + 1)], order, self.t)

    def keep(self, ids: Sequence[int] | set[int]) -> None:
        self.logits = {i: x for i, x in self.logits.items() if i in set(ids)}

    def change(self, new: dict[int, float]) -> None:
        """Of logits as they stand under the temperature."""
        self.logits = {**self.scaled(), **new}
        self.wide, self.t, self.whole = self.wide or self.t != 1.0, 1.0, None

    def scaled(self) -> dict[int, float]:
        return {i: x / self.t if self.t != 1.0 else x for i, x in self.logits.items()}

    def n(self, x: float) -> float:
        """A number as the logits' precision has it."""
        return x if self.wide or self.t != 1.0 else float(np.float32(x))

    def seen(self, scope: str | int) -> list[int]:
        both = self.prompt + self.output
        return {"output": self.output, "prompt+output": both}[scope] if isinstance(scope, str) else both[-scope:]


def step(s: State, name: str, v: dict[str, Any]) -> None:
    """One step, in place. v: the parameters of a policy."""
    alive, best = len(s.logits), s.order()[0]
    _step(s, name, v)
    constraint = name.endswith(("_ids", "_sequences", "_ngram", "_tokens"))
    if best not in s.logits or (constraint and len(s.logits) < alive):
        s.whole = None


def _step(s: State, name: str, v: dict[str, Any]) -> None:
    both = s.prompt + s.output
    if name == "forced_ids":
        if len(s.output) < len(v["forced_ids"]):
            s.keep([v["forced_ids"][len(s.output)]])
    elif name == "allowed_ids":
        s.keep(v["allowed_ids"])
    elif name == "banned_ids":
        s.keep(set(s.logits) - set(v["banned_ids"]))
    elif name == "begin_suppress_ids":
        if not s.output:
            s.keep(set(s.logits) - set(v["begin_suppress_ids"]))
    elif name == "banned_sequences":
        text = s.seen(v.get("banned_scope", "prompt+output"))
        s.keep(set(s.logits) - {q[-1] for q in v["banned_sequences"] if ends_with(text, list(q[:-1]))})
    elif name == "no_repeat_ngram":
        n = v["no_repeat_ngram_size"]
        grams = [both[i : i + n] for i in range(len(both) - n + 1)]
        s.keep(set(s.logits) - {g[-1] for g in grams if ends_with(both, g[:-1])})
    elif name == "min_tokens":
        if len(s.output) < v["min_tokens"]:
            s.keep(set(s.logits) - set(v["eos_ids"]))
    else:
        change = {"logit_bias": _bias, "repetition_penalty": _repetition, "frequency_penalty": _frequency,
                  "presence_penalty": _presence, "dry": _dry, "length_decay": _decay}  # fmt: skip
        change[name](s, v) if name in change else cut(s, name, v)


def ends_with(text: list[int], tail: list[int]) -> bool:
    return len(tail) <= len(text) and text[len(text) - len(tail) :] == tail


def _bias(s: State, v: dict[str, Any]) -> None:
    now = s.scaled()
    s.change({i: s.n(now[i] + s.n(b)) for i, b in dict(v["logit_bias"]).items() if i in now})


def _repetition(s: State, v: dict[str, Any]) -> None:
    r, now = s.n(v["repetition_penalty"]), s.scaled()
    ids = set(s.seen(v.get("repetition_scope", "prompt+output"))) & set(now)
    s.change({i: s.n(now[i] / r if now[i] > 0 else now[i] * r) for i in ids})


def _frequency(s: State, v: dict[str, Any]) -> None:
    now, f = s.scaled(), s.n(v["frequency_penalty"])
    if v.get("frequency_formula") == "tgi":
        text = s.prompt + s.output
        s.change({i: s.n(now[i] - s.n(f * s.n(text.count(i) / len(text)))) for i in set(text) & set(now)})
    else:
        text = s.seen(v.get("penalty_scope", "output"))
        s.change({i: s.n(now[i] - s.n(f * text.count(i))) for i in set(text) & set(now)})


def _presence(s: State, v: dict[str, Any]) -> None:
    now = s.scaled()
    ids = set(s.seen(v.get("penalty_scope", "output"))) & set(now)
    s.change({i: s.n(now[i] - s.n(v["presence_penalty"])) for i in ids})


def _dry(s: State, v: dict[str, Any]) -> None:
    text, breakers = s.seen(v.get("dry_scope", "prompt+output")), set(v.get("dry_sequence_breakers", ()))
    longest: dict[int, int] = {}
    for i in range(1, len(text)):  # text[i] could come again
        m = 0
        while m < i and text[i - 1 - m] == text[len(text) - 1 - m] and text[i - 1 - m] not in breakers:
            m += 1
        if text[i] not in breakers:
            longest[text[i]] = max(m, longest.get(text[i], 0))
    now, allowed = s.scaled(), v.get("dry_allowed_length", 2)
    cost = {
        i: v["dry_multiplier"] * v.get("dry_base", 1.75) ** (m - allowed) for i, m in longest.items() if m >= allowed
    }
    s.change({i: s.n(now[i] - s.n(c)) for i, c in cost.items() if i in now})


def _decay(s: State, v: dict[str, Any]) -> None:
    start, factor = v["length_decay"]
    now, beyond = s.scaled(), len(s.output) - start
    if beyond > 0:
        grown = s.n(factor**beyond - 1)
        s.change({i: s.n(now[i] + s.n(abs(now[i]) * grown)) for i in v["eos_ids"] if i in now})


def cut(s: State, name: str, v: dict[str, Any]) -> None:
    """Temperatures and what cuts the tail."""
    order, p, least = s.order(), s.p(), v.get("min_keep", 1)
    h = entropy(p)
    if name == "temperature":
        s.whole = None
    elif s.whole is None:
        s.whole = p
    if name == "temperature" and v["temperature"] == 0:
        s.keep(order[:1])
    elif name == "temperature" and v.get("dynatemp_range"):
        if len(order) > 1:
            low, high = max(0.0, v["temperature"] - v["dynatemp_range"]), v["temperature"] + v["dynatemp_range"]
            s.t *= low + (high - low) * (h / math.log(len(order))) ** v.get("dynatemp_exponent", 1.0)
    elif name == "temperature":
        s.t *= v["temperature"]
    elif name == "top_k":
        edge = s.logits[order[min(v["top_k"], len(order)) - 1]]
        s.keep([i for n, i in enumerate(order) if n < v["top_k"] or (v.get("top_k_ties") and s.logits[i] == edge)])
    elif name == "top_p":
        measured = s.whole if v.get("top_p_joint") and s.whole else p
        s.keep({*_nucleus(order, measured, v["top_p"]), *order[:least]})
    elif name == "min_p":
        bound = math.log(v["min_p"]) * (1 + MIN_P_TOLERANCE)
        s.keep({*(i for i in order if (s.logits[i] - s.logits[order[0]]) / s.t >= bound), *order[:least]})
    elif name == "typical":
        typical = sorted(order, key=lambda i: abs(-math.log(p[i]) - h) if p[i] else math.inf)
        s.keep({*_nucleus(typical, p, v["typical_p"]), *typical[:least]})
    elif name in ("epsilon", "eta"):
        e = v[f"{name}_cutoff"]
        e = e if name == "epsilon" else min(e, math.sqrt(e) * math.exp(-h))
        s.keep({*(i for i in order if p[i] >= e * (1 - TOLERANCE)), *order[:least], *_ties(s, order)})
    elif name == "top_n_sigma":
        mean = math.fsum(s.logits.values()) / len(order)
        sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in s.logits.values()) / len(order))
        best = s.logits[order[0]]
        s.keep([i for i in order if best - s.logits[i] <= v["top_n_sigma"] * sigma * (1 + TOLERANCE)])
    elif name == "top_h":
        s.keep(_top_h(order[: v.get("top_h_limit") or None], s, v["top_h"]))
    elif name == "xtc":
        top = [i for i in order if p[i] >= v["xtc_threshold"] * (1 - TOLERANCE)]
        if s.u < v["xtc_probability"] and len(top) > 1 and len(order) - len(top) + 1 >= least:
            s.keep(set(order) - set(top[:-1]))
    elif name == "mirostat":
        mu = 2 * v["mirostat_tau"]
        for logprob in s.drawn:
            mu -= v["mirostat_eta"] * (-logprob / math.log(2) - v["mirostat_tau"])
        s.keep({*(i for i in order if p[i] and -math.log2(p[i]) <= mu + TOLERANCE), *_ties(s, order)[:1]})
    else:
        raise AssertionError(name)


def _ties(s: State, order: list[int]) -> list[int]:
    return [i for i in order if s.logits[i] == s.logits[order[0]]]


def _top_h(order: list[int], s: State, top_h: float) -> list[int]:
    p = softmax([s.logits.get(i, -math.inf) for i in range(max(order) + 1)], order, s.t)
    most, sum_so_far, kept = top_h * entropy(p) + TOLERANCE, 0.0, order[:1]
    for n, i in enumerate(order):
        sum_so_far += -p[i] * math.log(p[i]) if p[i] else 0.0
        if sum_so_far > most:
            break
        kept = order[: n + 1]
    return kept


def stages(
    logits: Sequence[float], names: Sequence[str], values: dict[str, Any], prompt: Sequence[int] = (),
    output: Sequence[int] = (), u: float = 1.0, drawn: Sequence[float] = (),
) -> list[dict[int, float]]:  # fmt: skip
    """The distribution before the first step and after each. Empty where nothing is left, and there it ends."""
    s = State(logits, prompt, output, u)
    s.drawn = list(drawn)
    found = [s.p()]
    for name in names:
        step(s, name, values)
        found.append(s.p() if s.logits else {})
        if not s.logits:
            break
    return found
