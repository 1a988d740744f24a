"""Reads JSON that somebody else wrote. Comes in: bytes. Goes out: plain data, or ModelFormatError with the offset.

Stricter than the standard library where readers differ: a key may stand once in its object, and text must be Unicode.
"""

from __future__ import annotations

import json
from typing import Any

from glassbox.errors import ModelFormatError
from glassbox.weights.header import printable


class _Twice(ValueError):
    """A key that stands twice in an object."""


def parse_json(data: bytes, field: str, *, at: int = 0) -> Any:
    """`field`: what is read, for errors; `at`: where in the file `data` begins."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise ModelFormatError("is not UTF-8", field=field, offset=at + e.start) from None
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as e:
        offset = at + len(text[: e.pos].encode())
        raise ModelFormatError(f"is not JSON: {e.msg}", field=field, offset=offset) from None
    except _Twice as e:
        key = json.dumps(str(e)).encode()
        second = data.find(key, data.find(key) + 1)  # -1 where it is spelled with escapes
        offset = at + max(second, 0)
        raise ModelFormatError(f"the key {printable(str(e))!r} stands twice", field=field, offset=offset) from None
    except RecursionError:
        raise ModelFormatError("nests too deep", field=field, offset=at) from None
    except ValueError:  # a number of more digits than Python reads
        raise ModelFormatError("holds a number of thousands of digits", field=field, offset=at) from None
    except MemoryError:
        why = f"its {len(data):,} bytes take more memory than there is"
        raise ModelFormatError(why, field=field, offset=at) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        raise _Twice(next(k for k, _ in pairs if k in seen or seen.add(k)))  # type: ignore[func-returns-value]
    return found
