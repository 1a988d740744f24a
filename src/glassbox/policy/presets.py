"""Other engines' policies as data: the order of their steps, their defaults, and where their formulas differ.

In: a preset's name and what a request sets. Out: values for a Policy.
But: only what an engine has. A parameter it does not have is refused, as the engine itself should. What cannot be said
with the steps there are stands in `notes`. From the engines' public sources, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glassbox.errors import ParameterError, Unsupported
from glassbox.policy.parameters import CHECKS
from glassbox.policy.step import EVERYTHING, OUTPUT
from glassbox.policy.table import DEFAULT_ORDER, STEPS, checked_order


@dataclass(frozen=True)
class Preset:
    order: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what a request may set otherwise
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what is so in this engine and cannot be set
    without: tuple[str, ...] = ()  # parameters of steps it has that it does not
    mirostat: tuple[str, ...] = ()  # its order where mirostat is on, if it has that
    greedy_below: float = 0.0  # a temperature below this is greedy
    least_temperature: float = 0.0  # one between 0 and this becomes this
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """What a request may set."""
        own = dict.fromkeys(p for name in (*self.order, *self.mirostat) for p in STEPS[name].parameters)
        return tuple(p for p in own if p not in self.fixed and p not in self.without)


_DYNATEMP = ("dynatemp_range", "dynatemp_exponent")
_VARIANTS = ("frequency_formula", "top_k_ties", "top_p_joint", "top_h_limit")
_SCOPES = ("repetition_scope", "penalty_scope", "dry_scope", "banned_scope")


def _steps(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PRESETS: Mapping[str, Preset] = {
    "glassbox": Preset(DEFAULT_ORDER, source="docs/policy.md"),
    "hf": Preset(
        _steps(
            """dola guidance logit_bias repetition_penalty no_repeat_ngram banned_sequences min_tokens allowed_ids
            forced_ids length_decay banned_ids begin_suppress_ids temperature top_h top_k top_p min_p typical epsilon
            eta contrastive"""
        ),
        defaults={"top_k": 50},
        fixed={"top_k_ties": True, "top_p_joint": False, "top_h_limit": 100, "dola_normed": False},
        without=(*_DYNATEMP, *_SCOPES),
        source="transformers, generation/utils.py, _get_logits_processor",
        notes=(
            "temperature 0 is do_sample=False",
            "banned_ids are suppress_tokens, banned_sequences bad_words_ids, allowed_ids prefix_allowed_tokens_fn",
            "dola and contrastive are custom_generate of transformers-community; dola reads layers without a norm",
        ),
    ),
    "vllm": Preset(
        _steps(
            """grammar allowed_ids banned_sequences min_tokens logit_bias repetition_penalty frequency_penalty
            presence_penalty temperature min_p top_k top_p"""
        ),
        fixed={
            "repetition_scope": EVERYTHING, "penalty_scope": OUTPUT, "banned_scope": OUTPUT, "top_k_ties": True,
            "top_p_joint": False, "frequency_formula": "openai", "min_keep": 1,
        },
        without=_DYNATEMP,
        least_temperature=0.01,
        source="vLLM, v1/sample/sampler.py, sampling_params.py",
        notes=("min_p is not applied to a greedy request: it could change nothing",),
    ),
    "sglang": Preset(
        _steps(
            """frequency_penalty min_tokens presence_penalty repetition_penalty grammar logit_bias temperature top_k
            top_p min_p"""
        ),
        fixed={
            "repetition_scope": OUTPUT, "penalty_scope": OUTPUT, "top_k_ties": False, "top_p_joint": True,
            "frequency_formula": "openai", "min_keep": 1,
        },
        without=_DYNATEMP,
        greedy_below=1e-6,
        source="SGLang, sampling/sampling_batch_info.py, penaltylib, layers/sampler.py (pytorch back-end)",
        notes=("top_p counts the mass before top_k, not renormalised",),
    ),
    "llama.cpp": Preset(
        _steps(
            """banned_ids logit_bias repetition_penalty frequency_penalty presence_penalty dry top_n_sigma top_k typical
            top_p min_p xtc temperature"""
        ),
        defaults={
            "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_scope": 64,
            "penalty_scope": 64,
        },
        fixed={"top_k_ties": False, "top_p_joint": False, "frequency_formula": "openai", "xtc_strict": False},
        without=("xtc_spared_ids",),
        mirostat=_steps("logit_bias temperature mirostat"),
        source="llama.cpp, common/sampling.cpp, src/llama-sampler.cpp",
        notes=(
            "the last 64 ids, prompt included, count for all three penalties (repeat_last_n)",
            "temperature comes last, so the steps that cut never see it",
            "banned_ids are a logit_bias of false",
            "with mirostat_tau (its --mirostat 2) the order is: logit_bias temperature mirostat, and nothing else",
        ),
    ),
    "mlx": Preset(
        _steps(
            "logit_bias repetition_penalty presence_penalty frequency_penalty top_p min_p xtc top_k temperature"
        ),
        defaults={"temperature": 0.0, "repetition_scope": 20, "penalty_scope": 20},
        fixed={"xtc_strict": True, "top_k_ties": False, "top_p_joint": False, "frequency_formula": "openai"},
        without=_DYNATEMP,
        source="MLX-LM, sample_utils.py, generate.py",
        notes=(
            "the last 20 ids count for all three penalties, prompt included as in its batched path",
            "its server spares the end of text and the line break from xtc: xtc_spared_ids",
        ),
    ),
    "tgi": Preset(
        _steps("repetition_penalty frequency_penalty grammar temperature top_k top_p typical"),
        fixed={
            "repetition_scope": EVERYTHING, "penalty_scope": EVERYTHING, "top_k_ties": True, "top_p_joint": False,
            "frequency_formula": "tgi", "min_keep": 1,
        },
        without=_DYNATEMP,
        source="TGI, server/text_generation_server/utils/{tokens,logits_process}.py (batched)",
        notes=("frequency_penalty is multiplied by count / length, prompt included, not by the count",),
    ),
}  # fmt: skip


def preset(name: object) -> Preset:
    if not isinstance(name, str) or name not in PRESETS:
        raise Unsupported("preset", str(name), tuple(PRESETS))
    return PRESETS[name]


def values_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a policy: the preset's, with what is given over its defaults. `order` may be given too."""
    found = preset(name)
    for parameter, value in given.items():
        if parameter not in found.parameters and parameter not in ("order", "eos_ids"):
            allowed = f"left out: preset {name} has only {', '.join(found.parameters)}"
            raise ParameterError(parameter, value, allowed)
    own = found.mirostat if found.mirostat and given.get("mirostat_tau") else found.order
    order = given.get("order", own)
    for step in checked_order(order):
        if step not in own:
            raise ParameterError("order", step, f"a step of preset {name}: {', '.join(own)}")
    defaults = {k: v for k, v in found.defaults.items() if any(k in STEPS[s].parameters for s in order if s in STEPS)}
    values = {**defaults, **found.fixed, "order": own, **given}
    if "temperature" in values:
        checked = CHECKS["temperature"]("temperature", values["temperature"])
        greedy = checked == 0.0 or checked < found.greedy_below
        values["temperature"] = 0.0 if greedy else max(checked, found.least_temperature)
    return values
