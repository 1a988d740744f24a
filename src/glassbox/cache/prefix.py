"""Reuse of what was computed for an earlier prompt: a tree of pages by the ids they hold.

Comes in: the ids of a new prompt. Goes out: how many of its first positions are there already, in which pages, and why
not more. A node is one page of ids behind its parent's; its key is a chained hash over everything that touches keys and
values (the root's fields) and all ids up to its end. The ids themselves are compared on a hit. The last id of a prompt
is never reused: its logits are needed. Least recently used pages go first, from the tail.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from glassbox.cache.pages import PAGE, Cache, Page, PagePool


@dataclass(slots=True, eq=False)
class Node:
    """One page of ids (the last one of a sequence may hold fewer) and its pages, one a group of layers (None: gone)."""

    key: bytes
    ids: tuple[int, ...]
    pages: list[Page | None]
    parent: Node | None
    children: dict[bytes, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reuse:
    """How much of a prompt was there: `matched` ids agree, `length` of them can be used, `why` says what ended it."""

    length: int
    matched: int
    why: str
    had: int | None = None  # the cached id at position `matched`, where another one stood


class PrefixStore:
    """The tree. It holds a reference to each page it knows; the engine's lock guards it."""

    def __init__(self, pool: PagePool, fields: Sequence[str], limit: int | None = None) -> None:
        """fields: what touches keys and values, beside the ids. limit: bytes of pages to keep (default: a quarter)."""
        self.pool = pool
        self.limit = pool.limit // 4 if limit is None else limit
        self.held = 0  # bytes of the pages it knows
        self._holders: Counter[Page] = Counter()  # nodes of each page: two may begin alike in it
        self._fields = tuple(fields)
        self._roots: dict[bytes, Node] = {}
        self._by_age: OrderedDict[bytes, Node] = OrderedDict()  # a parent is always younger than its children

    def attach(self, cache: Cache, ids: Sequence[int], salt: str = "", changed: str = "") -> Reuse:
        """changed: what was done to inner values, as a digest; "" for nothing.

        Give the empty `cache` the pages of the longest usable prefix of ids[:-1]."""
        path, matched, had = self._walk(ids[:-1], self._root(salt, changed))
        length = self._usable(path, matched)
        for group, table in enumerate(cache.tables):
            for block, node in enumerate(path[: -(-length // PAGE)]):
                page = node.pages[group]
                table.put(block, self.pool.share(page) if page is not None else None)
        cache.length = length
        self._touch(path)
        return Reuse(length, matched, self._reason(ids, matched, length, had), had)

    def insert(
        self, cache: Cache, ids: Sequence[int], salt: str = "", changed: str = "", *, whole_pages: bool = False
    ) -> None:
        """Remember the positions of `cache`, which holds ids[:cache.length]; whole_pages: not the last, partial one."""
        end = cache.length - cache.length % PAGE if whole_pages else cache.length
        node, path = self._root(salt, changed), []
        for begin in range(0, end, PAGE):
            block = tuple(ids[begin : min(begin + PAGE, end)])
            pages = [table.pages[begin // PAGE] for table in cache.tables]
            node = self._child(node, block, pages)
            path.append(node)
        self._touch(path)
        while self.held > self.limit and self.evict():
            pass

    def evict(self) -> bool:
        """Forget the page used least recently; False if there is none."""
        if not self._by_age:
            return False
        _, node = self._by_age.popitem(last=False)
        self._forget(node)
        if node.parent is not None:
            node.parent.children.pop(node.key, None)
        return True

    def clear(self) -> None:
        while self.evict():
            pass

    def __len__(self) -> int:
        return len(self._by_age)

    def _root(self, salt: str, changed: str) -> Node:
        key = chained(b"", [*self._fields, "salt", salt, *(["changed", changed] if changed else [])])
        return self._roots.setdefault(key, Node(key, (), [], None))

    def _walk(self, ids: Sequence[int], node: Node) -> tuple[list[Node], int, int | None]:
        """Nodes whose ids agree from the start (the last perhaps only at its beginning), how far, what stood there."""
        at = 0
        path: list[Node] = []
        while at < len(ids):
            block = tuple(ids[at : at + PAGE])
            found = node.children.get(block_key(node.key, block))
            if found is None or found.ids != block:
                found = max(node.children.values(), key=lambda n: common(n.ids, block), default=None)
            if found is None:
                return path, at, None
            same = common(found.ids, block)
            if not same:
                return path, at, found.ids[0]
            path.append(found)
            at += same
            if same < PAGE:
                return path, at, found.ids[same] if same < min(len(found.ids), len(block)) else None
            node = found
        return path, at, None

    def _usable(self, path: list[Node], matched: int) -> int:
        """The longest length up to `matched` at which every windowed layer still has what its next query reads."""
        ends = [matched, *range((matched - 1) // PAGE * PAGE, 0, -PAGE)]
        return next((end for end in ends if all(self._present(path, end, g) for g in range(len(self._groups)))), 0)

    @property
    def _groups(self) -> tuple[int, ...]:
        return tuple(group.window for group in self.pool.shape.groups)

    def _present(self, path: list[Node], end: int, group: int) -> bool:
        low = max(0, end - self._groups[group] + 1) if self._groups[group] else 0
        return all(node.pages[group] is not None for node in path[low // PAGE : -(-end // PAGE)])

    def _reason(self, ids: Sequence[int], matched: int, length: int, had: int | None) -> str:
        if length < matched:
            return f"{matched} ids agree, but windowed layers have given back what position {matched} would read"
        if matched == len(ids) - 1:
            return "every id but the last, whose logits are needed"
        if had is not None:
            return f"at position {matched} the cached sequence has id {had}, this one id {ids[matched]}"
        return "nothing cached begins so" if not matched else f"the cached sequence ends at position {matched}"

    def _child(self, node: Node, block: tuple[int, ...], pages: list[Page | None]) -> Node:
        """The child with these ids, made or completed with these pages."""
        key = block_key(node.key, block)
        child = node.children.get(key)
        if child is None:
            for other in [n for n in node.children.values() if not n.children and n.ids == block[: len(n.ids)]]:
                self._by_age.pop(other.key, None)  # a shorter beginning of the same page says nothing more
                self._forget(other)
                del node.children[other.key]
            child = node.children[key] = Node(key, block, [None] * len(pages), node)
        for group, page in enumerate(pages):
            if page is not None and child.pages[group] is None:
                child.pages[group] = self.pool.share(page)
                self._holders[page] += 1
                if self._holders[page] == 1:
                    self.held += self.pool.shape.page_bytes(group)
        return child

    def _forget(self, node: Node) -> None:
        for group, page in enumerate(node.pages):
            if page is not None:
                self._holders[page] -= 1
                if not self._holders[page]:
                    del self._holders[page]
                    self.held -= self.pool.shape.page_bytes(group)
                self.pool.give(page)
        node.pages = [None] * len(node.pages)

    def _touch(self, path: list[Node]) -> None:
        for node in reversed(path):  # children first, so that a parent is never older than they are
            self._by_age[node.key] = node
            self._by_age.move_to_end(node.key)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first ids agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def block_key(parent: bytes, ids: Sequence[int]) -> bytes:
    return chained(parent, list(map(str, ids)))


def chained(parent: bytes, fields: Sequence[str]) -> bytes:
    """A hash of the parent's and of fields, each with its length before it, so that no two lists run together."""
    h = hashlib.blake2b(parent, digest_size=16)
    for text in fields:
        data = text.encode()
        h.update(len(data).to_bytes(4, "little") + data)
    return h.digest()
