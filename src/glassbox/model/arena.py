"""Memory for a model's weights: one block of anonymous memory, asked for in huge pages where the system has them.

A matrix streams past once a token, and walking small pages costs a tenth of that.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from glassbox.cache.pages import available_memory
from glassbox.errors import OutOfMemory
from glassbox.types import U8

ALIGN = 64  # a cache line


class Arena:
    """A block of memory from which aligned pieces are taken."""

    def __init__(self, nbytes: int) -> None:
        """Raises OutOfMemory."""
        try:
            if hasattr(mmap, "MADV_HUGEPAGE"):
                self._map = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                self._map.madvise(mmap.MADV_HUGEPAGE)
            else:
                self._map = mmap.mmap(-1, max(nbytes, 1))
        except (OSError, OverflowError):
            raise OutOfMemory("holding the weights", nbytes, memory_left()) from None
        self._bytes: U8 = np.frombuffer(self._map, np.uint8)
        self._used = 0

    def take(self, nbytes: int) -> U8:
        begin = self._used
        self._used = begin + -(-nbytes // ALIGN) * ALIGN
        assert self._used <= len(self._bytes), "the arena was made too small"
        return self._bytes[begin : begin + nbytes]


def buffer(nbytes: int) -> U8:
    """Memory to read into. Raises OutOfMemory."""
    try:
        return np.empty(nbytes, np.uint8)
    except MemoryError:
        raise OutOfMemory("reading the model's file", nbytes, memory_left()) from None


def memory_left() -> int:
    """Bytes that may still be asked for: what is free, or less where a limit is set (ulimit -v)."""
    free = available_memory()
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except (ImportError, OSError):
        return free
    return free if limit == resource.RLIM_INFINITY else min(free, max(0, limit - taken))
