"""What programs pass to the API, checked before anything is done with it. Comes in: anything. Goes out: what was meant,
in plain values of our own, or a ParameterError or PromptError that names the parameter.

A value that slipped through would be found out by the store, in another thread, when the run is half done.
"""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Iterable, Mapping, Set
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from glassbox.beam import Beam
from glassbox.errors import ParameterError, PromptError, TemplateError
from glassbox.policy.policy import Policy
from glassbox.policy.step import listed, needs_of, real, whole
from glassbox.policy.table import STEPS
from glassbox.request import Request
from glassbox.text.conversation import MAX_DEPTH

if TYPE_CHECKING:
    from glassbox.trace.store import Store

WHOLE = "a sequence of whole numbers"
STRINGS = "a string or a sequence of strings"
DRAWING = ("xtc_probability", "mirostat_tau")  # parameters of steps that draw, or go by what was drawn
MOST_TOKENS = 2**31 - 1  # what max_tokens may be: more than any context


def id_list(ids: Any, vocab_size: int, param: str = "ids", *, ordered: bool = True) -> list[int]:
    """Ids in the vocabulary; arrays of whole numbers too. Raises PromptError for one that is outside.

    ordered: their order means something, so a set is refused.
    """
    given = ids.tolist() if hasattr(ids, "tolist") else ids  # numpy's numbers become Python's
    if ordered and isinstance(given, Set):
        raise ParameterError(param, ids, WHOLE + ", and a set has no order")
    found = listed(param, given, WHOLE)
    for i in found:
        if isinstance(i, bool) or not isinstance(i, numbers.Integral):
            raise ParameterError(param, found, WHOLE)
        if not 0 <= int(i) < vocab_size:
            shown = f"id {i}" if abs(int(i)) < 2**64 else "an id of so many digits"
            raise PromptError(f"{shown} is outside the vocabulary of {vocab_size}", param=param)
    return [int(i) for i in found]


