"""Attention over a paged cache, and writing to it.

A page holds PAGE positions of one layer; for each key-value head first K, in tiles of eight positions with the
positions side by side (so eight scores come from one pass over the head's width and need no horizontal sum), then K's
scales, V row after row, and V's scales. A sequence's table gives the address of each of its pages for the first layer
of a group; a layer lies `layer` bytes on. Numbers are float32, float16, or 8-bit codes with a float32 scale for each
position and head (cache/pages.py has the sizes).

The contract: score(q, k) = scale · chain of fma over the head's width in ascending order, then capped and sloped where
the model has it; softmax over positions with
lanes by absolute position mod 8; out[d] = chain of fma over positions in ascending order. A position outside a query's
view has probability exactly 0 and changes nothing, so how queries are grouped, chunked or paged leaves every bit alone.
"""

from __future__ import annotations

import numpy as np

from glassbox.model.kernels.elementwise import cap_row, copy_row, softmax_row
from glassbox.model.kernels.formats import inlined, kernel
from glassbox.model.kernels.simd import (
    broadcast,
    float8,
    fma8,
    largest8,
    load1,
    load8,
    load8b,
    load8h,
    load_i64,
    magnitude8,
    max8,
    mul8,
    prefetch,
    splat8,
    store1,
    store1b,
    store1h,
    store8,
    zero8,
)  # fmt: skip

PAGE = 32  # positions a page, a multiple of eight; as in cache/pages.py
UNSEEN = -1.0e30  # a score so low that its exp is 0
F32, F16, Q8 = 0, 1, 2  # kinds of cache, as in cache/pages.py


@inlined
def number_bytes(kind):
    return 4 if kind == F32 else 2 if kind == F16 else 1


@inlined
def scale_bytes(kind):
    return 4 if kind == Q8 else 0


@inlined
def head_bytes(kind, width):
    return 2 * PAGE * (width * number_bytes(kind) + scale_bytes(kind))


