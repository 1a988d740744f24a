"""Where keys and values live: pages of a fixed number of positions, counted references, and one sequence's tables.

Layers fall into groups: those that see every position, and those that see a window. Each group has pages and a table of
its own, so that the windowed layers can give back what no query will read again. A page is shared by any number of
sequences and copied by the one that writes to it. The order of bytes inside is in model/kernels/attention.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from glassbox.errors import OutOfMemory
from glassbox.types import I64, U8

PAGE = 32  # positions a page holds
KINDS = {"f32": (4, 0), "f16": (2, 0), "q8": (1, 4)}  # bytes of a number, bytes of a scale for each position and head


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that see equally far: how many they are, and how many positions each sees (0: all)."""

    layers: int
    window: int


@dataclass(frozen=True, slots=True)
class PageShape:
    """What pages must hold. Bytes = positions × layers × 2 × key-value heads × (head width × bytes + scale bytes)."""

    groups: tuple[Group, ...]
    kv_heads: int
    head_width: int
    kind: str = "f32"

    @property
    def layer_bytes(self) -> int:
        number, scale = KINDS[self.kind]
        return PAGE * 2 * self.kv_heads * (self.head_width * number + scale)

    def page_bytes(self, group: int) -> int:
        return self.groups[group].layers * self.layer_bytes

    def sequence_bytes(self, length: int) -> int:
        """What one sequence of that length takes at most, windows given back."""
        return sum(self.pages(g, length) * self.page_bytes(g) for g in range(len(self.groups)))

    def pages(self, group: int, length: int) -> int:
        """Pages that a sequence of that length holds of one group: all, or those a window can reach into."""
        whole, window = -(-length // PAGE), self.groups[group].window
        return min(whole, -(-(window + READ_AHEAD) // PAGE) + 1) if window else whole


READ_AHEAD = 128  # positions a pass may add before it gives pages back


@dataclass(slots=True, eq=False)
class Page:
    """A block of memory, its address, and how many hold it."""

    memory: U8
    group: int
    address: int
    refs: int = 1


class PagePool:
    """Makes pages up to a limit in bytes and takes them back. Not thread-safe: the engine owns it."""

    def __init__(self, shape: PageShape, limit: int | None = None) -> None:
        """limit: bytes all pages together may take; the free memory of this machine when not given."""
        self.shape = shape
        self.limit = limit if limit is not None else available_memory()
        self.used = 0  # bytes of pages somebody holds
        self.reclaim: Callable[[], bool] | None = None  # lets go of a page that is held only in case; False if none is
        self._free: list[list[Page]] = [[] for _ in shape.groups]
        self._made = 0  # bytes of pages that exist

    @property
    def left(self) -> int:
        """Bytes that can still be taken."""
        return self.limit - self.used

    def take(self, group: int) -> Page:
        """A page nobody holds. Raises OutOfMemory, with both numbers."""
        size = self.shape.page_bytes(group)
        while size > self.left and self.reclaim is not None and self.reclaim():
            pass
        if size > self.left:
            raise OutOfMemory("a page of the cache", size, max(0, self.left))
        self.used += size
        if self._free[group]:
            page = self._free[group].pop()
            page.refs = 1
            return page
        if self._made + size > self.limit:  # free pages of another group hold the memory
            self._drop_free()
        try:
            memory: U8 = np.empty(size + 64, np.uint8)
        except MemoryError:
            self.used -= size
            raise OutOfMemory("a page of the cache", size, available_memory()) from None
        self._made += size
        begin = -memory.ctypes.data % 64  # a cache line
        return Page(memory, group, memory.ctypes.data + begin)

    def share(self, page: Page) -> Page:
        page.refs += 1
        return page

    def give(self, page: Page) -> None:
        """One holder less."""
        page.refs -= 1
        if not page.refs:
            self.used -= self.shape.page_bytes(page.group)
            self._free[page.group].append(page)

    def copy(self, page: Page) -> Page:
        """A page of one's own with the same content; the caller's hold moves to it."""
        mine = self.take(page.group)
        size = self.shape.page_bytes(page.group)
        here, there = _content(mine, size), _content(page, size)
        here[:] = there
        self.give(page)
        return mine

    def _drop_free(self) -> None:
        self._made -= sum(self.shape.page_bytes(p.group) for free in self._free for p in free)
        self._free = [[] for _ in self.shape.groups]


def _content(page: Page, size: int) -> U8:
    begin = page.address - page.memory.ctypes.data
    return page.memory[begin : begin + size]


@dataclass(slots=True)
class Table:
    """The pages of one group, by block of positions (None: given back), and their addresses for the kernels."""

    pages: list[Page | None] = field(default_factory=list)
    addresses: I64 = field(default_factory=lambda: np.zeros(16, np.int64))

    def put(self, block: int, page: Page | None) -> None:
        while block >= len(self.addresses):
            self.addresses = np.concatenate([self.addresses, np.zeros_like(self.addresses)])
        if block == len(self.pages):
            self.pages.append(page)
        else:
            self.pages[block] = page
        self.addresses[block] = 0 if page is None else page.address


class Cache:
    """The keys and values of one sequence. `length` positions are valid."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.length = 0
        self.tables = [Table() for _ in pool.shape.groups]

    def reserve(self, length: int) -> None:
        """Make positions up to `length` writable from here on. Raises OutOfMemory; what was there stays."""
        first = self.length // PAGE
        for group, table in enumerate(self.tables):
            window = self.pool.shape.groups[group].window
            low = max(0, self.length - window + 1) if window else 0
            if any(page is None for page in table.pages[low // PAGE : -(-self.length // PAGE)]):
                raise RuntimeError("a windowed layer has given back positions that would be read")
            if length > self.length and first < len(table.pages) and self.length % PAGE:
                page = table.pages[first]
                if page is not None and page.refs > 1:  # others read this page: write to a copy
                    table.put(first, self.pool.copy(page))
            for block in range(len(table.pages), -(-length // PAGE)):
                table.put(block, self.pool.take(group))

    def trim(self) -> None:
        """Give back the pages of windowed layers that no later query can read."""
        for group, table in zip(self.pool.shape.groups, self.tables, strict=True):
            if group.window:
                for block in range(max(0, self.length - group.window + 1) // PAGE):
                    page = table.pages[block]
                    if page is not None:
                        table.pages[block] = None  # first: an interrupt between may lose a page, never give it twice
                        self.pool.give(page)

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on. Windowed pages that are gone already do not come back."""
        self.length = min(self.length, length)
        for table in self.tables:
            gone = table.pages[-(-self.length // PAGE) :]
            del table.pages[-(-self.length // PAGE) :]
            for page in gone:
                if page is not None:
                    self.pool.give(page)

    def fork(self) -> Cache:
        """Another sequence with the same positions, sharing every page."""
        twin = Cache(self.pool)
        for mine, table in zip(twin.tables, self.tables, strict=True):
            mine.pages = [None if page is None else self.pool.share(page) for page in table.pages]
            mine.addresses = table.addresses.copy()
        twin.length = self.length
        return twin

    def release(self) -> None:
        """Give every page back."""
        self.truncate(0)

    def __repr__(self) -> str:
        held = sum(page is not None for table in self.tables for page in table.pages)
        return f"<Cache of {self.length} positions in {held} pages>"


def available_memory() -> int:
    """Bytes this process may still take, as far as the system tells."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 33
