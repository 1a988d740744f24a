"""Runs a program (see program.py) with a team of threads, inside one compiled function.

Each instruction falls into units of work, and these into a run for each thread. Threads claim units from the runs'
counters, their own first, so a thread that the system took off its core holds up at most the unit it is in, and a team
of one simply claims them all. An instruction that needs the results of earlier ones first waits until every unit before
it is done: it spins, and after a bound gives way to other threads. Which thread does a unit cannot change a bit of it.
"""

from __future__ import annotations

from glassbox.model.kernels import elementwise as ew
from glassbox.model.kernels import matmul as mm
from glassbox.model.kernels import program as pr
from glassbox.model.kernels.atomics import atomic_add, atomic_load, atomic_replace, give_way, pause
from glassbox.model.kernels.attention import attend, store_kv
from glassbox.model.kernels.formats import kernel
from glassbox.model.kernels.rows import weigh_block
from glassbox.model.kernels.simd import external, load1, load_i64

# Compiled by themselves and linked by name: the compiler would optimise each again with every caller of its callers.
product_one, decode_rows, pack_tiles, attend_apart, rows_apart, run_apart = (
    external(name, count) for name, count in pr.APART.items()
)


@kernel
def field(row, i):
    return load_i64(row + 8 * i)


@kernel
def tables_of(job, row):
    """Addresses of the tokens' page tables, for the group of layers an instruction is of: int64 [T]."""
    return field(job, pr.TABLES) + 8 * field(row, pr.GROUP) * field(job, pr.TOKENS)