@inlined
def page_at(table, position):
    """Address of the page that holds `position`, for the first layer of its group."""
    return load_i64(table + 8 * (position // PAGE))


@inlined
def eight_numbers(kind, p, i):
    """Numbers i … i+7 of the run at p, as float32; 8-bit codes without their scale."""
    if kind == F32:
        return load8(p + 4 * i)
    if kind == F16:
        return load8h(p + 2 * i)
    return float8(load8b(p + i))


@inlined
def put(kind, p, i, x):
    """Number i of the run at p; 8-bit codes get x already divided by their scale."""
    if kind == F32:
        store1(p + 4 * i, x)
    elif kind == F16:
        store1h(p + 2 * i, x)
    else:
        store1b(p + i, x)


@kernel
def row_scale(kind, row, width):
    """The scale of an 8-bit row: its largest magnitude becomes 127. 1 for the other kinds, and for a row of zeros."""
    if kind != Q8:
        return np.float32(1.0)
    most = zero8()
    for d in range(0, 4 * width, 32):
        most = max8(magnitude8(load8(row + d)), most)
    largest = largest8(most)
    return largest / np.float32(127.0) if largest > np.float32(0.0) else np.float32(1.0)


@kernel
def store_kv(kind, k, v, table, position, kv_heads, width, layer):
    """Put one token's keys and values [kv_heads, width] into its page."""
    slot, size = position % PAGE, number_bytes(kind)
    for h in range(kv_heads):
        page = page_at(table, position) + layer + h * head_bytes(kind, width)
        kv_bytes = head_bytes(kind, width) // 2
        row = k + 4 * h * width
        scale = row_scale(kind, row, width)
        by = np.float32(1.0) / scale
        tile = page + (slot // 8) * (8 * width * size)
        for d in range(width):
            put(kind, tile, 8 * d + slot % 8, load1(row + 4 * d) * by)
        if kind == Q8:
            store1(page + PAGE * width * size + 4 * slot, scale)
        row = v + 4 * h * width
        scale = row_scale(kind, row, width)
        by = np.float32(1.0) / scale
        for d in range(width):
            put(kind, page + kv_bytes + slot * width * size, d, load1(row + 4 * d) * by)
        if kind == Q8:
            store1(page + kv_bytes + PAGE * width * size + 4 * slot, scale)


@inlined
def tile_of_keys(kind, table, position, head, width, layer):
    """(address of the tile of eight keys at `position`, address of their scales)."""
    page = page_at(table, position) + layer + head * head_bytes(kind, width)
    size = number_bytes(kind)
    return page + (position % PAGE // 8) * (8 * width * size), page + PAGE * width * size + position % PAGE * 4


@inlined
def put_scores(kind, s, stride, scales, by, a0, a1, a2, a3):
    """Eight scores of each of four queries."""
    if kind == Q8:
        by = mul8(by, load8(scales))
    store8(s, mul8(a0, by))
    store8(s + stride, mul8(a1, by))
    store8(s + 2 * stride, mul8(a2, by))
    store8(s + 3 * stride, mul8(a3, by))


def scores4(kind):
    """Make the function for one kind of cache."""

    @kernel
    def run(q0, q1, q2, q3, table, head, width, layer, first, end, scale, s0, stride):
        """Scores of four queries at positions first … end (multiples of eight), sixteen at a time, to s0 + i·stride."""
        for at in range(first, end, 16):
            last = min(at + 8, end - 8)  # an odd tile at the end is done twice rather than apart
            k, k_scales = tile_of_keys(kind, table, at, head, width, layer)
            m, m_scales = tile_of_keys(kind, table, last, head, width, layer)
            ahead, _ = tile_of_keys(kind, table, min(at + 16, last), head, width, layer)  # of what comes next
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero8()
            for d in range(width):
                prefetch(ahead + 16 * number_bytes(kind) * d)
                x, y = eight_numbers(kind, k, 8 * d), eight_numbers(kind, m, 8 * d)
                w0, w1 = broadcast(q0 + 4 * d), broadcast(q1 + 4 * d)
                w2, w3 = broadcast(q2 + 4 * d), broadcast(q3 + 4 * d)
                a0, b0 = fma8(w0, x, a0), fma8(w0, y, b0)
                a1, b1 = fma8(w1, x, a1), fma8(w1, y, b1)
                a2, b2 = fma8(w2, x, a2), fma8(w2, y, b2)
                a3, b3 = fma8(w3, x, a3), fma8(w3, y, b3)
            put_scores(kind, s0 + 4 * (at - first), stride, k_scales, splat8(scale), a0, a1, a2, a3)
            put_scores(kind, s0 + 4 * (last - first), stride, m_scales, splat8(scale), b0, b1, b2, b3)

    return run


@kernel
def hide(s, first, end, low, high):
    """Positions outside low … high (inclusive) get a score whose probability is 0."""
    for t in range(first, low):
        store1(s + 4 * (t - first), UNSEEN)
    for t in range(high + 1, end):
        store1(s + 4 * (t - first), UNSEEN)


@kernel
def slope(s, first, at, by):
    """Each score falls by `by` with every position that it lies before `at` (Press, Smith and Lewis 2021)."""
    for t in range(first, at):
        store1(s + 4 * (t - first), load1(s + 4 * (t - first)) - by * np.float32(at - t))


@inlined
def weight(kind, p, scales, slot):
    """A probability in every lane; of an 8-bit row, times the row's scale."""
    if kind == Q8:
        return mul8(broadcast(p), broadcast(scales + 4 * slot))
    return broadcast(p)


def mix4(kind):
    """Make the function for one kind of cache."""

    @kernel
    def run(p0, stride, table, head, width, layer, first, low, high, o0, o1, o2, o3):
        """Four weighted sums of values over positions low … high (inclusive): page by page, so that a page is read
        from memory once, and sixteen columns at a time, whose sums wait in the output between pages."""
        t = low
        while t <= high:
            values = values_at(kind, table, t, head, width, layer)
            ahead = values_at(kind, table, min(t + PAGE, high), head, width, layer)
            stop = min((t // PAGE + 1) * PAGE, high + 1)
            for d in range(0, width, 16):
                mix_page(
                    kind, p0 + 4 * (t - first), stride, values, ahead, t % PAGE, t % PAGE + stop - t, width, d,
                    t == low, o0 + 4 * d, o1 + 4 * d, o2 + 4 * d, o3 + 4 * d,
                )  # fmt: skip
            t = stop

    return run


@inlined
def values_at(kind, table, position, head, width, layer):
    """Address of the values of the page that holds `position`."""
    return page_at(table, position) + layer + head * head_bytes(kind, width) + head_bytes(kind, width) // 2


@inlined
def mix_page(kind, p, stride, values, ahead, begin, end, width, d, is_first, o0, o1, o2, o3):
    """Add slots begin … end of one page to columns d … d+16 of four sums."""
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero8()
    if not is_first:
        a0, b0, a1, b1 = load8(o0), load8(o0 + 32), load8(o1), load8(o1 + 32)
        a2, b2, a3, b3 = load8(o2), load8(o2 + 32), load8(o3), load8(o3 + 32)
    scales = values + PAGE * width * number_bytes(kind)
    for slot in range(begin, end):
        prefetch(ahead + (slot * width + d) * number_bytes(kind))
        x = eight_numbers(kind, values, slot * width + d)
        y = eight_numbers(kind, values, slot * width + d + 8)
        w0, w1 = weight(kind, p, scales, slot), weight(kind, p + stride, scales, slot)
        w2, w3 = weight(kind, p + 2 * stride, scales, slot), weight(kind, p + 3 * stride, scales, slot)
        a0, b0 = fma8(w0, x, a0), fma8(w0, y, b0)
        a1, b1 = fma8(w1, x, a1), fma8(w1, y, b1)
        a2, b2 = fma8(w2, x, a2), fma8(w2, y, b2)
        a3, b3 = fma8(w3, x, a3), fma8(w3, y, b3)
        p += 4
    store16(o0, a0, b0)
    store16(o1, a1, b1)
    store16(o2, a2, b2)
    store16(o3, a3, b3)


@inlined
def store16(p, a, b):
    store8(p, a)
    store8(p + 32, b)


scores_f32, mix_f32 = scores4(F32), mix4(F32)
scores_f16, mix_f16 = scores4(F16), mix4(F16)
scores_q8, mix_q8 = scores4(Q8), mix4(Q8)


@kernel
def scores(kind, q0, q1, q2, q3, table, head, width, layer, first, end, scale, s0, stride):
    if kind == F32:
        scores_f32(q0, q1, q2, q3, table, head, width, layer, first, end, scale, s0, stride)
    elif kind == F16:
        scores_f16(q0, q1, q2, q3, table, head, width, layer, first, end, scale, s0, stride)
    else:
        scores_q8(q0, q1, q2, q3, table, head, width, layer, first, end, scale, s0, stride)


@kernel
def mix(kind, p0, stride, table, head, width, layer, first, low, high, o0, o1, o2, o3):
    if kind == F32:
        mix_f32(p0, stride, table, head, width, layer, first, low, high, o0, o1, o2, o3)
    elif kind == F16:
        mix_f16(p0, stride, table, head, width, layer, first, low, high, o0, o1, o2, o3)
    else:
        mix_q8(p0, stride, table, head, width, layer, first, low, high, o0, o1, o2, o3)


@kernel
def query_at(base, stride, i, group, head, width):
    """Row of query i of one key-value head: token i // group, query head `head·group + i mod group`."""
    return base + (i // group) * stride + 4 * width * (head * group + i % group)


@kernel
def attend(
    kind, q, q_stride, out, out_stride, positions, tables, head, group, width, layer, window, scale, begin, end,
    scratch, s_stride, scores_to, probs_to, see_width, heads, cap, slopes,
):  # fmt: skip
    """Queries begin … end of one key-value head, up to four of one sequence at a time.

    positions, tables: int64 [T]; window: how many positions a query sees, itself included (0: all). scores_to and
    probs_to are 0 or float32 [T, heads, see_width]. cap and slopes: see Program.attend.
    """
    i = begin
    while i < end:
        table = load_i64(tables + 8 * (i // group))
        n = 1
        while n < 4 and i + n < end and load_i64(tables + 8 * ((i + n) // group)) == table:
            n += 1
        j, k, m = i + min(1, n - 1), i + min(2, n - 1), i + n - 1
        high = load_i64(positions + 8 * (m // group))
        low = 0
        if window > 0:
            low = max(0, load_i64(positions + 8 * (i // group)) - window + 1)
        first, stop = low // 8 * 8, (high // 8 + 1) * 8
        scores(
            kind, query_at(q, q_stride, i, group, head, width), query_at(q, q_stride, j, group, head, width),
            query_at(q, q_stride, k, group, head, width), query_at(q, q_stride, m, group, head, width),
            table, head, width, layer, first, stop, scale, scratch, s_stride,
        )  # fmt: skip
        for c in range(n):
            s = scratch + c * s_stride
            at = load_i64(positions + 8 * ((i + c) // group))
            if cap > np.float32(0.0):
                cap_row(s, s, stop - first, cap)
            if slopes != 0:
                slope(s, first, at, load1(slopes + 4 * (head * group + (i + c) % group)))
            hide(s, first, stop, 0 if window <= 0 else max(0, at - window + 1), at)
            see(s, first, stop, scores_to, i + c, group, head, heads, see_width)
            softmax_row(s, stop - first)
            see(s, first, stop, probs_to, i + c, group, head, heads, see_width)
        for c in range(n, 4):
            copy_row(scratch + (n - 1) * s_stride, scratch + c * s_stride, stop - first)
        mix(
            kind, scratch, s_stride, table, head, width, layer, first, low, high,
            query_at(out, out_stride, i, group, head, width), query_at(out, out_stride, j, group, head, width),
            query_at(out, out_stride, k, group, head, width), query_at(out, out_stride, m, group, head, width),
        )  # fmt: skip
        i += n


@kernel
def see(s, first, stop, to, i, group, head, heads, see_width):
    """Copy one row of scores or probabilities out, when somebody looks."""
    if to != 0:
        row = to + 4 * see_width * ((i // group) * heads + head * group + i % group)
        for t in range(first, min(stop, see_width)):
            store1(row + 4 * t, load1(s + 4 * (t - first)))
