"""Where keys and values live: pages of a fixed number of positions, and the table of one sequence.

A page holds PAGE positions of every layer, so a sequence's table is one list of addresses (the order inside a page is
in model/kernels/attention.py). Pages come from a pool that knows its limit in bytes before it takes them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from glassbox.errors import OutOfMemory
from glassbox.types import F32, I64

PAGE = 32  # positions a page holds


@dataclass(frozen=True, slots=True)
class PageShape:
    """What a page must hold: bytes = positions × layers × 2 × key-value heads × head width × 4."""

    layers: int
    kv_heads: int
    head_width: int

    @property
    def layer_bytes(self) -> int:
        return PAGE * 2 * self.kv_heads * self.head_width * 4

    @property
    def page_bytes(self) -> int:
        return self.layers * self.layer_bytes


class PagePool:
    """Pages that are in use and pages that are free. Not thread-safe: the engine owns it."""

    def __init__(self, shape: PageShape, limit: int | None = None) -> None:
        """limit: bytes all pages together may take; the memory of this machine when not given."""
        self.shape = shape
        self.limit = limit if limit is not None else available_memory()
        self.taken = 0  # pages ever made
        self._free: list[F32] = []

    @property
    def in_use(self) -> int:
        return self.taken - len(self._free)

    def check(self, pages: int) -> None:
        """Raises OutOfMemory, with both numbers, if so many more pages would not fit."""
        needed = max(0, pages - len(self._free)) * self.shape.page_bytes
        left = self.limit - self.taken * self.shape.page_bytes
        if needed > left:
            raise OutOfMemory(f"a cache of {pages * PAGE} positions", needed, max(0, left))

    def take(self) -> F32:
        if self._free:
            return self._free.pop()
        self.check(1)
        self.taken += 1
        return np.empty(self.shape.page_bytes // 4, np.float32)

    def give(self, page: F32) -> None:
        self._free.append(page)


class Cache:
    """The keys and values of one sequence. `length` positions are valid; `table` holds the addresses of its pages."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.length = 0
        self._pages: list[F32] = []
        self.table: I64 = np.zeros(16, np.int64)

    def reserve(self, length: int) -> None:
        """Make room for so many positions. Raises OutOfMemory; what was there stays."""
        need = -(-length // PAGE) - len(self._pages)
        if need > 0:
            self.pool.check(need)
        for _ in range(need):
            page = self.pool.take()
            if len(self._pages) == len(self.table):
                self.table = np.concatenate([self.table, np.zeros_like(self.table)])
            self.table[len(self._pages)] = page.ctypes.data
            self._pages.append(page)

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""
        self.length = min(self.length, length)
        for page in self._pages[-(-self.length // PAGE) :]:
            self.pool.give(page)
        del self._pages[-(-self.length // PAGE) :]

    def release(self) -> None:
        """Give every page back."""
        self.truncate(0)

    def __repr__(self) -> str:
        return f"<Cache of {self.length} positions in {len(self._pages)} pages>"


def available_memory() -> int:
    """Bytes this process may still take, as far as the system tells."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 33
