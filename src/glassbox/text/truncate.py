"""A prompt that is too long, made to fit where that was asked for. Comes in: messages, or the ids of a prompt, and how
many ids there is room for. Goes out: what is kept, and what is not.

Of messages whole ones are left out, the oldest first, and the template renders the rest anew. Of text and of ids the
oldest ids are. But: it is nobody's default; unasked, such a prompt is refused (ContextOverflow).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

from glassbox.errors import ContextOverflow, TemplateError
from glassbox.text.segments import Segment
from glassbox.text.tokenizer import Encoding, Tokenizer
from glassbox.types import Message, Messages

SHARE = 4  # new tokens have a quarter of the context to themselves, or less where fewer are asked for
DROPPED = "dropped"  # the origin of text that was left out
SYSTEM = ("system", "developer")  # never left out
ASSISTANT = ("assistant", "model")
ANSWERS = ("tool", "function", "ipython")  # left out with the call they answer


@dataclass(frozen=True, slots=True)
class Cut:
    """What was left out of a prompt. submitted = dropped + what the prompt has."""

    submitted: int  # ids of the whole prompt
    dropped: int  # how many fewer the prompt has
    messages: tuple[int, ...] = ()  # which were left out, of those submitted; of text and ids none


def room_for(context: int, max_tokens: int) -> int:
    """How many ids a prompt is cut down to, and so how long it may be uncut."""
    return context - min(max_tokens, context // SHARE)


def units(messages: Messages) -> list[list[int]]:
    """Which messages may be left out, by number, oldest first; those that go together in one list: a call of a tool
    with what answers it, and a reply with what it replies to. Neither the system's are among them, nor the last message
    and a call that it answers."""
    found: list[list[int]] = []
    called: dict[str, int] = {}  # the id of a call -> the place of its message in `found`
    for i, message in enumerate(messages):
        role, asked = message["role"], message.get("tool_call_id")
        if role in SYSTEM:
            continue
        last = len(found) - 1
        if found and role in ANSWERS:
            at = called.get(asked, last) if isinstance(asked, str) else last
            found[at:] = [[*chain(*found[at:]), i]]
        elif found and _replies(messages, i, found[last][-1]):
            found[last].append(i)
        else:
            found.append([i])
        called |= dict.fromkeys(_calls(message), len(found) - 1)
        called = {name: min(place, len(found) - 1) for name, place in called.items()}
    return [unit for unit in found if len(messages) - 1 not in unit]


def _replies(messages: Messages, i: int, before: int) -> bool:
    """Whether a message is the assistant's reply to the one before. One that is to be continued stands for itself."""
    here, there = messages[i], messages[before]
    mine = here["role"] in ASSISTANT and not here.get("tool_calls")
    return mine and there["role"] not in ASSISTANT and i < len(messages) - 1


def _calls(message: Message) -> list[str]:
    calls = message.get("tool_calls")
    ids = [call.get("id") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list | tuple) else []
    return [name for name in ids if isinstance(name, str)]


def to_drop(messages: Messages, count: Callable[[Messages], int], room: int, context: int) -> tuple[int, ...]:
    """The fewest of the oldest messages, by number, without which the rest has at most `room` ids.

    count: the ids of what is left; raises TemplateError where the template refuses to begin there, and then the next
    one is left out too. What is always kept may take from the room, up to the context; beyond it ContextOverflow is
    raised. A template is taken to give no fewer ids for more messages.
    """
    groups = units(messages)

    @cache
    def without(least: int) -> tuple[tuple[int, ...], int] | None:
        """What is left out, and how many ids are left, without that many units or the fewest more that will do."""
        for some in range(least, len(groups) + 1):
            out = tuple(sorted(chain(*groups[:some])))
            try:
                return out, count(kept(messages, out))
            except TemplateError:
                continue
        return None

    def fits(least: int) -> bool:
        found = without(least)
        return found is None or found[1] <= room

    least = bisect_left(range(len(groups) + 1), True, key=fits)
    found = (without(least) if least <= len(groups) else None) or without(max(least - 1, 0))
    if found is None or found[1] > context:
        tokens = found[1] if found else count(messages)
        raise ContextOverflow(tokens, context, "what must be kept of the messages")
    return found[0]


