"""What somebody gives (a text, a conversation, ids), as the ids that go into a model.

In: a tokenizer, one of the three, and what a chat template takes beside messages, all checked (arguments.py). Out: a
`Prompt`. But: nothing is computed, and nothing is left out unless `fitting` is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from glassbox.arguments import ChatOptions
from glassbox.errors import PromptError
from glassbox.opening import cut_ids, encoding_of
from glassbox.text.absent import NoTokenizer
from glassbox.text.template import ChatTemplate
from glassbox.text.tokenizer import Encoding, Tokenizer
from glassbox.text.truncate import Cut, cut_messages, cut_text, kept, to_drop
from glassbox.types import Messages

Given = tuple[str | None, Messages | None, Sequence[int] | None]  # a text, a conversation, ids: one of them


@dataclass(frozen=True)
class Prompt:
    """The ids, and how they came about."""

    encoding: Encoding
    clock: datetime | None = None  # the time that the template asked for
    template: ChatTemplate | None = None  # of a conversation
    cut: Cut | None = None  # what was left out to make it fit


def prompt_of(model: str, tokenizer: Tokenizer, given: Given, now: datetime | None, options: ChatOptions) -> Prompt:
    """All of what is given. model: its name, for errors. Raises PromptError and TemplateError."""
    text, messages, ids = given
    if messages is not None:
        return conversation(model, tokenizer, messages, now, options)
    if text is None:
        return Prompt(encoding_of(ids or (), tokenizer))
    encoding = tokenizer.encode(text)
    if not encoding.ids:
        size = len(text.encode())
        raise PromptError(f"the prompt cannot be encoded: none of its {size} bytes is in the vocabulary")
    return Prompt(encoding)


def conversation(
    model: str, tokenizer: Tokenizer, messages: Messages, now: datetime | None, options: ChatOptions
) -> Prompt:
    """Messages through the template that is asked for, else the model's own."""
    templates, asked = tokenizer.templates, options["template"]
    if not templates and asked is None:
        if isinstance(tokenizer, NoTokenizer):
            raise tokenizer.refusal("messages")
        raise PromptError(f"{model} has no chat template; give the prompt as text", param="messages")
    template = templates.choose(asked, tools=options["tools"] is not None)
    rendered = template.render(
        messages, now=now, tools=options["tools"], documents=options["documents"], extra=options["template_kwargs"],
        continue_final=options["continue_final"], add_generation_prompt=bool(options["add_generation_prompt"]),
    )  # fmt: skip
    encoding = tokenizer.encode_segments(rendered.segments)
    return Prompt(replace(encoding, notes=(*rendered.notes, *encoding.notes)), rendered.clock, template)


def fitting(
    model: str, tokenizer: Tokenizer, given: Given, now: datetime | None, options: ChatOptions, room: int, context: int
) -> Prompt:  # fmt: skip
    """What is given without its oldest messages or ids, so that at most `room` are left. Raises ContextOverflow too."""
    whole, (_, messages, ids) = prompt_of(model, tokenizer, given, now, options), given
    if len(whole.encoding) <= room:
        return whole
    if messages is None:
        encoding, cut = (cut_text if ids is None else cut_ids)(whole.encoding, tokenizer, room)
        return replace(whole, encoding=encoding, cut=cut)

    def made(some: Messages) -> Prompt:
        return conversation(model, tokenizer, some, now, options)

    out = to_drop(messages, lambda some: len(made(some).encoding), room, context)
    if not out:
        return whole
    rest = made(kept(messages, out))
    encoding, cut = cut_messages(whole.encoding, rest.encoding, messages, out)
    return replace(rest, encoding=encoding, cut=cut)
