"""The parameters of a policy: what each may be, and how it is checked.

In: what a program or a stored run gives. Out: the value as the policy keeps it (plain, hashable), or a ParameterError
that names the parameter.
But: which steps there are, and which parameters belong to which, is table.py's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from glassbox.errors import ParameterError
from glassbox.policy.grammar import Grammar
from glassbox.policy.step import EVERYTHING, OUTPUT, listed, real, whole

Check = Callable[[str, object], Any]
MOST = 2**63 - 1


def number(low: float, high: float, allowed: str, *, above: bool = False) -> Check:
    return lambda name, value: real(name, value, low, high, allowed, above=above)


def count(low: int, allowed: str) -> Check:
    return lambda name, value: whole(name, value, low, MOST, allowed)


def top_k(name: str, value: object) -> int:
    return max(whole(name, value, -1, MOST, "a whole number from 1 to 2**63 - 1, or 0 or -1 for off"), 0)


def one_of(*words: str) -> Check:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ParameterError(name, value, f"one of {', '.join(words)}")
        return plain(value)

    return check


def plain(value: str) -> str:
    """Of an enum, too, the string it is."""
    return str.__str__(value)


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ParameterError(name, value, "True or False")
    return value


def scope(name: str, value: object) -> str | int:
    allowed = f"{EVERYTHING!r}, {OUTPUT!r}, or a whole number N of 1 or more: the last N of both"
    if isinstance(value, str) and value in (EVERYTHING, OUTPUT):
        return plain(value)
    return whole(name, value, 1, MOST, allowed)


def _ids(name: str, value: object, allowed: str = "a sequence of ids, whole numbers of 0 or more") -> tuple[int, ...]:
    return tuple(whole(name, i, 0, 2**31 - 1, allowed) for i in listed(name, value, allowed))


def ids(name: str, value: object) -> tuple[int, ...]:
    """A set of ids: ascending, each once."""
    return tuple(sorted(set(_ids(name, value))))


def ids_or_none(name: str, value: object) -> tuple[int, ...] | None:
    found = None if value is None else ids(name, value)
    if found == ():
        raise ParameterError(name, value, "None, or at least one id")
    return found


def ids_in_order(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, Set):
        raise ParameterError(name, value, "a sequence of ids, and a set has no order")
    return _ids(name, value)


def sequences(name: str, value: object) -> tuple[tuple[int, ...], ...]:
    allowed = "a sequence of sequences of ids, none of them empty"
    found = {ids_in_order(name, s) for s in listed(name, value, allowed)}
    if () in found:
        raise ParameterError(name, value, allowed)
    return tuple(sorted(found))


Key = int | tuple[int, ...] | str  # what a bias is about: an id, ids one after another, or a text
DIGITS = 20  # of an id written as a string; Python makes no number of thousands
_BIAS = "a mapping of ids, sequences of ids or texts to finite numbers"


def bias(name: str, value: object) -> tuple[tuple[Key, float], ...]:
    """{key: bias} or pairs. A mapping's key "42" is the id 42, as JSON has to write it; in a pair it is the text."""
    pairs: list[Any] = list(value.items()) if isinstance(value, Mapping) else listed(name, value, _BIAS)
    found: dict[Key, float] = {}
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ParameterError(name, value, _BIAS)
        at = _key(name, pair[0], digits=isinstance(value, Mapping))
        if at in found:
            raise ParameterError(name, value, f"{_BIAS}, each once")
        found[at] = real(name, pair[1], -3e38, 3e38, _BIAS)
    kinds = (int, tuple, str)  # ids first, then sequences, then texts
    return tuple(sorted(found.items(), key=lambda item: (kinds.index(type(item[0])), item[0])))


def _key(name: str, key: object, *, digits: bool) -> Key:
    number = isinstance(key, str) and digits and key.isascii() and key.isdecimal()
    if isinstance(key, str) and number and len(key) > DIGITS:
        raise ParameterError(name, key, _BIAS)
    if isinstance(key, str) and not number:
        return text(name, key, _BIAS)
    if isinstance(key, tuple | list):
        ids = _ids(name, key, _BIAS)
        if not ids:
            raise ParameterError(name, key, _BIAS)
        return ids if len(ids) > 1 else ids[0]
    return whole(name, int(key) if isinstance(key, str) else key, 0, 2**31 - 1, _BIAS)