@kernel
def per_unit(op, count, columns):
    """How much of an instruction one unit takes: tiles of a product, queries of attention, or rows."""
    if op == pr.MATMUL or op == pr.PACK:
        return max(1, pr.UNIT_WEIGHTS // (8 * columns * count))
    if op == pr.EXPERTS:
        return max(1, pr.UNIT_WEIGHTS // (8 * columns))
    if op == pr.ATTEND:
        return pr.QUERY_BLOCK
    return pr.TOKEN_BLOCK


@kernel
def unit_count(op, count, per, m, group, slots):
    if op == pr.MATMUL or op == pr.PACK:
        return (m + per - 1) // per
    if op == pr.WEIGH:
        return m
    if op == pr.ATTEND:
        return m * ((count * group + per - 1) // per)
    if op == pr.EXPERTS:
        return count * slots * ((m + per - 1) // per)
    return (count + per - 1) // per


@kernel
def do_matmul(row, dst, d_stride, src, s_stride, count, tile, per, scratch):
    w, layout, columns = field(row, pr.WEIGHT), field(row, pr.K), field(row, pr.N)
    end = min(tile + per, field(row, pr.M))
    if count == 1:
        product_one(layout, w, src, dst, columns, tile, end)
    else:
        kept = scratch + 8 * mm.row_stride(columns)
        for r in range(tile, end):
            decode_rows(layout, w, scratch, columns, r)
            mm.many_tokens(scratch, src, s_stride, dst + 32 * r, d_stride, columns, count, kept)


@kernel
def do_experts(job, row, dst, d_stride, src, s_stride, unit, per):
    """Some tiles of one chosen expert's product with one token."""
    m, used, columns = field(row, pr.M), field(row, pr.GROUP), field(row, pr.N)
    blocks = (m + per - 1) // per
    t, slot, tile = unit // (used * blocks), unit // blocks % used, unit % blocks * per
    at = 8 * field(row, pr.SRC2)
    chosen = load_i64(field(job, pr.BUFFERS) + at) + t * load_i64(field(job, pr.STRIDES) + at)
    w = field(row, pr.WEIGHT) + int(load1(chosen + 4 * (used + slot))) * field(row, pr.EXTRA)
    x, out = src + t * s_stride + slot * field(row, pr.MORE), dst + t * d_stride + 32 * m * slot
    product_one(field(row, pr.K), w, x, out, columns, tile, min(tile + per, m))


@kernel
def do_pack(row, tile, per):
    end = min(tile + per, field(row, pr.M))
    raw, row_bytes = field(row, pr.EXTRA), field(row, pr.SRC2)
    pack_tiles(field(row, pr.K), raw, row_bytes, field(row, pr.WEIGHT), field(row, pr.N), tile, end)


@kernel
def do_attend(job, row, dst, d_stride, src, s_stride, count, unit, per, scratch):
    group, m = field(row, pr.WEIGHT), field(row, pr.M)
    blocks = (count * group + per - 1) // per
    head, begin = unit // blocks, unit % blocks * per
    scores, probs = field(row, pr.SCORES), field(row, pr.PROBS)
    buffers = field(job, pr.BUFFERS)
    attend(
        field(job, pr.KV_KIND),
        src, s_stride, dst, d_stride, field(job, pr.POSITIONS), tables_of(job, row), head, group,
        field(row, pr.N), field(row, pr.K) * field(job, pr.LAYER_BYTES), field(row, pr.EXTRA),
        load1(row + 8 * pr.REAL), begin, min(begin + per, count * group), scratch,
        field(job, pr.SCRATCH_STRIDE) // 16 * 4,
        load_i64(buffers + 8 * scores) if scores >= 0 else 0,
        load_i64(buffers + 8 * probs) if probs >= 0 else 0,
        field(job, pr.SEE_WIDTH), m * group, load1(row + 8 * pr.MORE), field(row, pr.SRC2),
    )  # fmt: skip


@kernel
def gated(kind, gate, up, out, n):
    if kind == pr.SILU:
        ew.silu_gate(gate, up, out, n)
    elif kind == pr.GELU:
        ew.gelu_gate(gate, up, out, n)
    elif kind == pr.GELU_ERF:
        ew.gelu_erf_gate(gate, up, out, n)
    else:
        ew.relu_gate(gate, up, out, n)


@kernel
def activate(kind, x, out, n):
    if kind == pr.SILU:
        ew.silu_row(x, out, n)
    elif kind == pr.GELU:
        ew.gelu_row(x, out, n)
    elif kind == pr.GELU_ERF:
        ew.gelu_erf_row(x, out, n)
    else:
        ew.relu_row(x, out, n)


@kernel
def rotate(x, heads, width, half, paired, cos, sin):
    for h in range(heads):
        head = x + 4 * width * h
        if paired:
            ew.rotate_pairs(head, cos, sin, half, 8, 4)
        elif half % 8:
            ew.rotate_pairs(head, cos, sin, half, 4, 4 * half)
        else:
            ew.rotate_halves(head, cos, sin, half)


@kernel
def edit(row, position, to, factor):
    first = field(row, pr.EXTRA)
    if position >= first and position < field(row, pr.MORE):
        part, values, n = to + 4 * field(row, pr.K), field(row, pr.WEIGHT), field(row, pr.N)
        if values != 0:
            ew.put(values + field(row, pr.GROUP) * (position - first), part, n)
        else:
            ew.scale_part(part, n, factor)


@kernel
def do_row(job, row, op, t, to, src, src2, scratch):
    """One row of everything that is done row by row."""
    n, m, k = field(row, pr.N), field(row, pr.M), field(row, pr.K)
    weight, real = field(row, pr.WEIGHT), load1(row + 8 * pr.REAL)
    if op == pr.NORM:
        for h in range(m):
            ew.rms_norm(src + 4 * n * h, weight + k * h, to + 4 * n * h, n, real)
    elif op == pr.ADD:
        ew.add_rows(src, src2, to, n)
    elif op == pr.GATE:
        gated(k, src, src2, to, n)
    elif op == pr.ROPE:
        at = 4 * k * load_i64(field(job, pr.POSITIONS) + 8 * t)  # a row of the tables has k float32
        rotate(to, m, n, k, field(row, pr.GROUP), weight + at, field(row, pr.EXTRA) + at)
    elif op == pr.STORE_KV:
        position, table = load_i64(field(job, pr.POSITIONS) + 8 * t), load_i64(tables_of(job, row) + 8 * t)
        store_kv(field(job, pr.KV_KIND), src, src2, table, position, m, n, k * field(job, pr.LAYER_BYTES))
    elif op == pr.EMBED:
        token = load_i64(field(job, pr.IDS) + 8 * t)
        decode_rows(k, weight, scratch, n, token // 8)
        ew.scale_row(scratch + mm.row_stride(n) * (token % 8), to, n, real)
    elif op == pr.SCALE:
        ew.scale_row(src, to, n, real)
    elif op == pr.COPY or op == pr.GATHER:
        ew.copy_row(src, to, n)
    elif op == pr.LAYER_NORM:
        for h in range(m):
            ew.layer_norm(src + 4 * n * h, weight + k * h, field(row, pr.EXTRA), to + 4 * n * h, n, real)
    elif op == pr.BIAS:
        ew.add_rows(src, weight, to, n)
    elif op == pr.ACTIVATE:
        activate(k, src, to, n)
    elif op == pr.CAP:
        ew.cap_row(src, to, n, real)
    elif op == pr.POSITION:
        at = load_i64(field(job, pr.POSITIONS) + 8 * t) + field(row, pr.EXTRA)
        decode_rows(k, weight, scratch, n, at // 8)
        ew.add_rows(src, scratch + mm.row_stride(n) * (at % 8), to, n)
    elif op == pr.ROUTE:
        ew.choose_experts(src, to, n, m, k, scratch)
    elif op == pr.MIX:
        ew.mix_rows(src, src2, to, n, m)
    elif op == pr.EDIT:
        edit(row, load_i64(field(job, pr.POSITIONS) + 8 * t), to, real)


@kernel
def do_rows(job, row, op, dst, d_stride, src, s_stride, count, begin, per, scratch):
    buffers, strides, second = field(job, pr.BUFFERS), field(job, pr.STRIDES), 8 * field(row, pr.SRC2)
    src2, s2_stride = load_i64(buffers + second), load_i64(strides + second)
    for t in range(begin, min(begin + per, count)):
        s = load_i64(field(job, pr.OUT_ROWS) + 8 * t) if op == pr.GATHER else t
        do_row(job, row, op, t, dst + t * d_stride, src + s * s_stride, src2 + t * s2_stride, scratch)


@kernel
def wait(counter, target):
    spins = 0
    while atomic_load(counter) < target:
        spins += 1
        if spins < pr.SPINS:
            pause()
        else:
            give_way()


@kernel
def do_unit(job, row, op, count, per, unit, scratch):
    buffers, strides = field(job, pr.BUFFERS), field(job, pr.STRIDES)
    d, s = 8 * field(row, pr.DST), 8 * field(row, pr.SRC)
    dst, d_stride = load_i64(buffers + d), load_i64(strides + d)
    src, s_stride = load_i64(buffers + s), load_i64(strides + s)
    if op == pr.MATMUL:
        do_matmul(row, dst, d_stride, src, s_stride, count, unit * per, per, scratch)
    elif op == pr.EXPERTS:
        do_experts(job, row, dst, d_stride, src, s_stride, unit, per)
    elif op == pr.PACK:
        do_pack(row, unit * per, per)
    elif op == pr.WEIGH:
        block = field(row, pr.WEIGHT) + 32 * unit
        weigh_block(load_i64(block), load_i64(block + 8), load_i64(block + 16), load_i64(block + 24))
    elif op == pr.ATTEND:
        attend_apart(job, row, dst, d_stride, src, s_stride, count, unit, per, scratch)
    else:
        rows_apart(job, row, op, dst, d_stride, src, s_stride, count, unit * per, per, scratch)


@kernel
def do_units(job, row, i, op, count, per, units, thread, scratch):
    """Every unit of an instruction that this thread can claim: of its own run of them, then of the others' runs. So a
    thread reads one stretch of a matrix, which memory likes, and its own counter is seldom in another's cache.

    Returns how many it did."""
    threads, finished = field(job, pr.THREADS), 0
    for k in range(threads):
        owner = (thread + k) % threads
        counter = field(job, pr.CLAIMS) + 8 * (owner * field(job, pr.LENGTH) + i)
        first, last = units * owner // threads, units * (owner + 1) // threads
        while atomic_load(counter) < last - first:
            unit = first + atomic_add(counter, 1)
            if unit < last:
                do_unit(job, row, op, count, per, unit, scratch)
                finished += 1
    return finished


@kernel
def offer(job):
    """Put the job into the slot of every helper that waits for one."""
    for i in range(field(job, pr.THREADS) - 1):
        slot = field(job, pr.SLOTS) + 64 * i
        if atomic_load(slot) == pr.IDLE:
            atomic_replace(slot, pr.IDLE, job)


@kernel
def run(job, thread):
    """One thread's part of a job. Returns when every instruction has been claimed and all of them are done."""
    scratch = field(job, pr.SCRATCH) + thread * field(job, pr.SCRATCH_STRIDE)
    done, before = field(job, pr.DONE), 0
    for i in range(field(job, pr.LENGTH)):
        if thread == 0:  # again and again: a helper that was busy or on its way joins late
            offer(job)
        row = field(job, pr.PROGRAM) + 8 * pr.FIELDS * i
        op = field(row, pr.OP)
        count = field(job, pr.ROWS) if field(row, pr.OUT) else field(job, pr.TOKENS)
        if count == 0:
            continue
        per = per_unit(op, count, field(row, pr.N))
        units = unit_count(op, count, per, field(row, pr.M), field(row, pr.WEIGHT), field(row, pr.GROUP))
        if field(row, pr.FREE) == 0:
            wait(done, before)
        finished = do_units(job, row, i, op, count, per, units, thread, scratch)
        if finished > 0:
            atomic_add(done, finished)
        before += units
    wait(done, before)


@kernel
def serve(slot, thread):
    """A helper between jobs: it does what is put into its slot, and returns when nothing was for some milliseconds
    or the team is gone.

    It waits here rather than in Python, where it would need the interpreter's lock to begin."""
    looks = 0
    while True:
        job = atomic_load(slot)
        if job != pr.IDLE:
            run_apart(job, thread)
            atomic_replace(slot, job, pr.IDLE)
            looks = 0
        elif looks > pr.PATIENCE or atomic_load(slot + 8) != 0:
            if atomic_replace(slot, pr.IDLE, pr.ASLEEP) == pr.IDLE:
                return
        elif looks < pr.SPINS:
            pause()
        else:
            give_way()
        looks += 1