def string(param: str, value: object) -> str:
    """Text that can be encoded: no half of a surrogate pair."""
    if not isinstance(value, str):
        raise ParameterError(param, value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise ParameterError(param, value, f"text: character {e.start} is a lone surrogate") from None
    return str.__str__(value)


def string_list(param: str, value: object) -> tuple[str, ...]:
    """Strings; one alone is itself, not its letters."""
    found = [value] if isinstance(value, str) else listed(param, value, STRINGS)
    if not all(isinstance(s, str) for s in found):
        raise ParameterError(param, value, STRINGS)
    return tuple(string(param, s) for s in found)


def string_map(param: str, value: object) -> dict[str, str]:
    """A mapping of strings to strings, copied; empty for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(s, str) for pair in value.items() for s in pair):
        raise ParameterError(param, value, "a mapping of strings to strings")
    return {string(param, k): string(param, v) for k, v in value.items()}


def flag(param: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(param, value, "True or False")
    return bool(value)


def one_of(param: str, value: Any, allowed: Iterable[str]) -> Any:
    known = tuple(allowed)
    if not isinstance(value, str) or value not in known:
        raise ParameterError(param, value, f"one of {', '.join(known)}")
    return value


def seconds(param: str, value: object) -> float | None:
    """A positive number of seconds, or None for no limit."""
    return None if value is None else real(param, value, 0, math.inf, "a positive number of seconds", above=True)


def token_limit(value: object, context: int) -> int:
    """How many tokens may be generated; None: until the context ends."""
    allowed = f"a whole number of 1 or more, at most {MOST_TOKENS}, or None for as many as the context holds"
    return context if value is None else whole("max_tokens", value, 1, MOST_TOKENS, allowed)


def bytes_limit(param: str, value: object) -> int | None:
    return None if value is None else whole(param, value, 1, 2**63 - 1, "a positive number of bytes, or None")


def clock(param: str, value: object) -> datetime | None:
    if value is not None and not isinstance(value, datetime):
        raise ParameterError(param, value, "a datetime, or None for the present time")
    return value


def policy_or_default(policy: object) -> Policy:
    return Policy() if policy is None else a_policy(policy)


def a_policy(policy: object) -> Policy:
    if not isinstance(policy, Policy):
        raise ParameterError("policy", policy, "a Policy, such as glassbox.Policy(temperature=0.8)")
    return policy


def beams(request: Request) -> None:
    """That a request can be searched as it says. Raises ParameterError."""
    beam, policy = request.beam, request.policy
    if beam is None:
        return
    if not isinstance(beam, Beam):
        raise ParameterError("beam", beam, "a Beam, such as glassbox.Beam(4)")
    if request.speculate:
        raise ParameterError("speculate", True, "False with beams")
    if policy.greedy and beam.width > 1:
        raise ParameterError("temperature", policy.temperature, "above 0 with beams: greedy leaves one token to each")
    for name in DRAWING:
        if getattr(policy, name):
            raise ParameterError(name, getattr(policy, name), "0 with beams: nothing is drawn")
    for row in STEPS.values():
        if needs_of(row.kind) and row.build(policy):
            name = row.parameters[0]
            raise ParameterError(name, getattr(policy, name), "left out with beams: it needs further passes of each")


def open_store_or_none(store: object) -> Store | None:
    if store is None:
        return None
    from glassbox.trace.store import Store  # costs time that a run without a store need not spend

    if not isinstance(store, Store):
        raise ParameterError("store", store, "an open store: glassbox.open_store(path) gives one")
    return store


def model_name(name: object) -> str:
    """The name or path as it is recorded: text, where bytes of a path that are none read \\udc.. instead."""
    if not isinstance(name, str | os.PathLike) or not isinstance(os.fspath(name), str):
        raise ParameterError("name", name, "a model's name, or the path of a file")
    return os.fspath(name).encode("utf-8", "backslashreplace").decode()


def one_prompt(
    prompt: object, messages: Any, ids: Any, vocab_size: int
) -> tuple[str | None, tuple[Any, ...] | None, list[int] | None]:
    """The one of the three that is given, in values of our own; it can hold something."""
    here = [k for k, v in (("prompt", prompt), ("messages", messages), ("ids", ids)) if v is not None]
    if len(here) != 1:
        raise PromptError(f"exactly one of prompt, messages and ids must be given; here: {', '.join(here) or 'none'}")
    if prompt is not None and not isinstance(prompt, str):
        raise ParameterError("prompt", prompt, "text; a conversation goes into messages, token ids into ids")
    talk = None if messages is None else message_list(messages)
    known = None if ids is None else id_list(ids, vocab_size)
    if prompt == "":
        raise PromptError("the prompt is empty")
    for param, value in (("messages", talk), ("ids", known)):
        if value is not None and not value:
            raise PromptError(f"{param} is empty", param=param)
    return prompt, talk, known


class ChatOptions(TypedDict, total=False):
    """What a chat template takes beside messages; see `chat_options`."""

    tools: Any
    documents: Any
    template: str | None
    template_kwargs: Mapping[str, Any] | None
    continue_final: bool
    add_generation_prompt: bool | None


def chat_options(given: Mapping[str, Any], *, messages: bool) -> ChatOptions:
    """All of them, in values of our own: what is not given has its default.

    Raises TypeError for a name that is none of them, as Python does, ParameterError and TemplateError.
    """
    if unknown := sorted(set(given) - set(ChatOptions.__annotations__)):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    asked = [name for name, value in given.items() if value is not None and value is not False]
    if asked and not messages:
        raise ParameterError(asked[0], given[asked[0]], "given with messages only")
    template, kwargs, prompted = (given.get(name) for name in ("template", "template_kwargs", "add_generation_prompt"))
    final = flag("continue_final", given.get("continue_final", False))
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ParameterError("template_kwargs", kwargs, "a mapping of names to plain data")
    if final and prompted:
        raise ParameterError("add_generation_prompt", prompted, "False, or not given, where continue_final is True")
    return ChatOptions(
        tools=_objects("tools", given.get("tools")),
        documents=_objects("documents", given.get("documents")),
        template=None if template is None else string("template", template),
        template_kwargs=None if kwargs is None else _json("template_kwargs", _plain(kwargs)),
        continue_final=final,
        add_generation_prompt=not final if prompted is None else flag("add_generation_prompt", prompted),
    )


def _objects(param: str, value: Any) -> list[Any] | None:
    """A list of objects of plain data, copied."""
    if value is None:
        return None
    found = listed(param, value, "a list of objects")
    if not all(isinstance(item, Mapping) for item in found):
        raise ParameterError(param, value, "a list of objects")
    return [_json(param, _plain(item)) for item in found]


def _json(param: str, value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise ParameterError(param, value, f"plain data: {e}") from None
    return value


def message_list(messages: Any) -> tuple[Any, ...]:
    """A deep copy of messages, of plain JSON values: what the caller does with his own later changes nothing here.

    What makes a message is the template's business (text/conversation.py). Raises TemplateError.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise TemplateError("messages must be a list of objects with role and content")
    copied = tuple(_plain(m) for m in listed("messages", messages, "a list of objects with role and content"))
    try:
        json.dumps(copied, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise TemplateError(f"the messages are no plain data: {e}") from None
    return copied


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > MAX_DEPTH + 1:
        raise TemplateError(f"the messages nest deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        return str.__str__(value)  # of an enum, too, the string it is
    if isinstance(value, Mapping):
        return {str.__str__(k) if isinstance(k, str) else _no_key(k): _plain(v, depth + 1) for k, v in value.items()}
    return [_plain(v, depth + 1) for v in value] if isinstance(value, list | tuple) else value


def _no_key(key: object) -> str:
    raise TemplateError(f"a key of a message is of type {type(key).__name__}, but keys are strings")
