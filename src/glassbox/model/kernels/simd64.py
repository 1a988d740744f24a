"""The vocabulary's 64-bit part: four float64 lanes, and the words a 64-bit hash is made of."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import models, register_model

from glassbox.model.kernels.simd import F32, I8, I32, I64, call_named, f32x8, load_at, store_at, word_of

F64 = ir.DoubleType()
DV = ir.VectorType(F64, 4)


class F64x4(types.Type):
    def __init__(self):
        super().__init__(name="f64x4")


f64x4 = F64x4()


@register_model(F64x4)
class _F64x4Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, DV)


@word_of(f64x4, types.int64)
def load4d(b, p):
    """Four float32 at p, as float64."""
    return b.fpext(load_at(b, p, ir.VectorType(F32, 4), 4), DV)


@word_of(f64x4, types.int64)
def load4f64(b, p):
    """Four float64 at p."""
    return load_at(b, p, DV, 8)


@word_of(types.void, types.int64, f64x4)
def store4f64(b, p, v):
    store_at(b, p, v, 8)


@word_of(types.void, types.int64, types.int64)
def store_i64(b, p, x):
    store_at(b, p, x, 8)


@word_of(types.int64, f32x8, f32x8)
def at_least8(b, v, x):
    """Bit i: whether lane i of v is at least that of x."""
    return b.zext(b.bitcast(b.fcmp_ordered(">=", v, x), I8), I64)


@word_of(types.int64, f32x8, f32x8)
def above8(b, v, x):
    """Bit i: whether lane i of v is more than that of x."""
    return b.zext(b.bitcast(b.fcmp_ordered(">", v, x), I8), I64)


@word_of(types.int64, types.int64)
def ones64(b, x):
    """How many bits are set."""
    return call_named(b, "llvm.ctpop.i64", I64, [x])


@word_of(types.float64, types.int64)
def load_f64(b, p):
    return load_at(b, p, F64, 8)


@word_of(types.void, types.int64, types.float64)
def store_f64(b, p, x):
    store_at(b, p, x, 8)


@word_of(f64x4)
def zero4d(b):
    return ir.Constant(DV, [0.0] * 4)


@word_of(f64x4, types.float64)
def splat4d(b, x):
    one = b.insert_element(ir.Constant(DV, ir.Undefined), x, ir.Constant(I32, 0))
    return b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, 4), [0] * 4))


@word_of(f64x4, f64x4, f64x4, f64x4)
def fma4d(b, x, y, z):
    return call_named(b, "llvm.fma.v4f64", DV, [x, y, z])


@word_of(f64x4, f64x4, f64x4)
def mul4d(b, x, y):
    return b.fmul(x, y)


@word_of(f64x4, f64x4, f64x4)
def add4d(b, x, y):
    return b.fadd(x, y)


@word_of(f64x4, f64x4, f64x4)
def sub4d(b, x, y):
    return b.fsub(x, y)


@word_of(f64x4, f64x4, f64x4)
def max4d(b, x, y):
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@word_of(f64x4, f64x4)
def round4d(b, x):
    return call_named(b, "llvm.rint.v4f64", DV, [x])


@word_of(f64x4, f64x4, f64x4, f64x4)
def zero_below4d(b, value, x, least):
    """value, but 0 in the lanes where x < least."""
    return b.select(b.fcmp_ordered("<", x, least), ir.Constant(DV, [0.0] * 4), value)


@word_of(f64x4, f64x4, types.int64)
def first4d(b, v, n):
    """The first n lanes of v; 0 in the others."""
    lanes = ir.Constant(ir.VectorType(I64, 4), [0, 1, 2, 3])
    one = b.insert_element(ir.Constant(ir.VectorType(I64, 4), ir.Undefined), n, ir.Constant(I32, 0))
    count = b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, 4), [0] * 4))
    return b.select(b.icmp_signed("<", lanes, count), v, ir.Constant(DV, [0.0] * 4))


@word_of(f64x4, f64x4, f64x4)
def power_of_two4d(b, value, n):
    """value · 2**n for integral n (value and result normal)."""
    wide = b.sext(b.fptosi(n, ir.VectorType(I32, 4)), ir.VectorType(I64, 4))
    exponent = b.shl(wide, ir.Constant(ir.VectorType(I64, 4), [52] * 4))
    return b.bitcast(b.add(b.bitcast(value, ir.VectorType(I64, 4)), exponent), DV)


@word_of(types.float64, f64x4)
def sum4d(b, v):
    """(0+2) + (1+3)."""
    for by in (2, 1):
        w = b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, 4), [(i + by) % 4 for i in range(4)]))
        v = b.fadd(v, w)
    return b.extract_element(v, ir.Constant(I32, 0))


@word_of(types.int64, types.int64, types.int64)
def rotate64(b, x, n):
    return call_named(b, "llvm.fshl.i64", I64, [x, x, n])


@word_of(types.int64, types.int64, types.int64)
def shift_right64(b, x, n):
    """Logical."""
    return b.lshr(x, n)
