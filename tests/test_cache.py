"""Pages, their counts, sharing and copying, and the tree of prefixes."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassbox.cache.pages import PAGE, Cache, Group, PagePool, PageShape
from glassbox.cache.prefix import PrefixStore, block_key, chained
from glassbox.errors import OutOfMemory

PLAIN = PageShape((Group(2, 0),), kv_heads=1, head_width=16)
WINDOWED = PageShape((Group(1, 0), Group(2, 40)), kv_heads=1, head_width=16)


def filled(pool: PagePool, ids: list[int]) -> Cache:
    """A cache whose pages hold, wherever one looks, the id of the position (as a stand-in for keys and values)."""
    cache = Cache(pool)
    write(cache, ids)
    return cache


def write(cache: Cache, ids: list[int]) -> None:
    """Append ids; content goes where a kernel would put it: float32 number `slot` of the page."""
    for i in ids:
        cache.reserve(cache.length + 1)
        for table in cache.tables:
            page = table.pages[cache.length // PAGE]
            assert page is not None
            page.memory[page.address - page.memory.ctypes.data :][: 4 * PAGE].view(np.float32)[cache.length % PAGE] = i
        cache.length += 1


def read(cache: Cache) -> list[list[int | None]]:
    """For each group what stands at every position (None where it was given back)."""
    out: list[list[int | None]] = []
    for table in cache.tables:
        row: list[int | None] = []
        for at in range(cache.length):
            page = table.pages[at // PAGE]
            if page is None:
                row.append(None)
            else:
                assert table.addresses[at // PAGE] == page.address
                row.append(
                    int(page.memory[page.address - page.memory.ctypes.data :][: 4 * PAGE].view(np.float32)[at % PAGE])
                )
        out.append(row)
    return out


# --- pages ---------------------------------------------------------------------------------------------------------


def test_bytes_are_the_formula() -> None:
    shape = PageShape((Group(30, 0),), kv_heads=3, head_width=64)
    assert shape.page_bytes(0) == 32 * 30 * 2 * 3 * 64 * 4
    assert shape.sequence_bytes(2048) == 2048 * 30 * 2 * 3 * 64 * 4
    assert PageShape((Group(30, 0),), 3, 64, "f16").sequence_bytes(2048) * 2 == shape.sequence_bytes(2048)
    assert PageShape((Group(1, 0),), 1, 16, "q8").page_bytes(0) == 32 * 2 * (16 + 4)


def test_windowed_layers_need_no_more_than_their_window() -> None:
    short, long = WINDOWED.sequence_bytes(1000), WINDOWED.sequence_bytes(100_000)
    grown = (100_000 - 1000) // PAGE * WINDOWED.page_bytes(0)
    assert abs(long - short - grown) <= WINDOWED.page_bytes(0)


def test_too_little_memory_is_refused_with_numbers_and_loses_nothing() -> None:
    pool = PagePool(PLAIN, limit=3 * PLAIN.page_bytes(0))
    cache = filled(pool, list(range(3 * PAGE)))
    with pytest.raises(OutOfMemory, match="needs 8,192 bytes, but only 0 are available"):
        cache.reserve(3 * PAGE + 1)
    assert read(cache) == [list(range(3 * PAGE))]
    cache.release()
    assert pool.used == 0


def test_a_fork_is_written_apart() -> None:
    pool = PagePool(WINDOWED)
    a = filled(pool, list(range(45)))
    used = pool.used
    b = a.fork()
    assert pool.used == used  # shared
    write(b, [100, 101])
    write(a, [200])
    assert read(a) == [[*range(45), 200]] * 2 and read(b) == [[*range(45), 100, 101]] * 2
    a.release()
    assert read(b) == [[*range(45), 100, 101]] * 2
    b.release()
    assert pool.used == 0


def test_windowed_pages_are_given_back() -> None:
    pool = PagePool(WINDOWED)
    cache = filled(pool, list(range(200)))
    cache.trim()
    assert read(cache)[0] == list(range(200))
    kept = [x for x in read(cache)[1] if x is not None]
    assert kept == list(range(160, 200)) and len(kept) >= 40 - 1
    write(cache, [7])
    cache.truncate(100)
    with pytest.raises(RuntimeError, match="given back"):
        cache.reserve(101)


def test_a_page_that_is_gone_is_not_written_to() -> None:
    """Also where it is the only one that would be read: what comes next would go into it."""
    cache = filled(PagePool(WINDOWED), list(range(200)))
    cache.trim()
    cache.truncate(5)
    with pytest.raises(RuntimeError, match="given back"):
        cache.reserve(6)


@pytest.mark.parametrize(("length", "kept"), [(70, 0), (71, 32), (72, 32), (102, 32), (103, 64)])
def test_a_page_is_kept_until_its_last_position_is_out_of_the_window(length: int, kept: int) -> None:
    """The id that comes next sees itself and the 39 before it."""
    cache = filled(PagePool(WINDOWED), list(range(length)))
    cache.trim()
    assert next(x for x in read(cache)[1] if x is not None) == kept


def test_memory_of_one_group_can_serve_another() -> None:
    pool = PagePool(WINDOWED, limit=2 * WINDOWED.page_bytes(1))
    pages = [pool.take(1), pool.take(1)]
    memory = [weakref.ref(page.memory) for page in pages]
    while pages:
        pool.give(pages.pop())
    held = [pool.take(0) for _ in range(4)]
    assert pool.used == pool.limit
    assert [m() for m in memory] == [None, None]  # the system has it back
    for page in held:
        pool.give(page)


# --- prefixes ------------------------------------------------------------------------------------------------------


def store(pool: PagePool, **how: int) -> PrefixStore:
    return PrefixStore(pool, ["model", "m", "kv", "f32"], **how)


def attached(prefixes: PrefixStore, ids: list[int], salt: str = "") -> tuple[Cache, int, str]:
    cache = Cache(prefixes.pool)
    reuse = prefixes.attach(cache, ids, salt)
    assert reuse.length == cache.length
    return cache, reuse.length, reuse.why


IDS = list(range(1000, 1100))


def test_all_but_the_last_id_is_reused() -> None:
    """C15-01, C15-02: 30 of 31."""
    pool = PagePool(PLAIN)
    prefixes = store(pool)
    first = filled(pool, IDS[:31])
    prefixes.insert(first, IDS[:31])
    cache, length, why = attached(prefixes, IDS[:31])
    assert length == 30 and "every id but the last" in why
    assert read(cache) == [IDS[:30]]


@pytest.mark.parametrize("shared", [0, 1, 31, 32, 33, 64, 70, 99])
def test_the_longest_common_beginning_is_reused(shared: int) -> None:
    pool = PagePool(PLAIN)
    prefixes = store(pool)
    prefixes.insert(filled(pool, IDS), IDS)
    asked = [*IDS[:shared], 1, 2, 3, 4]
    cache, length, why = attached(prefixes, asked)
    assert length == shared and read(cache) == [IDS[:shared]]
    assert f"position {shared} the cached sequence has id {1000 + shared}, this one id 1" in why
    write(cache, asked[shared:])
    assert read(cache) == [asked]
    again, _, _ = attached(prefixes, [*IDS, 5])
    assert read(again) == [IDS]  # writing did not touch what is kept


def test_salts_and_fields_keep_apart() -> None:
    """C08-04, C08-05: a key is its content; fields do not run together."""
    pool = PagePool(PLAIN)
    prefixes = store(pool)
    prefixes.insert(filled(pool, IDS), IDS, "alice")
    assert attached(prefixes, IDS, "bob")[1] == 0 and attached(prefixes, IDS)[1] == 0
    assert attached(prefixes, IDS, "alice")[1] == 99
    assert chained(b"", ["adapter", "X", "salt", ""]) != chained(b"", ["adapter", "", "salt", "X"])
    assert chained(b"", ["ab", "c"]) != chained(b"", ["a", "bc"])
    assert block_key(b"", [1, 23]) != block_key(b"", [12, 3])


def test_what_was_changed_inside_keeps_apart() -> None:
    prefixes = store(PagePool(PLAIN))
    prefixes.insert(filled(prefixes.pool, IDS), IDS, changed="a digest")
    assert [prefixes.attach(Cache(prefixes.pool), IDS, "", c).length for c in ("", "another", "a digest")] == [0, 0, 99]


def test_ids_are_compared_on_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if every hash were equal, other ids would not be taken for these."""
    monkeypatch.setattr("glassbox.cache.prefix.block_key", lambda parent, ids: parent + b"x")
    pool = PagePool(PLAIN)
    prefixes = store(pool)
    prefixes.insert(filled(pool, IDS), IDS)
    assert attached(prefixes, [5] * 100)[1] == 0


