"""Ctrl-C that waits: what belongs together happens whole, and the interrupt is raised behind it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Uninterrupted:
    """While this is entered, Ctrl-C is noted; leaving raises it. May be nested. Interrupts reach the main thread alone,
    so in any other this does nothing; nor does it where the program has no handler of its own to put off."""

    def __init__(self) -> None:
        self._came: tuple[int, FrameType | None] | None = None
        self._handler: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler  # first: from the next line on, it is this one's to put back
                signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = number, frame

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._came is not None:
                self._handler(*self._came)
