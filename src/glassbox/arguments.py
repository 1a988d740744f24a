"""What programs pass to the API, checked before anything is done with it. Comes in: anything. Goes out: what was meant,
or a ParameterError that names the parameter.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glassbox.errors import ParameterError, PromptError
from glassbox.policy.policy import Policy
from glassbox.types import Messages

WHOLE = "a sequence of whole numbers"


def id_list(ids: Any, vocab_size: int | None = None, param: str = "ids") -> list[int]:
    """Ids, in the vocabulary where its size is given. Raises PromptError for one that is not."""
    listed = _items(param, ids, WHOLE)
    for i in listed:
        if isinstance(i, bool) or not isinstance(i, numbers.Integral):
            raise ParameterError(param, listed if len(listed) < 9 else [*listed[:8], ...], WHOLE)
        if vocab_size is not None and not 0 <= int(i) < vocab_size:
            raise PromptError(f"id {i} is outside the vocabulary of {vocab_size}", param=param)
    return [int(i) for i in listed]


def string(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise ParameterError(param, value, "a string")
    return value


def string_list(value: Any, param: str) -> tuple[str, ...]:
    """Strings; one alone is itself, not its letters."""
    allowed = "a string or a sequence of strings"
    listed = [value] if isinstance(value, str) else _items(param, value, allowed)
    if not all(isinstance(s, str) for s in listed):
        raise ParameterError(param, value, allowed)
    return tuple(listed)


def one_prompt(prompt: object, messages: Messages | None, ids: Sequence[int] | None) -> None:
    """That exactly one of the three is given, and that it can hold something."""
    given = {"prompt": prompt, "messages": messages, "ids": ids}
    if sum(value is not None for value in given.values()) != 1:
        raise ParameterError("prompt", prompt, "given, or else messages or ids: exactly one of the three")
    if prompt is not None and not isinstance(prompt, str):
        raise ParameterError("prompt", prompt, "text; a conversation goes into messages, token ids into ids")
    for param, value in given.items():
        if isinstance(value, Sequence) and not len(value):
            raise PromptError("the prompt is empty" if param == "prompt" else f"{param} is empty", param=param)


def policy_or_default(policy: object) -> Policy:
    if policy is None:
        return Policy()
    if not isinstance(policy, Policy):
        raise ParameterError("policy", policy, "a Policy, such as glassbox.Policy(temperature=0.8)")
    return policy


def seconds(param: str, value: object) -> float | None:
    """A positive number of seconds, or None for no limit."""
    if value is None or (isinstance(value, numbers.Real) and 0 < float(value) < math.inf):
        return None if value is None else float(value)
    raise ParameterError(param, value, "a positive number of seconds")


def _items(param: str, value: object, allowed: str) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ParameterError(param, value, allowed)
    return list(value)