def test_the_oldest_tail_goes_first() -> None:
    pool = PagePool(PLAIN)
    prefixes = store(pool, limit=4 * PLAIN.page_bytes(0))
    a, b = IDS[:64], [7] * 64
    for ids in (a, b):
        cache = filled(pool, ids)
        prefixes.insert(cache, ids)
        cache.release()
    attached(prefixes, [*a, 1])[0].release()  # a is younger now
    cache = filled(pool, [8] * 32)
    prefixes.insert(cache, [8] * 32)
    cache.release()
    assert attached(prefixes, [*b, 1])[1] == 32 and attached(prefixes, [*a, 1])[1] == 64
    assert prefixes.held == 4 * PLAIN.page_bytes(0)


def test_a_quarter_of_the_memory_is_kept_unless_it_is_said() -> None:
    prefixes = store(PagePool(PLAIN, limit=8 * PLAIN.page_bytes(0)))
    cache = filled(prefixes.pool, IDS)
    prefixes.insert(cache, IDS)
    cache.release()
    assert prefixes.held == prefixes.pool.used == 2 * PLAIN.page_bytes(0) and attached(prefixes, IDS)[1] == 64


def test_a_longer_beginning_of_a_page_takes_the_place_of_the_shorter() -> None:
    prefixes = store(PagePool(PLAIN))
    cache = filled(prefixes.pool, IDS[:10])
    prefixes.insert(cache, IDS[:10])
    write(cache, IDS[10:20])  # to a copy: the store holds the page
    prefixes.insert(cache, IDS[:20])
    cache.release()
    assert len(prefixes) == 1 and prefixes.held == prefixes.pool.used == PLAIN.page_bytes(0)
    cache, length, _ = attached(prefixes, IDS)
    assert length == 20 and read(cache) == [IDS[:20]]


