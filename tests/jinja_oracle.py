"""What transformers (5.24) renders: jinja2 set up as its utils/chat_template_utils.py sets it up, written anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2024, 7, 26, 12, 34)
BOS, EOS = "<s>", "</s>"
TAG = "CONTINUE_FINAL_MESSAGE_TAG "
REASONING = ("reasoning_content", "thinking", "reasoning")


class Refused(Exception):
    """The reference renders nothing: the template, jinja2 or transformers refuses."""


class Generation(Extension):
    """{% generation %}: where its text lies is what `mark` makes visible."""

    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        return str(self.environment.globals["mark"](caller()))  # type: ignore[operator]


@lru_cache(maxsize=256)
def compiled(source: str) -> Any:
    def tojson(
        x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
    ) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    env.globals["mark"] = str
    return env.from_string(source)


def shown(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As templates see messages: no null, reasoning under each of its names."""
    out = []
    for message in messages:
        kept = {k: v for k, v in message.items() if v is not None}
        reasoning = next((kept[k] for k in REASONING if k in kept), None)
        out.append(kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning})
    return out


def reference(
    source: str, messages: Sequence[dict[str, Any]], *, tools: Any = None, documents: Any = None,
    add_generation_prompt: bool = True, continue_final: bool = False, marks: bool = False, **extra: Any,
) -> str:  # fmt: skip
    """The text. Raises Refused. marks: what generation tags enclose stands between ⟦ and ⟧."""
    talk = [dict(m) for m in shown(messages)]
    final = talk[-1].get("content") if continue_final else None
    if continue_final:
        if final is None:
            raise Refused("no content to continue")
        talk[-1]["content"] = final + TAG
    data = {"bos_token": BOS, "eos_token": EOS, **extra}
    try:
        template = compiled(source)
        template.environment.globals["mark"] = (lambda text: f"⟦{text}⟧") if marks else str
        text: str = template.render(
            messages=talk, tools=tools, documents=documents, add_generation_prompt=add_generation_prompt, **data
        )
    except Exception as e:
        raise Refused(f"{type(e).__name__}: {e}") from e
    if not continue_final:
        return text
    if final.strip() not in text or TAG.strip() not in text:
        raise Refused("the final message does not appear")
    at = text.rindex(TAG.strip())
    return text[:at] if text[at : at + len(TAG)] == TAG else text[:at].rstrip()
