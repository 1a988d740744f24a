"""What is done to one row of logits: the sums of its distribution in float64, who is above a bound, and its hash.

Here rather than in numpy because a library's exp differs from machine to machine in its last bit, and because one pass
over the row costs a third of numpy's six.
"""

from __future__ import annotations

from glassbox.model.kernels.formats import inlined, kernel
from glassbox.model.kernels.program import WEIGHED
from glassbox.model.kernels.simd import copy4, load1, load8, load_i64, load_u32, splat8
from glassbox.model.kernels.simd64 import (
    above8,
    add4d,
    at_least8,
    first4d,
    fma4d,
    load4d,
    load4f64,
    load_f64,
    max4d,
    mul4d,
    ones64,
    power_of_two4d,
    rotate64,
    round4d,
    shift_right64,
    splat4d,
    store4f64,
    store_f64,
    store_i64,
    sub4d,
    sum4d,
    zero4d,
    zero_below4d,
)

LEAST = -708.0  # e**z below is returned as 0; the least normal float64 is e**-708.4


@inlined
def pair(a, b, x):
    return fma4d(splat4d(b), x, splat4d(a))


@inlined
def exp4d(z):
    """e**z for z ≤ 700 to about 1 ulp: z = n·ln 2 + r, Taylor polynomial of degree 13 in r, |r| ≤ 0.35, by fma.

    1 + (r + r²·q(r)), with q as a tree (Estrin's scheme): a processor would wait for a chain of 13.
    """
    y = max4d(z, splat4d(LEAST))
    n = round4d(mul4d(y, splat4d(1.4426950408889634)))
    r = fma4d(n, splat4d(-0.693147180369123816490), y)
    r = fma4d(n, splat4d(-1.90821492927058770002e-10), r)
    r2 = mul4d(r, r)
    r4 = mul4d(r2, r2)
    low = fma4d(pair(0.041666666666666664, 0.008333333333333333, r), r2, pair(0.5, 0.16666666666666666, r))
    mid = fma4d(
        pair(2.48015873015873e-05, 2.7557319223985893e-06, r), r2, pair(0.001388888888888889, 0.0001984126984126984, r)
    )
    high = fma4d(
        pair(2.08767569878681e-09, 1.6059043836821613e-10, r), r2, pair(2.755731922398589e-07, 2.505210838544172e-08, r)
    )
    q = fma4d(fma4d(high, r4, mid), r4, low)
    e = add4d(fma4d(q, r2, r), splat4d(1.0))
    return zero_below4d(power_of_two4d(e, n), z, splat4d(LEAST))


@kernel
def exp_all(values, out, n):
    """out = e**values, float64 [n], each as in the sums; below LEAST it is 0, and values are at most 700."""
    whole = n // 4 * 4
    for i in range(0, whole, 4):
        store4f64(out + 8 * i, exp4d(load4f64(values + 8 * i)))
    for i in range(whole, n):
        store_f64(out + 8 * i, sum4d(first4d(exp4d(splat4d(load_f64(values + 8 * i))), 1)))


@inlined
def add_four(p, shift, beta, keep, skip, rest, weighted):
    """The sums with four logits more: the first `keep` of them, and in the first sum without lane `skip`."""
    z = mul4d(sub4d(load4d(p), shift), beta)
    w = exp4d(z)
    product = mul4d(w, z)
    if keep < 4:
        w, product = first4d(w, keep), first4d(product, keep)
    if 0 <= skip < 4:
        w = sub4d(w, sub4d(first4d(w, skip + 1), first4d(w, skip)))
    return add4d(rest, w), add4d(weighted, product)


