"""The steps a policy can have, in the default order: name, the parameters each goes by, and how it is built.

In: a policy. Out: for each name the step, or None where its parameters leave it off.
But: no order but the default one; presets.py has the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from glassbox.errors import ParameterError
from glassbox.policy import constrain, contrast, mirostat, penalties, truncate, truncate_entropy
from glassbox.policy.grammar import InGrammar
from glassbox.policy.parameters import plain
from glassbox.policy.step import Step
from glassbox.policy.temperature import DynamicTemperature, Greedy, Temperature

if TYPE_CHECKING:
    from glassbox.policy.policy import Policy

Build = Callable[["Policy"], Step | None]


class Row(NamedTuple):
    """One step: the parameters it goes by (the first switches it on) and what builds it."""

    parameters: tuple[str, ...]
    build: Build
    kind: type  # what it is when nothing says otherwise; its docstring is the formula


def _temperature(p: Policy) -> Step | None:
    if p.temperature == 0.0:
        return Greedy()
    if p.dynatemp_range:
        return DynamicTemperature(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
    return None if p.temperature == 1.0 else Temperature(p.temperature)


def _frequency(p: Policy) -> Step | None:
    if not p.frequency_penalty:
        return None
    if p.frequency_formula == "tgi":
        return penalties.RelativeFrequencyPenalty(p.frequency_penalty)
    return penalties.FrequencyPenalty(p.frequency_penalty, p.penalty_scope)


def _repetition(p: Policy) -> Step | None:
    if p.repetition_penalty == 1.0:
        return None
    return penalties.RepetitionPenalty(p.repetition_penalty, p.repetition_scope)


def _presence(p: Policy) -> Step | None:
    return penalties.PresencePenalty(p.presence_penalty, p.penalty_scope) if p.presence_penalty else None


def _dry(p: Policy) -> Step | None:
    if not p.dry_multiplier:
        return None
    return penalties.Dry(
        p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_sequence_breakers, p.dry_scope
    )  # fmt: skip


def _sequences(p: Policy) -> Step | None:
    on = p.banned_sequences or p.banned_texts
    return constrain.BannedSequences(p.banned_sequences, p.banned_scope) if on else None


def _bias(p: Policy) -> Step | None:
    """A text is no id yet: `Policy.for_model` sees to that, and `Policy.shape` that it has."""
    ids = tuple((i, b) for i, b in p.logit_bias if isinstance(i, int))
    sequences = tuple((s, b) for s, b in p.logit_bias if isinstance(s, tuple))
    return constrain.LogitBias(ids, sequences) if p.logit_bias else None


def _begin(p: Policy) -> Step | None:
    return constrain.BeginSuppressIds(p.begin_suppress_ids) if p.begin_suppress_ids else None


def _xtc(p: Policy) -> Step | None:
    values = p.xtc_probability, p.xtc_threshold, p.min_keep, p.xtc_strict, p.xtc_spared_ids
    return truncate_entropy.Xtc(*values) if p.xtc_probability else None


def _contrastive(p: Policy) -> Step | None:
    return contrast.ContrastiveSearch(p.penalty_alpha, p.top_k) if p.penalty_alpha else None


STEPS: Mapping[str, Row] = {
    "dola": Row(("dola_layers", "dola_normed"), lambda p: contrast.Dola() if p.dola_layers else None, contrast.Dola),
    "guidance": Row(
        ("guidance_scale", "negative_ids"),
        lambda p: contrast.Guidance(p.guidance_scale) if p.guidance_scale != 1.0 else None,
        contrast.Guidance,
    ),
    "grammar": Row(("grammar",), lambda p: None if p.grammar is None else InGrammar(p.grammar), InGrammar),
    "forced_ids": Row(
        ("forced_ids",), lambda p: constrain.ForcedIds(p.forced_ids) if p.forced_ids else None, constrain.ForcedIds
    ),
    "allowed_ids": Row(
        ("allowed_ids",), lambda p: constrain.AllowedIds(p.allowed_ids) if p.allowed_ids else None, constrain.AllowedIds
    ),
    "banned_ids": Row(
        ("banned_ids",), lambda p: constrain.BannedIds(p.banned_ids) if p.banned_ids else None, constrain.BannedIds
    ),
    "begin_suppress_ids": Row(("begin_suppress_ids",), _begin, constrain.BeginSuppressIds),
    "banned_sequences": Row(
        ("banned_sequences", "banned_scope", "banned_texts"), _sequences, constrain.BannedSequences
    ),
    "no_repeat_ngram": Row(
        ("no_repeat_ngram_size",),
        lambda p: penalties.NoRepeatNgram(p.no_repeat_ngram_size) if p.no_repeat_ngram_size else None,
        penalties.NoRepeatNgram,
    ),
    "min_tokens": Row(
        ("min_tokens", "eos_ids"),
        lambda p: constrain.MinTokens(p.min_tokens, p.eos_ids) if p.min_tokens else None,
        constrain.MinTokens,
    ),
    "logit_bias": Row(("logit_bias",), _bias, constrain.LogitBias),
    "repetition_penalty": Row(("repetition_penalty", "repetition_scope"), _repetition, penalties.RepetitionPenalty),
    "frequency_penalty": Row(
        ("frequency_penalty", "penalty_scope", "frequency_formula"), _frequency, penalties.FrequencyPenalty
    ),
    "presence_penalty": Row(("presence_penalty", "penalty_scope"), _presence, penalties.PresencePenalty),
    "dry": Row(
        ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_sequence_breakers", "dry_scope"), _dry, penalties.Dry
    ),
    "length_decay": Row(
        ("length_decay", "eos_ids"),
        lambda p: penalties.LengthDecay(*p.length_decay, p.eos_ids) if p.length_decay else None,
        penalties.LengthDecay,
    ),
    "temperature": Row(("temperature", "dynatemp_range", "dynatemp_exponent"), _temperature, Temperature),
    "top_k": Row(
        ("top_k", "top_k_ties"), lambda p: truncate.TopK(p.top_k, p.top_k_ties) if p.top_k else None, truncate.TopK
    ),
    "top_p": Row(
        ("top_p", "top_p_joint", "min_keep"),
        lambda p: truncate.TopP(p.top_p, p.top_p_joint, p.min_keep) if p.top_p < 1.0 else None,
        truncate.TopP,
    ),
    "min_p": Row(
        ("min_p", "min_keep"), lambda p: truncate.MinP(p.min_p, p.min_keep) if p.min_p else None, truncate.MinP
    ),
    "typical": Row(
        ("typical_p", "min_keep"),
        lambda p: truncate_entropy.Typical(p.typical_p, p.min_keep) if p.typical_p < 1.0 else None,
        truncate_entropy.Typical,
    ),
    "epsilon": Row(
        ("epsilon_cutoff", "min_keep"),
        lambda p: truncate_entropy.Epsilon(p.epsilon_cutoff, p.min_keep) if p.epsilon_cutoff else None,
        truncate_entropy.Epsilon,
    ),
    "eta": Row(
        ("eta_cutoff", "min_keep"),
        lambda p: truncate_entropy.Eta(p.eta_cutoff, p.min_keep) if p.eta_cutoff else None,
        truncate_entropy.Eta,
    ),
    "top_n_sigma": Row(
        ("top_n_sigma",),
        lambda p: truncate_entropy.TopNSigma(p.top_n_sigma) if p.top_n_sigma else None,
        truncate_entropy.TopNSigma,
    ),
    "top_h": Row(
        ("top_h", "top_h_limit"),
        lambda p: truncate_entropy.TopH(p.top_h, p.top_h_limit) if p.top_h < 1.0 else None,
        truncate_entropy.TopH,
    ),
    "xtc": Row(
        ("xtc_probability", "xtc_threshold", "min_keep", "xtc_strict", "xtc_spared_ids"), _xtc,
        truncate_entropy.Xtc,
    ),
    "mirostat": Row(
        ("mirostat_tau", "mirostat_eta"),
        lambda p: mirostat.Mirostat(p.mirostat_tau, p.mirostat_eta) if p.mirostat_tau else None,
        mirostat.Mirostat,
    ),
    "contrastive": Row(("penalty_alpha", "top_k"), _contrastive, contrast.ContrastiveSearch),
}  # fmt: skip

DEFAULT_ORDER = tuple(STEPS)

# Steps after which most of the distribution is as it was: sums made of the model's logits are brought up to date.
KEEP_MOST = (
    constrain.BannedIds, constrain.BeginSuppressIds, constrain.BannedSequences, constrain.MinTokens,
    constrain.LogitBias, penalties.RepetitionPenalty, penalties.FrequencyPenalty, penalties.RelativeFrequencyPenalty,
    penalties.PresencePenalty, penalties.NoRepeatNgram, penalties.Dry, penalties.LengthDecay,
)  # fmt: skip


def checked_order(order: object) -> tuple[str, ...]:
    """Names of steps, each once. Raises ParameterError."""
    allowed = f"some of these, each once: {', '.join(STEPS)}"
    if isinstance(order, str) or not isinstance(order, Sequence):
        raise ParameterError("order", order, allowed)
    names = tuple(order)
    for i, name in enumerate(names):
        if not isinstance(name, str) or name not in STEPS:
            raise ParameterError("order", name, allowed)
        if name in names[:i]:
            raise ParameterError("order", names, f"without a step twice: {name}")
    return tuple(map(plain, names))


def formula(kind: type) -> str:
    """The first paragraph of a step's docstring, on one line."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def source(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").partition("Source: ")[2].split())
