"""Messages to the prompt's text. Comes in: a chat template and messages. Goes out: `Rendered`, with its
segments.

The text is what the template makes of the messages, to the letter; segments say which characters are whose
(how: see segments.py). It knows no ids: whether a text is a special token is the tokenizer's business.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from glassbox.errors import ParameterError, TemplateError
from glassbox.text import child, sandbox
from glassbox.text.blocks import string_literals
from glassbox.text.conversation import check_messages, check_others, each_string, is_name
from glassbox.text.rewrite import rewritten, without_generation
from glassbox.text.segments import TEMPLATE, Marks, Segment, cut, give_space
from glassbox.text.tame import is_tame
from glassbox.text.template_files import templates_from_folder as templates_from_folder
from glassbox.text.template_files import templates_from_gguf as templates_from_gguf
from glassbox.types import Messages

MAX_SOURCE = 1 << 18  # characters; the longest seen in a model has 20,000
FUEL, FUEL_PER_CHARACTER, FUEL_PER_MESSAGE = 200_000, 8, 2_000  # 200,000 last for some 5 ms and 10 MB
FUEL_HERE = 20_000  # for at most 0.2 s that nothing can interrupt; templates of real models take some 100 a message
MOST_SEARCHED = 64  # texts of the messages that the template may search for: each takes some more runs
PROBE = "\u2003"  # white space no template writes: behind a text to be continued, it shows if the template trims
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})

_GENERATED = re.compile(f"([{sandbox.OPENS}{sandbox.CLOSES}])")
_SUSPICIOUS = re.compile(r"[<>\[\]|｜]")

_LONE = re.compile("[\ud800-\udfff]")

Change = Callable[[int, str], str]  # (source, string) -> string; source i is message i, then these:
OTHERS = ("tools", "documents", "extra")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt's text, and whose text is whose. `clock`: the time the template got, if it asked; `generated`: which
    characters its {% generation %} tags enclose."""

    text: str
    segments: tuple[Segment, ...]
    notes: tuple[str, ...] = ()
    clock: datetime | None = None
    generated: tuple[tuple[int, int], ...] = ()