@kernel
def weigh_block(logits, n, top, out):
    """Sums over float32 logits [n]: out[0] = Σ w over all but position `top`, out[1] = Σ w·z, in four lanes.

    w = e**z, z = (logit − shift)·beta ≤ 0; out[0] and out[1] hold shift and beta beforehand. A logit of −inf makes the
    second sum NaN. `top` may lie outside. out has room for six float64.
    """
    shift, beta = splat4d(load_f64(out)), splat4d(load_f64(out + 8))
    rest, weighted = zero4d(), zero4d()
    whole, at = n // 4 * 4, top // 4 * 4  # the last few that are no four, and the four with `top`, go apart
    for i in range(0, max(0, min(at, whole)), 4):
        rest, weighted = add_four(logits + 4 * i, shift, beta, 4, -1, rest, weighted)
    if 0 <= at < whole:  # the z of `top` is 0, so only the first sum has to leave it out
        rest, weighted = add_four(logits + 4 * at, shift, beta, 4, top - at, rest, weighted)
    for i in range(max(0, at + 4), whole, 4):
        rest, weighted = add_four(logits + 4 * i, shift, beta, 4, -1, rest, weighted)
    if whole < n:
        for j in range(4):  # repeat the first of them, and drop the lanes again
            copy4(logits + 4 * (whole + (j if j < n - whole else 0)), out + 16 + 4 * j)
        rest, weighted = add_four(out + 16, shift, beta, n - whole, top - whole, rest, weighted)
    store_f64(out, sum4d(rest))
    store_f64(out + 8, sum4d(weighted))


@kernel
def weigh(logits, n, top, out):
    """The sums of a whole row: those of its blocks of WEIGHED, added in order. So threads may share a row."""
    shift, beta = load_f64(out), load_f64(out + 8)
    rest = weighted = 0.0
    for begin in range(0, n, WEIGHED):
        store_f64(out, shift)
        store_f64(out + 8, beta)
        weigh_block(logits + 4 * begin, min(WEIGHED, n - begin), top - begin, out)
        rest, weighted = rest + load_f64(out), weighted + load_f64(out + 8)
    store_f64(out, rest)
    store_f64(out + 8, weighted)


@kernel
def select(logits, n, room, out):
    """Positions, ascending, of the float32 logits [n] that are at least the float32 at `out`: the first `room` of them
    there, int64. Returns how many there are."""
    least, found, whole = load1(out), 0, n // 8 * 8
    bound = splat8(least)
    for i in range(0, whole, 8):
        bits = at_least8(load8(logits + 4 * i), bound)
        while bits:
            if found < room:
                store_i64(out + 8 * found, i + ones64((bits & -bits) - 1))
            found += 1
            bits &= bits - 1
    for i in range(whole, n):
        if load1(logits + 4 * i) >= least:
            if found < room:
                store_i64(out + 8 * found, i)
            found += 1
    return found


@kernel
def compare(logits, n, out):
    """How many of float32 logits [n] are above the float32 at `out`, and how many equal it: int64 at out, out + 8."""
    bound, above, least, whole = load1(out), 0, 0, n // 8 * 8
    many = splat8(bound)
    for i in range(0, whole, 8):
        v = load8(logits + 4 * i)
        above += ones64(above8(v, many))
        least += ones64(at_least8(v, many))
    for i in range(whole, n):
        x = load1(logits + 4 * i)
        above += x > bound
        least += x >= bound
    store_i64(out, above)
    store_i64(out + 8, least - above)


# XXH64 (Y. Collet, xxhash specification): these are its five primes, as signed 64-bit numbers
P1, P2, P3, P4, P5 = (
    -7046029288634856825, -4417276706812531889, 1609587929392839161, -8796714831421723037, 2870177450012600261,
)  # fmt: skip


@inlined
def mixed(acc, word):
    return rotate64(acc + word * P2, 31) * P1


@inlined
def merged(h, acc):
    return (h ^ mixed(0, acc)) * P1 + P4


@kernel
def xxh64(p, size):
    """XXH64 of `size` bytes at p, seed 0; size a multiple of 4."""
    end, at = p + size, p
    if size >= 32:
        a, b, c, d = P1 + P2, P2, 0, -P1
        while at + 32 <= end:
            a, b = mixed(a, load_i64(at)), mixed(b, load_i64(at + 8))
            c, d = mixed(c, load_i64(at + 16)), mixed(d, load_i64(at + 24))
            at += 32
        h = rotate64(a, 1) + rotate64(b, 7) + rotate64(c, 12) + rotate64(d, 18)
        h = merged(merged(merged(merged(h, a), b), c), d)
    else:
        h = P5 + 0
    h += size
    while at + 8 <= end:
        h = rotate64(h ^ mixed(0, load_i64(at)), 27) * P1 + P4
        at += 8
    if at + 4 <= end:
        h = rotate64(h ^ load_u32(at) * P1, 23) * P2 + P3
    h = (h ^ shift_right64(h, 33)) * P2
    h = (h ^ shift_right64(h, 29)) * P3
    return h ^ shift_right64(h, 32)
