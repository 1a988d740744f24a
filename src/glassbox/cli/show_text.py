"""Text of models and users made safe to look at: nothing in it may steer the terminal or hide."""

from __future__ import annotations

import unicodedata

_NAMES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
# Controls, invisible formats (bidirectional overrides, zero-width) but for joiners, surrogates, private use, unassigned
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_KEPT = frozenset("\u200c\u200d")  # joiners: emoji and several scripts need them


def inert(text: str, *, lines: bool = False) -> str:
    """`text` with every control and every invisible character as an escape. lines: newlines and tabs stay."""
    return "".join(c if _plain(c) or (lines and c in "\n\t") else _escape(c) for c in text)


def quoted(data: bytes) -> str:
    """A token's bytes in quotes: text where it is UTF-8, \\xNN where it is not."""
    text = data.decode("utf-8", "backslashreplace") if not _is_utf8(data) else None
    if text is not None:
        return f"'{inert(text)}'"
    shown = "".join(c if _plain(c) and c != "\\" else _escape(c) for c in data.decode("utf-8"))
    return f"'{shown}'"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _plain(c: str) -> bool:
    return c in _KEPT or unicodedata.category(c) not in _HIDDEN


def _escape(c: str) -> str:
    if c in _NAMES:
        return _NAMES[c]
    code = ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
