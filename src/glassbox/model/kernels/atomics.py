"""What threads need of each other, as words for numba: see simd.py."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types

from glassbox.model.kernels.simd import I32, I64, word_of


def _at(builder, address):
    return builder.inttoptr(address, I64.as_pointer())


@word_of(types.int64, types.int64, types.int64)
def atomic_add(b, p, n):
    """Add n to the int64 at p; returns what was there before."""
    return b.atomic_rmw("add", _at(b, p), n, "seq_cst")


@word_of(types.int64, types.int64)
def atomic_load(b, p):
    return b.load_atomic(_at(b, p), "seq_cst", 8)


@word_of(types.int64, types.int64, types.int64, types.int64)
def atomic_replace(b, p, old, new):
    """Put `new` at p if `old` is there; returns what was there."""
    return b.extract_value(b.cmpxchg(_at(b, p), old, new, "seq_cst", "seq_cst"), 0)


@word_of(types.void)
def pause(b):
    """Tell the core that this is a spin."""
    name = {"x86_64": "llvm.x86.sse2.pause"}.get(b.module.triple.split("-")[0])
    if name is not None:
        b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(ir.VoidType(), []), name), [])


@word_of(types.void)
def give_way(b):
    """Let another thread have this core (POSIX sched_yield)."""
    b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(I32, []), "sched_yield"), [])
