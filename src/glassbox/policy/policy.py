"""The policy: which steps, in which order, with which values, as plain data.

In: parameters by name. Out: a value that can be compared, printed, stored, and that shapes rows of logits.
But: it holds no state and no model; what a step needs to know (which ids end the text) is one of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from glassbox.errors import ParameterError
from glassbox.policy import presets
from glassbox.policy.constrain import known_ids
from glassbox.policy.grammar import Grammar
from glassbox.policy.ledger import Candidate, LedgerRow
from glassbox.policy.parameters import CHECKS, Key
from glassbox.policy.shaped import RAW, Shaped, shape
from glassbox.policy.step import EVERYTHING, OUTPUT, Past, Scope, Step, Views, needs_of, whole
from glassbox.policy.table import DEFAULT_ORDER, KEEP_MOST, STEPS, checked_order
from glassbox.policy.temperature import Temperature
from glassbox.types import I64, Sums

Encode = Callable[[str, str], tuple[int, ...]]  # (the parameter it is for, text) -> ids, at least one

if TYPE_CHECKING:
    from glassbox.policy.guide import Guide

__all__ = ["DEFAULT_ORDER", "RAW", "Candidate", "LedgerRow", "Policy", "Shaped", "Step", "shape"]


@dataclass(frozen=True, repr=False)
class Policy:
    """How a token is chosen, as data: comparable, printable, savable. `Policy()` changes nothing."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off; -1 too
    top_p: float = 1.0  # 1 is off
    min_p: float = 0.0  # 0 is off
    _: KW_ONLY
    dynatemp_range: float = 0.0  # 0 is off
    dynatemp_exponent: float = 1.0
    typical_p: float = 1.0  # 1 is off
    epsilon_cutoff: float = 0.0  # 0 is off
    eta_cutoff: float = 0.0  # 0 is off
    top_n_sigma: float = 0.0  # 0 is off
    top_h: float = 1.0  # 1 is off
    xtc_probability: float = 0.0  # 0 is off
    xtc_threshold: float = 0.1
    xtc_spared_ids: tuple[int, ...] = ()  # never excluded by it
    grammar: Grammar | None = None  # what the output must be; {"regex": "…"} and so on when given
    mirostat_tau: float = 0.0  # bits; 0 is off
    mirostat_eta: float = 0.1
    # What needs further passes of the model.
    guidance_scale: float = 1.0  # 1 is off
    negative_ids: tuple[int, ...] = ()  # the prompt it leads away from; (): the prompt's last id
    dola_layers: str | tuple[int, ...] = ()  # "low", "high" or layers by what enters them; () is off
    penalty_alpha: float = 0.0  # 0 is off; among the top_k best
    forced_ids: tuple[int, ...] = ()  # the output begins with these
    allowed_ids: tuple[int, ...] | None = None
    banned_ids: tuple[int, ...] = ()
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    banned_texts: tuple[str, ...] = ()  # a model makes banned sequences of them
    begin_suppress_ids: tuple[int, ...] = ()  # not as the first token of the output
    min_tokens: int = 0  # none of eos_ids before so many
    eos_ids: tuple[int, ...] = ()  # what ends the text; a model fills them in where they are needed
    logit_bias: tuple[tuple[Key, float], ...] = ()  # {id, ids or text: bias} when given; a model makes ids of texts
    repetition_penalty: float = 1.0  # 1 is off
    frequency_penalty: float = 0.0  # 0 is off
    presence_penalty: float = 0.0  # 0 is off
    no_repeat_ngram_size: int = 0  # 0 is off
    dry_multiplier: float = 0.0  # 0 is off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[int, ...] = ()  # ids that no match reaches across
    length_decay: tuple[int, float] | None = None  # (start, factor)
    # Which ids count: "prompt+output", "output", or N: the last N of both.
    repetition_scope: Scope = EVERYTHING
    penalty_scope: Scope = OUTPUT  # of frequency and presence
    dry_scope: Scope = EVERYTHING
    banned_scope: Scope = EVERYTHING  # of banned sequences
    # Where engines differ under one name.
    frequency_formula: str = "openai"  # or "tgi"
    dola_normed: bool = True  # an early layer is read through the final norm
    top_k_ties: bool = False  # all that ties with the k-th stays
    top_p_joint: bool = False  # measured before the tail was first cut
    xtc_strict: bool = False  # p > threshold, and ties with the least likely stay
    top_h_limit: int = 0  # measured over so many of the best; 0: over all
    min_keep: int = 1  # top_p, min_p, typical, epsilon, eta and xtc leave so many
    order: tuple[str, ...] = field(default=DEFAULT_ORDER)  # the steps it may take, each once

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        object.__setattr__(self, "order", checked_order(self.order))
        for name, step in STEPS.items():
            if name not in self.order and self.runs(name):
                on = next(p for p in step.parameters if getattr(self, p) != _OFF[p])
                raise ParameterError(on, getattr(self, on), f"left out: the order has no step {name!r}")
        self._check_together()

    def _check_together(self) -> None:
        if self.temperature == 0.0 and self.dynatemp_range:
            raise ParameterError("dynatemp_range", self.dynatemp_range, "0 when temperature is 0")
        if self.penalty_alpha:
            if self.temperature == 0.0:
                raise ParameterError("penalty_alpha", self.penalty_alpha, "0 when temperature is 0: it chooses itself")
            whole("top_k", self.top_k, 1, MOST_CANDIDATES, f"from 1 to {MOST_CANDIDATES} where penalty_alpha is given")
        if self.negative_ids and self.guidance_scale == 1.0:
            raise ParameterError("negative_ids", self.negative_ids, "left out: guidance_scale is 1, which is off")
        banned = {*self.banned_ids, *(s[0] for s in self.banned_sequences if len(s) == 1)}
        if self.allowed_ids and banned.issuperset(self.allowed_ids):
            why = "at least one id that neither banned_ids nor banned_sequences rule out"
            raise ParameterError("allowed_ids", self.allowed_ids, why)

    @classmethod
    def preset(cls, name: str, **values: Any) -> Policy:
        """As that engine would: its order, its defaults, its formulas; `values` are what a request sets."""
        return cls(**presets.values_of(name, values))

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps that are on, in the order they run."""
        built = (STEPS[name].build(self) for name in self.order)
        return tuple(step for step in built if step is not None)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @cached_property
    def needs(self) -> frozenset[str]:
        """What its steps need beside the row of logits; passes.py makes it. Most policies need nothing."""
        return frozenset(filter(None, map(needs_of, self.steps)))

    @cached_property
    def betas(self) -> tuple[float, ...]:
        """The inverse temperatures at which it will weigh the model's own logits."""
        for step in self.steps:
            if isinstance(step, Temperature):
                return 1.0, 1.0 / step.temperature
            if not isinstance(step, KEEP_MOST):
                break
        return (1.0,)

    def for_model(
        self, vocab: int, eos_ids: Iterable[int], encode: Encode | None = None, stop_ids: Iterable[int] = ()
    ) -> Policy:
        """With the model's own eos_ids, if a step needs them and none are given, and ids in place of texts; with
        min_tokens, what else ends the text (stop_ids) is one of them. encode: the ids of a text, as it stands inside
        another one.

        Raises ParameterError for ids that are not in the vocabulary, for a step that needs what the model does not
        have, and for texts where there is no `encode`; and what that raises."""
        needed = bool(self.min_tokens or self.length_decay) and not self.eos_ids
        ends = {*(eos_ids if needed else self.eos_ids), *(stop_ids if self.min_tokens else ())}
        found = self if ends == set(self.eos_ids) else replace(self, eos_ids=tuple(ends))
        if encode is not None and found.texts:
            found = found._in_ids(encode)
        found._check_ready()
        for name in (
            "forced_ids", "allowed_ids", "banned_ids", "begin_suppress_ids", "eos_ids", "xtc_spared_ids",
            "negative_ids",
        ):  # fmt: skip
            known_ids(name, getattr(found, name) or (), vocab)
        known_ids("banned_sequences", [i for s in found.banned_sequences for i in s], vocab)
        listed = [i for key, _ in found.logit_bias for i in (key if isinstance(key, tuple) else (key,))]
        known_ids("logit_bias", [i for i in listed if isinstance(i, int)], vocab)
        return found

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """(parameter, text) for each text that is no ids yet."""
        biased = (("logit_bias", key) for key, _ in self.logit_bias if isinstance(key, str))
        return (*biased, *(("banned_texts", text) for text in self.banned_texts))

    def _in_ids(self, encode: Encode) -> Policy:
        """Ids in place of texts; two texts, or a text and ids, that come to the same ids add up."""
        bias: dict[Key, float] = {}
        for key, b in self.logit_bias:
            ids = encode("logit_bias", key) if isinstance(key, str) else key
            at = ids[0] if isinstance(ids, tuple) and len(ids) == 1 else ids
            bias[at] = bias.get(at, 0.0) + b
        banned = [encode("banned_texts", text) for text in self.banned_texts]
        return replace(
            self, logit_bias=tuple(bias.items()), banned_texts=(), banned_sequences=(*self.banned_sequences, *banned)
        )

    def _check_ready(self) -> None:
        if self.texts:
            name, text = self.texts[0]
            raise ParameterError(name, text, "in ids by now: Policy.for_model makes ids of texts, with a tokenizer")
        if not self.eos_ids and (self.min_tokens or self.length_decay):
            raise ParameterError("eos_ids", (), "given: min_tokens and length_decay need to know what ends the text")

    def shape(
        self, logits: npt.ArrayLike, prompt_ids: Sequence[int] | I64 = (), output_ids: Sequence[int] = (),
        sums: Sums | None = None, *, seed: int | None = None, sequence: int = 0, guide: Guide | None = None,
        logprobs: Sequence[float] = (), views: Views | None = None,
    ) -> Shaped:  # fmt: skip
        """Run the steps over one row of logits, float32 [V].

        sums: of these logits, where somebody has them already; the logits must then stay as they are.
        seed, sequence: for the steps that draw (xtc).
        guide: of the grammar, if there is one (guide.compiled). logprobs: of each output id as it was drawn (mirostat).
        views: for the steps that need more passes (`needs`).
        """
        self._check_ready()
        past = Past(prompt_ids, output_ids, seed, sequence, guide=guide, logprobs=logprobs, views=views)
        return shape(self.steps, logits, past, sums, self.betas)

    def __repr__(self) -> str:
        on = (" ".join(f"{p}={text}" for p, text in self.shown(name)) for name in self.order if self.runs(name))
        return f"Policy({' → '.join(on)})"

    def runs(self, name: str) -> bool:
        """Whether the step of this name is on."""
        return STEPS[name].build(self) is not None

    def shown(self, name: str) -> tuple[tuple[str, str], ...]:
        """(parameter, value as text) of one step: the one that switches it on, and what else is not as usual."""
        first, *more = STEPS[name].parameters
        names = [first, *(p for p in more if getattr(self, p) != _OFF[p])]
        return tuple((p, _text(getattr(self, p))) for p in names)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` gives an equal policy back."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        """The reverse of `to_dict`. What is missing is off; what is unknown is refused."""
        if not isinstance(data, Mapping):
            raise ParameterError("policy", data, "a mapping of parameters to values, as to_dict gives it")
        known = [f.name for f in fields(cls)]
        for name in data:
            if name not in known:
                raise ParameterError(str(name), data[name], f"left out: a policy has only {', '.join(known)}")
        return cls(**data)


MOST_CANDIDATES = 128  # of contrastive search, all in one pass of the model
_SHOWN = 8  # of a list, as text
_OFF: Mapping[str, Any] = {f.name: f.default for f in fields(Policy)}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple) and len(value) > _SHOWN:
        return f"{repr(value[:_SHOWN])[:-1]}, … {len(value):,} in all)"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Grammar):
        return value.to_dict()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
