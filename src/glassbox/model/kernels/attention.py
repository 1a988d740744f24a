"""Attention over a paged cache, and writing to it.

A page holds PAGE positions of one layer; for each key-value head first K, in tiles of eight positions with the
positions side by side (so eight scores come from one pass over the head's width and need no horizontal sum), then V,
row after row. A sequence's table gives the address of each of its pages for layer 0; a layer lies `layer_bytes` on.

The contract: score(q, k) = scale · chain of fma over the head's width in ascending order; softmax over positions with
lanes by absolute position mod 8; out[d] = chain of fma over positions in ascending order. A position outside a query's
view has probability exactly 0 and changes nothing, so how queries are grouped, chunked or paged leaves every bit alone.
"""

from __future__ import annotations

from glassbox.model.kernels.elementwise import copy_row, softmax_row
from glassbox.model.kernels.matmul import kernel
from glassbox.model.kernels.simd import broadcast, fma8, load1, load8, load_i64, mul8, splat8, store1, store8, zero8

PAGE = 32  # positions a page, a multiple of eight
UNSEEN = -1.0e30  # a score so low that its exp is 0


@kernel
def page_at(table, position, head, width):
    """Address of one head's part of the page that holds `position` (for layer 0)."""
    return load_i64(table + 8 * (position // PAGE)) + head * (2 * PAGE * width * 4)


@kernel
def store_kv(k, v, table, position, kv_heads, width, layer_offset):
    """Put one token's keys and values [kv_heads, width] into its page."""
    slot = position % PAGE
    for h in range(kv_heads):
        page = page_at(table, position, h, width) + layer_offset
        to = page + (slot // 8) * (width * 32) + (slot % 8) * 4
        for d in range(width):
            store1(to + 32 * d, load1(k + 4 * (h * width + d)))
        copy_row(v + 4 * h * width, page + PAGE * width * 4 + slot * width * 4, width)


@kernel
def scores4(q0, q1, q2, q3, table, head, width, layer_offset, first, end, scale, s0, stride):
    """Scores of four queries at positions first … end (multiples of eight), sixteen at a time, to s0 + i·stride."""
    by = splat8(scale)
    for at in range(first, end, 16):
        page = page_at(table, at, head, width) + layer_offset
        k = page + ((at % PAGE) // 8) * (width * 32)
        last = min(at + 8, end - 8)  # an odd tile at the end is done twice rather than apart
        page = page_at(table, last, head, width) + layer_offset
        l = page + ((last % PAGE) // 8) * (width * 32)  # noqa: E741
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero8()
        for d in range(0, 4 * width, 4):
            x, y = load8(k + 8 * d), load8(l + 8 * d)
            w0, w1, w2, w3 = broadcast(q0 + d), broadcast(q1 + d), broadcast(q2 + d), broadcast(q3 + d)
            a0, b0 = fma8(w0, x, a0), fma8(w0, y, b0)
            a1, b1 = fma8(w1, x, a1), fma8(w1, y, b1)
            a2, b2 = fma8(w2, x, a2), fma8(w2, y, b2)
            a3, b3 = fma8(w3, x, a3), fma8(w3, y, b3)
        s, t = s0 + 4 * (at - first), s0 + 4 * (last - first)
        store8(s, mul8(a0, by))
        store8(s + stride, mul8(a1, by))
        store8(s + 2 * stride, mul8(a2, by))
        store8(s + 3 * stride, mul8(a3, by))
        store8(t, mul8(b0, by))
        store8(t + stride, mul8(b1, by))
        store8(t + 2 * stride, mul8(b2, by))
        store8(t + 3 * stride, mul8(b3, by))


@kernel
def hide(s, first, end, low, high):
    """Positions outside low … high (inclusive) get a score whose probability is 0."""
    for t in range(first, low):
        store1(s + 4 * (t - first), UNSEEN)
    for t in range(high + 1, end):
        store1(s + 4 * (t - first), UNSEEN)


@kernel
def mix4(p0, stride, table, head, width, layer_offset, first, low, high, o0, o1, o2, o3):
    """Four weighted sums of values over positions low … high (inclusive), sixteen columns at a time."""
    for d in range(0, 4 * width, 64):
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero8()
        t = low
        while t <= high:
            page = page_at(table, t, head, width) + layer_offset + PAGE * width * 4
            stop = min((t // PAGE + 1) * PAGE, high + 1)
            for u in range(t, stop):
                v = page + (u % PAGE) * width * 4 + d
                x, y = load8(v), load8(v + 32)
                p = p0 + 4 * (u - first)
                w0, w1 = broadcast(p), broadcast(p + stride)
                w2, w3 = broadcast(p + 2 * stride), broadcast(p + 3 * stride)
                a0, b0 = fma8(w0, x, a0), fma8(w0, y, b0)
                a1, b1 = fma8(w1, x, a1), fma8(w1, y, b1)
                a2, b2 = fma8(w2, x, a2), fma8(w2, y, b2)
                a3, b3 = fma8(w3, x, a3), fma8(w3, y, b3)
            t = stop
        store8(o0 + d, a0)
        store8(o0 + d + 32, b0)
        store8(o1 + d, a1)
        store8(o1 + d + 32, b1)
        store8(o2 + d, a2)
        store8(o2 + d + 32, b2)
        store8(o3 + d, a3)
        store8(o3 + d + 32, b3)


@kernel
def query_at(base, stride, i, group, head, width):
    """Row of query i of one key-value head: token i // group, query head `head·group + i mod group`."""
    return base + (i // group) * stride + 4 * width * (head * group + i % group)


@kernel
def attend(
    q, q_stride, out, out_stride, positions, tables, head, group, width, layer_offset, window, scale, begin, end,
    scratch, s_stride, scores_to, probs_to, see_width, heads,
):  # fmt: skip
    """Queries begin … end of one key-value head, up to four of one sequence at a time.

    positions, tables: int64 [T]; window: how many positions a query sees, itself included (0: all). scores_to and
    probs_to are 0 or float32 [T, heads, see_width].
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
        scores4(
            query_at(q, q_stride, i, group, head, width), query_at(q, q_stride, j, group, head, width),
            query_at(q, q_stride, k, group, head, width), query_at(q, q_stride, m, group, head, width),
            table, head, width, layer_offset, first, stop, scale, scratch, s_stride,
        )  # fmt: skip
        for c in range(n):
            s = scratch + c * s_stride
            at = load_i64(positions + 8 * ((i + c) // group))
            hide(s, first, stop, 0 if window <= 0 else max(0, at - window + 1), at)
            see(s, first, stop, scores_to, i + c, group, head, heads, see_width)
            softmax_row(s, stop - first)
            see(s, first, stop, probs_to, i + c, group, head, heads, see_width)
        for c in range(n, 4):
            copy_row(scratch + (n - 1) * s_stride, scratch + c * s_stride, stop - first)
        mix4(
            scratch, s_stride, table, head, width, layer_offset, first, low, high,
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
