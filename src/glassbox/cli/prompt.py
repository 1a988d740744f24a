"""What goes into a run, as people read it: who wrote what of the prompt, its ids, the policy, the seed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from glassbox.cli.names import Named
from glassbox.cli.output import Out
from glassbox.cli.show_text import flow, inert, middle_cut, quoted

if TYPE_CHECKING:
    from glassbox.request import Request
    from glassbox.text.tokenizer import Encoding

CHARS = 1200  # of a segment; a longer one is cut in the middle
FIRST, LAST, MOST = 64, 16, 96  # of the ids
LOST = 4  # bytes that are not in the vocabulary are named one by one up to here


def prompt(out: Out, request: Request, vocab: Named) -> None:
    """The prompt and what is to be done with it."""
    encoding = request.encoding
    out.print()
    out.row(f"prompt   {len(encoding.ids)} ids" if encoding.ids else "prompt   not kept", "bold")
    shown = [s for s in encoding.segment_list if s.text]
    width = max((len(s.origin) for s in shown), default=0)
    for segment in shown:
        out.field(f"  {segment.origin:<{width}} ", inert(middle_cut(segment.text, CHARS)), "cyan")
    if beside := chat_line(request):
        out.field("template ", beside)
    for text in notes_of(encoding, vocab):
        out.field("  note: ", text, "yellow")
    if encoding.ids:
        out.print()
        out.row("ids", "bold")
    for line in id_lines(encoding.ids, vocab, out.width - 2):
        out.row(f"  {line}")
    out.print()
    out.field("policy   ", policy_line(request))
    for one in request.interventions:
        out.field("changed  ", str(one), "yellow")
    for name, source in request.sources.items():
        if "not honoured" in source:
            out.field("note: ", f"{name} of the {source}", "yellow")
    if not request.policy.greedy and request.beam is None:
        out.field("seed     ", str(request.seed))


def chat_line(request: Request) -> str:
    """What went into the chat template beside messages; nothing where that is what always goes in."""
    chat = request.chat or {}
    name = chat.get("template", "default")
    parts = [] if name == "default" else [name]
    for key in ("tools", "documents"):
        if chat.get(key):
            parts.append(f"{len(chat[key])} {key}")
    parts += [
        f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in chat.get("template_kwargs", {}).items()
    ]
    if chat.get("continue_final"):
        parts.append("continues the last message")
    return ", ".join(parts)


def id_lines(ids: tuple[int, ...], vocab: Named, width: int) -> list[str]:
    """Each id with its bytes; of many, the first and the last."""

    def lines(some: tuple[int, ...]) -> list[str]:
        return flow((f"{i} {quoted(vocab.bytes_of(i), width - len(str(i)) - 1)}" for i in some), width)

    if len(ids) <= MOST:
        return lines(ids)
    return [*lines(ids[:FIRST]), f"… {len(ids) - FIRST - LAST:,} more ids (--json has all)", *lines(ids[-LAST:])]


def notes_of(encoding: Encoding, vocab: Named) -> list[str]:
    """What the vocabulary could not say, and what the tokenizer did unasked."""
    notes = [_lost(text, encoding, vocab) for text in encoding.lossy[:LOST]]
    if (more := len(encoding.lossy) - LOST) > 0:
        notes.append(f"the same holds for {more:,} more bytes")
    return [*notes, *encoding.notes]


def _lost(text: str, encoding: Encoding, vocab: Named) -> str:
    at = int(text.rpartition(" ")[2])  # "byte 0x7A at offset 2"
    where = zip(encoding.ids, encoding.spans, strict=True)
    there = next((i for i, (begin, end) in where if begin <= at < end), None)
    if there is None:
        return f"{text} is not in the vocabulary and was left out"
    return f"{text} is not in the vocabulary: id {there} {quoted(vocab.bytes_of(there))} stands there"


def policy_line(request: Request) -> str:
    """Each parameter that does something, in order, and where its value came from."""
    policy = request.policy
    parts = []
    for name in policy.order:
        if name == "temperature" and policy.greedy:
            parts.append("greedy (temperature 0)")
            break  # one token is left: what comes after can do nothing
        if policy.runs(name) or (name == "temperature" and name in request.sources):
            alike = groupby(policy.shown(name), lambda shown: request.sources.get(shown[0]))
            parts.append(" ".join(_sourced(shown, source) for source, shown in alike))
    return " → ".join(parts) or "none: the model's own distribution"


def _sourced(shown: Iterable[tuple[str, str]], source: str | None) -> str:
    """Parameters with their values, and where all of these are from."""
    return " ".join(f"{p} {text}" for p, text in shown) + (f" ({source})" if source else "")
