"""The names of runs: they sort by time, are short enough to type, and never meet."""

from __future__ import annotations

import secrets
import threading
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base32: no i, l, o, u
_last_ms = 0
_id_lock = threading.Lock()


def new_run_id() -> str:
    """14 characters: nine of milliseconds, to sort by time, and five of chance, lest two processes meet.

    Within a process the time part always grows, also when the clock is set back.
    """
    global _last_ms
    with _id_lock:
        _last_ms = max(time.time_ns() // 1_000_000, _last_ms + 1)
        number = _last_ms << 25 | secrets.randbits(25)
    return "".join(ALPHABET[number >> shift & 31] for shift in range(65, -1, -5))
