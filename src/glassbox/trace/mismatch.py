"""What a run was made with, against what is here: the reasons why its values may not come again.

In: a run and an open model. Out: the facts that differ, the likeliest cause first. But: it computes no logits; whether
a fact matters, the hashes say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from glassbox.errors import GlassboxError, NotReproduced
from glassbox.request import Provenance, Request
from glassbox.text.templates import GIVEN
from glassbox.text.tokenizer import Tokenizer
from glassbox.text.truncate import DROPPED, first_of, kept
from glassbox.trace.again import Opened
from glassbox.trace.run import Run
from glassbox.version import VERSION


@dataclass(frozen=True)
class Mismatch:
    """A fact of a run that is another one here. Of "prompt", recorded and found say what the messages give now."""

    field: str  # model | tokenizer | kv | engine | glassbox | template | prompt
    recorded: str
    found: str

    def __str__(self) -> str:
        return f"{WORDS[self.field]} was {self.recorded}, and is {self.found}"


_Fact = tuple[Callable[[Provenance], str], Callable[[Opened], str]]
FACTS: Mapping[str, _Fact] = {
    "model": (lambda p: p.model_sha256, lambda o: o.sha256),
    "tokenizer": (lambda p: p.tokenizer_sha256, lambda o: o.tokenizer_sha256),
    "kv": (lambda p: p.kv, lambda o: o.model.new_cache().pool.shape.kind),
    "engine": (lambda p: p.engine, lambda o: o.model.fingerprint),
    "glassbox": (lambda p: p.glassbox, lambda _: VERSION),
}
WORDS = {
    "model": "the sha256 of the model", "tokenizer": "the sha256 of the tokenizer",
    "kv": "the kind of keys and values", "engine": "the fingerprint of the engine", "glassbox": "the version",
    "template": "the sha256 of the chat template", "prompt": "the prompt that its text gives",
}  # fmt: skip
HARMLESS = ("glassbox", "template")  # alone no reason to expect other values: a cause only where values did differ


def mismatches(run: Run, opened: Opened) -> tuple[Mismatch, ...]:
    """All that differs but the prompt."""
    pairs = ((name, recorded(run.provenance), found(opened)) for name, (recorded, found) in FACTS.items())
    return tuple(Mismatch(*fact) for fact in pairs if fact[1] != fact[2])


def refusal(run: Run, reason: Mismatch) -> NotReproduced:
    """The error for a run that is not made again, because of this."""
    return NotReproduced(
        f"run {run.run_id} cannot be computed again: {reason}",
        field=reason.field, recorded=reason.recorded, found=reason.found,
    )  # fmt: skip


def prompt_mismatches(run: Run, opened: Opened) -> tuple[Mismatch, ...]:
    """Whether the recorded text or messages, with the recorded clock, still give the recorded ids, and by the same
    template. Nothing where they were not kept, or where the ids themselves were given."""
    if run.retain != "text":
        return ()
    r, found = run.request, list[Mismatch]()
    try:
        if r.messages is not None and r.chat is not None:
            messages = kept(r.messages, r.cut.messages if r.cut else ())
            digest, ids = _rendered(opened.tokenizer, messages, r.chat, run.provenance.clock)
            if digest != run.provenance.template_sha256:
                found.append(Mismatch("template", str(run.provenance.template_sha256), digest))
        elif any(s.origin == "prompt" for s in r.encoding.segment_list):
            ids = _encoded(opened.tokenizer, r)
        else:
            return ()
    except GlassboxError as e:
        return (Mismatch("prompt", f"{len(run.prompt_ids)} ids", f"refused ({e})"),)
    if tuple(ids) != run.prompt_ids:
        found.append(Mismatch("prompt", *_first_difference(run.prompt_ids, tuple(ids))))
    return tuple(found)


def _rendered(
    tokenizer: Tokenizer, messages: Any, chat: Mapping[str, Any], clock: str | None
) -> tuple[str, tuple[int, ...]]:
    """The digest of the template, and the ids it gives for what was said."""
    name, tools = chat["template"], chat.get("tools")
    template = tokenizer.templates.choose(chat["source"] if name == GIVEN else name, tools=tools is not None)
    rendered = template.render(
        messages, now=None if clock is None else datetime.fromisoformat(clock), tools=tools,
        documents=chat.get("documents"), extra=chat.get("template_kwargs"),
        continue_final=chat.get("continue_final", False),
        add_generation_prompt=bool(chat.get("add_generation_prompt")),
    )  # fmt: skip
    return template.digest, tuple(tokenizer.encode_segments(rendered.segments).ids)


def _encoded(tokenizer: Tokenizer, r: Request) -> tuple[int, ...]:
    """The ids of a text, cut as it was."""
    dropped = "".join(s.text for s in r.encoding.segment_list if s.origin == DROPPED)
    ids = tokenizer.encode(dropped + r.encoding.text).ids
    first = first_of(ids, tokenizer) if r.cut else 0
    return (*ids[:first], *ids[first + r.dropped :])


def _first_difference(recorded: tuple[int, ...], found: tuple[int, ...]) -> tuple[str, str]:
    at = next((i for i, (a, b) in enumerate(zip(recorded, found, strict=False)) if a != b), None)
    if at is None:
        return f"{len(recorded)} ids", f"{len(found)} ids"
    return f"id {recorded[at]} at position {at}", f"id {found[at]}"