def text(name: str, value: object, allowed: str) -> str:
    """Text that can be encoded: not empty, no half of a surrogate pair."""
    if not isinstance(value, str) or not value or any(0xD800 <= ord(c) < 0xE000 for c in value):
        raise ParameterError(name, value, f"{allowed}; a text has at least one character, and no lone surrogate")
    return plain(value)


def texts(name: str, value: object) -> tuple[str, ...]:
    """A set of texts: ascending, each once."""
    allowed = "a sequence of texts"
    return tuple(sorted({text(name, item, allowed) for item in listed(name, value, allowed)}))


def decay(name: str, value: object) -> tuple[int, float] | None:
    allowed = "None, or (start, factor): a whole number of output tokens and a number of 1 or more"
    if value is None:
        return None
    pair = listed(name, value, allowed)
    if len(pair) != 2:
        raise ParameterError(name, value, allowed)
    return whole(name, pair[0], 0, MOST, allowed), real(name, pair[1], 1.0, 1e9, allowed)


def grammar(name: str, value: object) -> Grammar | None:
    return None if value is None else Grammar.of(value)


def layers(name: str, value: object) -> str | tuple[int, ...]:
    """ "low", "high", or layers, ascending, each once."""
    if isinstance(value, str) and value in ("low", "high"):
        return plain(value)
    allowed = "low, high, or a sequence of layers, whole numbers of 0 or more; empty is off"
    return tuple(sorted({whole(name, i, 0, 2**31 - 1, allowed) for i in listed(name, value, allowed)}))


PENALTY = number(-1e6, 1e6, "a finite number, 0 is off")
FROM_0_TO_1 = number(0.0, 1.0, "from 0 (off) to 1")
UP_TO_1 = number(0.0, 1.0, "above 0 and at most 1 (1 is off)", above=True)
CUTOFF = number(0.0, 0.999999999, "0 (off) or above it and below 1")

CHECKS: Mapping[str, Check] = {
    "temperature": number(0.0, math.inf, "a finite number, 0 (greedy) or more"),
    "top_k": top_k,
    "top_p": UP_TO_1,
    "min_p": FROM_0_TO_1,
    "dynatemp_range": number(0.0, 1e6, "a finite number, 0 (off) or more"),
    "dynatemp_exponent": number(0.0, 1e6, "a finite number above 0", above=True),
    "typical_p": UP_TO_1,
    "epsilon_cutoff": CUTOFF,
    "eta_cutoff": CUTOFF,
    "top_n_sigma": number(0.0, 1e6, "a finite number, 0 (off) or more"),
    "top_h": UP_TO_1,
    "xtc_probability": FROM_0_TO_1,
    "xtc_threshold": number(0.0, 0.5, "above 0 and at most 0.5: only then can there be two", above=True),
    "xtc_strict": flag,
    "xtc_spared_ids": ids,
    "grammar": grammar,
    "mirostat_tau": number(0.0, 1e6, "bits, a finite number of 0 (off) or more"),
    "mirostat_eta": number(0.0, 1e6, "a finite number of 0 or more"),
    "guidance_scale": number(-1e6, 1e6, "a finite number, 1 is off"),
    "negative_ids": ids_in_order,
    "dola_layers": layers,
    "penalty_alpha": FROM_0_TO_1,
    "forced_ids": ids_in_order,
    "allowed_ids": ids_or_none,
    "banned_ids": ids,
    "banned_sequences": sequences,
    "banned_texts": texts,
    "begin_suppress_ids": ids,
    "min_tokens": count(0, "a whole number of 0 or more"),
    "eos_ids": ids,
    "logit_bias": bias,
    "repetition_penalty": number(0.0, 1e6, "above 0 (1 is off)", above=True),
    "frequency_penalty": PENALTY,
    "presence_penalty": PENALTY,
    "no_repeat_ngram_size": count(0, "a whole number of 0 (off) or more"),
    "dry_multiplier": number(0.0, 1e6, "a finite number, 0 (off) or more"),
    "dry_base": number(1.0, 1e6, "a finite number of 1 or more"),
    "dry_allowed_length": count(1, "a whole number of 1 or more"),
    "dry_sequence_breakers": ids,
    "length_decay": decay,
    "repetition_scope": scope,
    "penalty_scope": scope,
    "dry_scope": scope,
    "banned_scope": scope,
    "frequency_formula": one_of("openai", "tgi"),
    "dola_normed": flag,
    "top_k_ties": flag,
    "top_p_joint": flag,
    "top_h_limit": count(0, "a whole number, 0 for no limit"),
    "min_keep": count(1, "a whole number of 1 or more"),
}
