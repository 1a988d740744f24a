"""What a model's file says about sampling, as values of a policy; and what it says that cannot be honoured.

In: the metadata of a GGUF file, or of a folder with its generation_config.json. Out: parameters, and notes on the rest.
But: a value is taken only if a policy can have it and the model can run it. Nothing is dropped in silence: what is not
taken has a note, unless it stands at the value that does nothing.

A folder's settings about sampling (temperature, top_k, …) count where it asks for sampling (`do_sample`); where it says
that it wants none the temperature is 0. Penalties and bans count in any case, as in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from glassbox.errors import GlassboxError
from glassbox.policy.policy import DEFAULT_ORDER, Policy
from glassbox.policy.table import STEPS

GGUF, FOLDER = "general.sampling.", "generation_config."  # what the names of settings begin with in notes
FILE = "model file"
SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_p": 0.95}  # where neither file nor caller says anything
# what a GGUF file says -> parameters; the last of a folder's own come under these names too (provenance.py)
IN_GGUF: Mapping[str, tuple[str, ...]] = {
    "temp": ("temperature",), "top_k": ("top_k",), "top_p": ("top_p",), "min_p": ("min_p",),
    "xtc_probability": ("xtc_probability",), "xtc_threshold": ("xtc_threshold",),
    "penalty_repeat": ("repetition_penalty",), "penalty_last_n": ("repetition_scope", "penalty_scope"),
}  # fmt: skip
# what a generation_config.json says -> parameter
SAMPLED: Mapping[str, str] = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical_p": "typical_p",
    "epsilon_cutoff": "epsilon_cutoff", "eta_cutoff": "eta_cutoff", "top_h": "top_h",
}  # fmt: skip
ALWAYS: Mapping[str, str] = {
    "repetition_penalty": "repetition_penalty", "no_repeat_ngram_size": "no_repeat_ngram_size",
    "min_new_tokens": "min_tokens", "suppress_tokens": "banned_ids", "begin_suppress_tokens": "begin_suppress_ids",
    "bad_words_ids": "banned_sequences", "sequence_bias": "logit_bias",
    "exponential_decay_length_penalty": "length_decay",
}  # fmt: skip
# Settings that would change which token is chosen -> the values at which they do not.
OTHERS: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,), "num_beam_groups": (1,), "diversity_penalty": (0,), "penalty_alpha": (0,), "dola_layers": (),
    "guidance_scale": (1,), "encoder_repetition_penalty": (1,), "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,), "forced_bos_token_id": (), "forced_eos_token_id": (), "force_words_ids": (),
    "constraints": (), "stop_strings": (),
    "watermarking_config": (), "renormalize_logits": (False,), "remove_invalid_values": (False,), "max_new_tokens": (),
    "max_length": (20,), "max_time": (), "prompt_lookup_num_tokens": (), "assistant_early_exit": (),
    "token_healing": (False,), "low_memory": (False,),
}  # fmt: skip
IN_GGUF_OTHERS: Mapping[str, tuple[Any, ...]] = {"mirostat": (0,), "sequence": ()}

Fits = Callable[[Policy], object]  # raises a GlassboxError for a policy that the model cannot run


def default_policy(
    metadata: Mapping[str, Any], fits: Fits, asked: Mapping[str, Any], from_file: bool
) -> tuple[Policy, dict[str, str]]:
    """The policy of what is asked, else of what the file says, else SAMPLING; and where each parameter is from."""
    found, notes = file_values(metadata, fits) if from_file else ({}, {})
    order = asked.get("order", DEFAULT_ORDER)
    own = {p for name in order if name in STEPS for p in STEPS[name].parameters}
    notes |= dict.fromkeys(found.keys() - own - asked.keys(), "the order leaves its step out")
    values = {p: x for p, x in ({**SAMPLING, **found}).items() if p in own} | dict(asked)
    sources = {p: "flag" if p in asked else FILE if p in found else "default" for p in Policy().to_dict()}
    sources = {p: source for p, source in sources.items() if p in own or p in asked}
    return Policy(**values), sources | {k: f"{FILE}, not honoured: {why}" for k, why in notes.items()}


def file_values(metadata: Mapping[str, Any], fits: Fits) -> tuple[dict[str, Any], dict[str, str]]:
    """(parameter -> value, setting -> why it is not honoured)."""
    values: dict[str, Any] = {}
    notes: dict[str, str] = {}

    def take(setting: str, parameter: str, value: Any) -> None:
        try:
            fits(Policy(**{parameter: value}))
            values[parameter] = value
        except GlassboxError as e:
            notes[setting] = str(e)

    for key, names in IN_GGUF.items():
        for name in names if metadata.get(GGUF + key) is not None else ():
            take(GGUF + key, name, metadata[GGUF + key])
    _others({k.removeprefix(GGUF): v for k, v in metadata.items()}, IN_GGUF_OTHERS, notes, GGUF)
    config: Mapping[str, Any] = metadata.get("generation_config") or {}
    samples = config.get("do_sample")
    for key, name in SAMPLED.items():
        value = config.get(key)
        if value is None or getattr(Policy, name) == value:
            continue
        if samples is not True:
            notes[FOLDER + key] = "do_sample is " + ("false" if samples is False else "not said")
        elif name not in values:
            take(FOLDER + key, name, value)
    for key, name in ALWAYS.items():
        if config.get(key) is not None:
            take(FOLDER + key, name, _adapted(key, config[key]))
    _others(config, OTHERS, notes, FOLDER)
    return {k: v for k, v in values.items() if k in SAMPLED or _plain(v) != getattr(Policy, k)}, notes


def _others(said: Mapping[str, Any], known: Mapping[str, tuple[Any, ...]], notes: dict[str, str], where: str) -> None:
    for key, neutral in known.items():
        value = said.get(key)
        if value is not None and value not in neutral and value != []:
            notes[where + key] = f"{value!r:.60} has no counterpart here"


def _adapted(key: str, value: Any) -> Any:
    """As a policy takes it: transformers writes a bias as a list [[ids, bias], …], or once as a mapping."""
    if key == "sequence_bias" and isinstance(value, list):
        return [tuple(pair) if isinstance(pair, list) else pair for pair in value]
    return value


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