def test_a_page_that_two_beginnings_share_counts_once() -> None:
    """Neither is evicted for room that nothing takes."""
    pool = PagePool(PLAIN)
    prefixes = store(pool, limit=2 * PLAIN.page_bytes(0))
    cache = filled(pool, IDS[:32])
    prefixes.insert(cache, IDS[:32])
    cache.release()
    for end in (20, 10):  # each ends inside the page, and writes nothing to it
        cache, length, _ = attached(prefixes, [*IDS[:end], 1])
        assert length == end
        prefixes.insert(cache, IDS[:end])
        cache.release()
    assert len(prefixes) == 3 and prefixes.held == pool.used == PLAIN.page_bytes(0)
    assert prefixes.evict() and prefixes.held == pool.used == PLAIN.page_bytes(0)
    prefixes.clear()
    assert prefixes.held == pool.used == 0


def test_a_pool_that_is_short_takes_back_what_is_only_kept() -> None:
    pool = PagePool(PLAIN, limit=4 * PLAIN.page_bytes(0))
    prefixes = store(pool, limit=pool.limit)
    pool.reclaim = prefixes.evict
    cache = filled(pool, IDS)
    prefixes.insert(cache, IDS)
    cache.release()
    assert pool.used == pool.limit
    other = filled(pool, [3] * 128)
    assert read(other) == [[3] * 128] and len(prefixes) == 0


def test_windowed_layers_limit_reuse_and_say_so() -> None:
    """C08-06: the full layers still hold everything, the windowed ones do not."""
    pool = PagePool(WINDOWED)
    prefixes = store(pool)
    ids = list(range(300))
    cache = filled(pool, ids)
    cache.trim()
    prefixes.insert(cache, ids)
    _, length, why = attached(prefixes, [*ids[:100], 5])
    assert length == 0 and "100 ids agree, but windowed layers have given back" in why
    warm, length, _ = attached(prefixes, [*ids, 5])
    assert length == 300 and read(warm)[1][-39:] == ids[-39:]


def test_what_windows_gave_back_leaves_the_whole_pages_before_it() -> None:
    """A short prompt, and a long one whose windowed layers reach back less far than the short one came."""
    prefixes = store(PagePool(WINDOWED))
    ids = list(range(300))
    prefixes.insert(filled(prefixes.pool, ids[:70]), ids[:70])
    cache, length, _ = attached(prefixes, ids)
    assert length == 70
    write(cache, ids[70:])
    cache.trim()
    prefixes.insert(cache, ids)
    again, length, why = attached(prefixes, [*ids[:200], 5])
    assert length == 64 and "200 ids agree, but windowed layers have given back" in why
    assert read(again) == [ids[:64]] * 2


ACTS = ["run", "fork", "cut", "evict", "drop"]
sequences = st.lists(st.integers(0, 2), min_size=1, max_size=90)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(["run", "fork", "cut", "evict", "drop"]), sequences), min_size=1, max_size=14)
)
def test_whatever_happens_content_is_right_and_no_page_leaks(acts: list[tuple[str, list[int]]]) -> None:
    pool = PagePool(WINDOWED, limit=40 * WINDOWED.page_bytes(1))
    prefixes = store(pool, limit=12 * WINDOWED.page_bytes(1))
    pool.reclaim = prefixes.evict
    live: list[tuple[Cache, list[int]]] = []
    for act, ids in acts:
        if act == "run":
            cache, length, _ = attached(prefixes, ids)
            write(cache, ids[length:])
            prefixes.insert(cache, ids)
            live.append((cache, list(ids)))
        elif act == "fork" and live:
            cache, had = live[-1]
            twin = cache.fork()
            write(twin, ids)
            live.append((twin, had + ids))
        elif act == "cut" and live:
            cache, had = live[0]
            cache.truncate(len(had) // 2)
            live[0] = (cache, had[: len(had) // 2])
        elif act == "evict":
            prefixes.evict()
        elif act == "drop" and live:
            live.pop(0)[0].release()
        for cache, had in live:
            assert read(cache) == [had, had]
    for cache, _ in live:
        cache.release()
    assert pool.used == prefixes.held
    prefixes.clear()
    assert pool.used == 0 == prefixes.held