def kept(messages: Messages, dropped: Sequence[int]) -> Messages:
    """The messages without those, by number."""
    out = set(dropped)
    return tuple(m for i, m in enumerate(messages) if i not in out)


def cut_messages(whole: Encoding, rest: Encoding, messages: Messages, dropped: tuple[int, ...]) -> tuple[Encoding, Cut]:
    """The encoding of what was kept of `messages`, its segments named by the numbers that were submitted, and before
    them those left out."""
    cut, out = Cut(len(whole), len(whole) - len(rest), dropped), set(dropped)
    numbers = [i for i in range(len(messages)) if i not in out]
    names = {f"message {now}": f"message {was}" for now, was in enumerate(numbers)}
    segments = [replace(s, origin=names.get(s.origin, s.origin)) for s in rest.segment_list]
    gone = [Segment(f"dropped message {i}", messages[i]["role"], _said(messages[i])) for i in dropped]
    which = f"message{'s' * (len(dropped) > 1)} {', '.join(map(str, dropped))}"
    return _with(replace(rest, segment_list=tuple(segments)), gone, which, cut), cut


def _said(message: Message) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else [{"text": content or ""}]
    return "".join(part["text"] for part in parts)


def with_dropped(rest: Encoding, text: str, cut: Cut) -> Encoding:
    """The encoding of what was kept of ids, or of a text; text: what those left out say."""
    return _with(rest, [Segment(DROPPED, None, text)], "the oldest ids", cut)


def _with(rest: Encoding, dropped: Sequence[Segment], which: str, cut: Cut) -> Encoding:
    note = f"left out to fit the context: {which}, {cut.dropped:,} of {cut.submitted:,} ids"
    return replace(
        rest, segment_list=(*dropped, *rest.segment_list), segments=tuple(i + len(dropped) for i in rest.segments),
        notes=(note, *rest.notes),
    )  # fmt: skip


def first_of(ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """Where the ids begin that may be left out: behind a BOS that the tokenizer adds."""
    return int(tokenizer.bos_id is not None and ids[0] == tokenizer.bos_id and tokenizer.facts.add_bos)


def cut_text(encoding: Encoding, tokenizer: Tokenizer, room: int) -> tuple[Encoding, Cut]:
    """An encoded text without its oldest ids, and without what they stand for. No character is cut in two. Raises
    ContextOverflow."""
    data, n, first = encoding.text.encode(), len(encoding.ids), first_of(encoding.ids, tokenizer)
    begins = (i for i in range(first + n - room, n) if not _inside(data, encoding.spans[i][0]))
    at = next(begins, None)
    if at is None:
        raise ContextOverflow(n, room)
    byte, cut = encoding.spans[at][0], Cut(n, at - first)
    text = data[byte:].decode()
    rest = Encoding(
        ids=(*encoding.ids[:first], *encoding.ids[at:]),
        spans=(*encoding.spans[:first], *((lo - byte, hi - byte) for lo, hi in encoding.spans[at:])),
        kinds=(*encoding.kinds[:first], *encoding.kinds[at:]),
        segments=(*encoding.segments[:first], *encoding.segments[at:]),
        segment_list=tuple(replace(s, text=text) if s.text else s for s in encoding.segment_list),
        text=text,
        lossy=tuple(_moved(lost, byte) for lost in encoding.lossy if _offset(lost) >= byte),
        notes=encoding.notes,
    )
    return with_dropped(rest, data[:byte].decode(), cut), cut


def _inside(data: bytes, at: int) -> bool:
    """Whether a place lies within a character."""
    return data[at : at + 1] >= b"\x80" and data[at : at + 1] < b"\xc0"


def _offset(lost: str) -> int:
    return int(lost.rpartition(" ")[2])  # "byte 0x7A at offset 2"


def _moved(lost: str, by: int) -> str:
    return f"{lost.rpartition(' ')[0]} {_offset(lost) - by}"
