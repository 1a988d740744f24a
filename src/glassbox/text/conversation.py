"""Checks a conversation before a template sees it. Comes in: what the caller sent. Goes out: plain data, in
new containers.

Nothing but strings, numbers, booleans, null, lists and dicts with string keys gets through, so that a
template can reach no object of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from glassbox.errors import ParameterError, TemplateError
from glassbox.text.segments import utf8
from glassbox.types import Messages

MAX_DEPTH = 64
REASONING = ("reasoning_content", "thinking", "reasoning")

# Templates compare roles and keys, so these cannot carry marks; of such characters no special token is made.
_NAME = re.compile(r"[\w .:/$@+-]{1,256}")


def check_messages(messages: Messages) -> list[dict[str, Any]]:
    """The messages, every content a string. Raises TemplateError: what is wrong with which message."""
    if isinstance(messages, (str, bytes, Mapping)) or not hasattr(messages, "__iter__"):
        raise TemplateError("messages must be a list of objects with role and content")
    checked = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TemplateError(f"message {i} is {type(message).__name__}, not an object with role and content")
        role = message.get("role")
        if not isinstance(role, str) or not _NAME.fullmatch(role):
            why = "has no role" if role is None else f"has the role {role!r}, which is no name"
            raise TemplateError(f"message {i} {why}")
        content = _content(i, message)
        checked.append(_as_shown({**message, "content": content}))
    return checked


def _as_shown(message: Mapping[str, Any]) -> dict[str, Any]:
    """As transformers (5.24) shows it to templates: null is left out, and reasoning goes by each of its names."""
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[key] for key in REASONING if key in kept), None)
    return kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _content(i: int, message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return None
    if content is None:
        raise TemplateError(f"message {i} has no content")
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise TemplateError(f"content of message {i} is {type(content).__name__}, not text or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind != "text":
            raise TemplateError(f"unsupported content part {kind!r} in message {i}: only text is")
        if not isinstance(part.get("text"), str):
            raise TemplateError(f"a text part of message {i} has no text")
        texts.append(part["text"])
    return "".join(texts)


def each_string(value: object, change: Callable[[str], str], depth: int = 0) -> Any:
    """A copy of plain data, each string but the keys changed. Raises TemplateError for other data."""
    if depth > MAX_DEPTH:
        raise TemplateError(f"the data nests deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        utf8(value, param="messages")
        return change(str(value))
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, (list, tuple)):
        return [each_string(v, change, depth + 1) for v in value]
    if not isinstance(value, Mapping):
        raise TemplateError(f"{type(value).__name__} is not plain data")
    for key in value:
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            raise TemplateError(f"{key!r} cannot be a key: names have letters, digits, space and . : / $ @ + - _")
    return {key: each_string(v, change, depth + 1) for key, v in value.items()}


def is_name(text: str) -> bool:
    """Whether `text` is a word such as "function": no special token hides in it, and templates compare it."""
    return bool(_NAME.fullmatch(text))


def check_others(tools: object, documents: object, extra: object) -> None:
    """What a template gets beside the messages. Raises ParameterError."""
    for param, value in (("tools", tools), ("documents", documents)):
        if value is not None and not (isinstance(value, list | tuple) and all(isinstance(v, Mapping) for v in value)):
            raise ParameterError(param, value, "a list of objects")
    if extra is not None and not (isinstance(extra, Mapping) and all(isinstance(k, str) for k in extra)):
        raise ParameterError("extra", extra, "an object of variables")
