"""Text of models and users made safe to look at: nothing steers the terminal, nothing hides, nothing is cut in half."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate

from rich.cells import cell_len
from rich.text import Span, Text

_NAMES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
# Controls, invisible formats (bidirectional overrides, zero-width) but for joiners, surrogates, private use, unassigned
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_KEPT = frozenset("\u200c\u200d")  # joiners: emoji and several scripts need them


def inert(text: str, *, lines: bool = False, width: int | None = None) -> str:
    """`text` with every control and every invisible character as an escape. lines: newlines and tabs stay."""
    return within(text if text.isprintable() else _pieces(text, lines), width)


def inert_text(text: Text, *, lines: bool = False) -> Text:
    """The same for a text with styles, which stay where they were."""
    if text.plain.isprintable():
        return text
    pieces = _pieces(text.plain, lines)
    at = list(accumulate(map(len, pieces), initial=0))
    safe = text.blank_copy("".join(pieces))
    safe.spans = [Span(at[s.start], at[min(s.end, len(pieces))], s.style) for s in text.spans]
    return safe


def middle_cut(text: str, most: int) -> str:
    """A text of which both ends are shown, and how much is not."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half:,} characters more…] {text[-half:]}"


def quoted(data: bytes, width: int | None = None) -> str:
    """A token's bytes in quotes: text where it is UTF-8, \\xNN where it is not. width: columns it may take."""
    shown = [c if _plain(c) and c != "\\" else _escape(c) for c in data.decode("utf-8", "surrogateescape")]
    return f"'{within(shown, None if width is None else width - 2)}'"


def within(pieces: Sequence[str], width: int | None) -> str:
    """The pieces joined, or as many whole ones as fit before an ellipsis."""
    whole = "".join(pieces)
    if width is None or cell_len(whole) <= width:
        return whole
    kept, room = "", width - 1
    for piece in pieces:
        room -= cell_len(piece)
        if room < 0:
            break
        kept += piece
    return kept + "…"


def flow(cells: Iterable[str], width: int) -> list[str]:
    """Lines of as many cells as fit beside each other; none is broken."""
    lines: list[str] = []
    for cell in cells:
        if lines and cell_len(f"{lines[-1]}  {cell}") <= width:
            lines[-1] += f"  {cell}"
        else:
            lines.append(cell)
    return lines


def padded(text: str, width: int) -> str:
    """`text` and as many spaces as make it so many columns wide."""
    return text + " " * (width - cell_len(text))


def _pieces(text: str, lines: bool) -> list[str]:
    return [c if _plain(c) or (lines and c in "\n\t") else _escape(c) for c in text]


def _plain(c: str) -> bool:
    return c in _KEPT or unicodedata.category(c) not in _HIDDEN


def _escape(c: str) -> str:
    if c in _NAMES:
        return _NAMES[c]
    code = ord(c)
    if 0xDC80 <= code < 0xDD00:  # a byte that is no UTF-8, as Python reads it
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