class ChatTemplate:
    """A model's chat template. Raises TemplateError if it cannot be parsed, or is for jinja2 only."""

    def __init__(
        self, source: str, *, bos: str, eos: str, name: str = "default", specials: Mapping[str, str] | None = None
    ) -> None:
        """specials: other tokens a template may name, such as unk_token."""
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the chat template has {len(source)} characters, more than {MAX_SOURCE}")
        if lone := _LONE.search(source):
            where = f"character {lone.start()}, line {source.count(chr(10), 0, lone.start()) + 1}"
            raise TemplateError(f"the chat template has a lone surrogate U+{ord(lone[0]):04X} at {where}")
        self.source, self.bos, self.eos, self.name = source, bos, eos, name
        self._named = {"bos_token": bos, "eos_token": eos, **(specials or {})}
        self._runs, plain = rewritten(source), without_generation(source)
        self._marks_generated = plain != source
        self._tame = is_tame(plain)
        check = sandbox.check if self._tame else child.check
        check(self._runs)
        self._literals = string_literals(source)

    def __repr__(self) -> str:
        return f"<ChatTemplate {self.digest[:12]}, {len(self.source)} characters>"

    @cached_property
    def digest(self) -> str:
        """The sha256 of the source, in hex."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """Render a conversation.

        `continue_final` leaves the last message, the assistant's, open at its end. `now` is the time the
        template gets if it asks; `extra` holds further variables for it. Messages are seen as transformers shows
        them: without keys that are null, and with their reasoning under each of its names.

        Raises TemplateError (with the template's own words if it refuses), PromptError for text with lone
        surrogates, and ParameterError for an `extra` that overrides what is ours.
        """
        talk = check_messages(messages)
        check_others(tools, documents, extra)
        if taken := RESERVED & set(extra or ()):
            raise ParameterError("extra", min(taken), f"other than {', '.join(sorted(RESERVED))}")
        if continue_final and not (talk and talk[-1]["role"] == "assistant" and "content" in talk[-1]):
            raise TemplateError("only a conversation that ends with an assistant's text can be continued")
        now = now or datetime.now()
        flags: dict[str, object] = {
            "add_generation_prompt": add_generation_prompt and not continue_final,
            **{key: value for key, value in self._named.items() if value},
        }
        strings: list[str] = []

        def collect(_: int, text: str) -> str:
            strings.append(text)
            return text

        others = (tools, documents, extra)
        _data(talk, others, collect)
        marks = Marks(len(talk) + len(OTHERS), set(self.source).union(*strings))
        fuel = FUEL + FUEL_PER_MESSAGE * len(talk) + FUEL_PER_CHARACTER * sum(map(len, strings))
        asked_clock = trims = False

        def run(change: Change, source: str = self._runs) -> str:
            nonlocal asked_clock, trims
            data = _data(talk, others, change)
            if change is not _as_it_is:
                data[sandbox.MARKS] = marks.all
            if continue_final:
                data["messages"][-1]["content"] += marks.end + PROBE
            text, asked_clock = self._run(source, data | flags, fuel, now)
            if not continue_final:
                return text
            if marks.end not in text:
                raise TemplateError("the template leaves out the last message: it cannot be continued")
            text, _, tail = text.rpartition(marks.end)
            trims = not tail.startswith((PROBE, " "))  # a space of the template's own hides that from the reference
            return text

        plain, notes = run(_as_it_is), []
        if not plain:
            raise TemplateError("the chat template renders nothing for these messages")
        if trims and (lost := _trailing_space(talk[-1]["content"])):
            # What stood before the mark was safe from trimming: trim it too, as every other message is.
            talk[-1]["content"] = talk[-1]["content"].rstrip()
            plain = run(_as_it_is)
            notes.append(f"the template trims: {lost!r} at the end of the last message is lost")
        if continue_final and talk[-1]["content"].strip() not in plain:
            raise TemplateError("the template changes the last message: it cannot be continued")
        clock = now if asked_clock else None
        generated: tuple[tuple[int, int], ...] = ()
        if self._marks_generated:
            generated = _enclosed(run(_as_it_is, rewritten(self.source, spans=True)), plain)

        def owners_with(spared: set[tuple[int, str]]) -> list[int] | None:
            by_source = {i: [s for s in self._literals if (i, s) in spared] for i, _ in spared}
            try:
                return marks.read(run(lambda i, text: marks.mark(i, text, by_source.get(i, ()))), plain)
            except child.Stopped:
                raise
            except TemplateError:
                return None

        texts = [m.get("content", "") for m in talk]
        met = [(i, literal) for literal in self._literals for i, text in enumerate(texts) if literal in text]
        owners = _find_owners(owners_with, met, [m["role"] for m in talk])
        if owners is not None:
            give_space(owners, plain, texts)
            authors = [(f"message {i}", m["role"]) for i, m in enumerate(talk)]
            segments = cut(plain, owners, [*authors, *((origin, None) for origin in OTHERS)])
            return Rendered(plain, segments, tuple(notes), clock, generated)
        # The template reads its messages so closely (their length, say) that marks change what it writes.
        # Then nobody knows which text is whose: harmless only if no message may hold a special token.
        if any(map(_SUSPICIOUS.search, strings)):
            raise TemplateError("the template hides which text is a message's, and one may hold a special token")
        notes.append("the template hides which text is a message's: all is shown as the template's")
        return Rendered(plain, (Segment(TEMPLATE, None, plain, trusted=True),), tuple(notes), clock, generated)

    def _run(self, source: str, data: Mapping[str, object], fuel: int, now: datetime) -> tuple[str, bool]:
        """In this process if the template is tame and soon done, else in one of its own, to the same text."""
        if self._tame:
            try:
                return sandbox.run(source, data, min(fuel, FUEL_HERE), now)
            except sandbox.OutOfFuel:
                pass
        return child.run(source, data, fuel, now)

    def after_assistant(self) -> str:
        """What the template writes behind an assistant's text, where turns end. Raises TemplateError."""
        exchange = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
        segments = self.render(exchange, add_generation_prompt=False).segments
        at = max((i for i, s in enumerate(segments) if s.origin == "message 1"), default=len(segments))
        return "".join(s.text for s in segments[at + 1 :])


def _find_owners(
    owners_with: Callable[[set[tuple[int, str]]], list[int] | None],
    met: Sequence[tuple[int, str]],
    roles: Sequence[str],
) -> list[int] | None:
    """Mark all; if the template takes notice, all but the texts it may search for: `met`, (message, text).

    A text it does search for ("</think>") is its syntax: where that still stands in the prompt, it counts as
    the template's. So as few as may be are spared: each text, then each text in one role, is marked again,
    and stays marked unless the template takes notice.
    """
    owners = owners_with(set())
    searched = dict.fromkeys(text for _, text in met)
    if owners is not None or not 0 < len(searched) <= MOST_SEARCHED:
        return owners
    spared = set(met)
    owners = owners_with(spared)
    if owners is None:
        return None
    for group in ({p for p in met if p[1] == text} for text in searched):
        for fewer in [group, *({p for p in group if roles[p[0]] == role} for role in dict.fromkeys(roles))]:
            if fewer <= spared and (better := owners_with(spared - fewer)) is not None:
                owners, spared = better, spared - fewer
    return owners


def _as_it_is(_: int, text: str) -> str:
    return text


def _trailing_space(text: str) -> str:
    return text[len(text.rstrip()) :]


def _enclosed(marked: str, plain: str) -> tuple[tuple[int, int], ...]:
    """Where the outermost marks of generation tags stand, in characters of `plain`; nowhere if it holds such itself."""
    spans, parts, depth, at, begin = [], [], 0, 0, 0
    for part in _GENERATED.split(marked):
        if part == sandbox.OPENS:
            begin, depth = at if not depth else begin, depth + 1
        elif part == sandbox.CLOSES:
            depth -= 1
            if not depth:
                spans.append((begin, at))
        else:
            parts.append(part)
            at += len(part)
    if depth > 0:  # of a text to be continued, the end was cut off
        spans.append((begin, at))
    return tuple(spans) if "".join(parts) == plain else ()


def _data(talk: Sequence[Mapping[str, Any]], others: Sequence[Any], change: Change) -> dict[str, Any]:
    """What the template sees: a fresh copy with `change` applied to each string that came from outside."""

    def all_but_names(source: int) -> Callable[[str], str]:
        return lambda text: text if is_name(text) else change(source, text)

    messages = []
    for i, message in enumerate(talk):
        seen = {key: value for key, value in message.items() if key not in ("role", "content")}
        seen = each_string(seen, all_but_names(i)) | {"role": message["role"]}
        if "content" in message:
            seen["content"] = each_string(message["content"], partial(change, i))
        messages.append({key: seen[key] for key in message})
    tools, documents, extra = (each_string(v, all_but_names(len(talk) + i)) for i, v in enumerate(others))
    return {**(extra or {}), "messages": messages, "tools": tools, "documents": documents}
