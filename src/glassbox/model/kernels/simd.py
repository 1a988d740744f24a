"""A small SIMD vocabulary for numba: eight float32 or int32 lanes, four of float64, raw addresses, atomics.

Addresses are plain int64: numba's arrays bring bounds, strides and wrap-around indices that cost more than the work.
Every word here is one machine instruction or a fixed handful of them, and none may be reordered or contracted by the
compiler, so a kernel's order of float32 operations is the order it is written in.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

F32, F16, F64 = ir.FloatType(), ir.HalfType(), ir.DoubleType()
I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
LANES = 8
FV, IV, HV, BV = (ir.VectorType(t, LANES) for t in (F32, I32, F16, I8))
DV = ir.VectorType(F64, 4)


class F32x8(types.Type):
    def __init__(self):
        super().__init__(name="f32x8")


class I32x8(types.Type):
    def __init__(self):
        super().__init__(name="i32x8")


class F64x4(types.Type):
    def __init__(self):
        super().__init__(name="f64x4")


f32x8, i32x8, f64x4 = F32x8(), I32x8(), F64x4()


@register_model(F32x8)
class _F32x8Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, FV)


@register_model(I32x8)
class _I32x8Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, IV)


@register_model(F64x4)
class _F64x4Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, DV)


def _word(result, *arguments):
    """Make an intrinsic of fixed types from a function (builder, *llvm values) -> llvm value."""

    def wrap(emit):
        def codegen(context, builder, sig, args):
            value = emit(builder, *args)
            return context.get_dummy_value() if value is None else value

        names = [f"a{i}" for i in range(len(arguments))]
        space = {"sig": result(*arguments), "codegen": codegen}
        # numba reads an intrinsic's arity from its signature, so the function is made with the right one
        exec(f"def word({', '.join(['context', *names])}):\n    return sig, codegen\n", space)
        word = space["word"]
        word.__name__ = emit.__name__
        return intrinsic(word)

    return wrap


def _at(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder, address, kind, align):
    value = builder.load(_at(builder, address, kind))
    value.align = align
    return value


def _store(builder, address, value, align):
    builder.store(value, _at(builder, address, value.type)).align = align


def _splat(builder, value, vector):
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(IV, [0] * LANES))


def _call(builder, name, result, args):
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


# --- memory -----------------------------------------------------------------------------------------------------


@_word(f32x8, types.int64)
def load8(b, p):
    """Eight float32 at p."""
    return _load(b, p, FV, 4)


@_word(types.void, types.int64, f32x8)
def store8(b, p, v):
    _store(b, p, v, 4)


@_word(f32x8, types.int64)
def load8h(b, p):
    """Eight float16 at p, as float32."""
    return b.fpext(_load(b, p, HV, 2), FV)


@_word(i32x8, types.int64)
def load8i(b, p):
    """Eight int32 at p."""
    return _load(b, p, IV, 4)


@_word(i32x8, types.int64)
def load8b(b, p):
    """Eight int8 at p, sign-extended."""
    return b.sext(_load(b, p, BV, 1), IV)


@_word(f32x8, types.int64)
def broadcast(b, p):
    """The float32 at p in every lane."""
    return _splat(b, _load(b, p, F32, 4), FV)


@_word(types.float32, types.int64)
def load1(b, p):
    return _load(b, p, F32, 4)


@_word(types.void, types.int64, types.float32)
def store1(b, p, x):
    _store(b, p, x, 4)


@_word(types.void, types.int64, types.float32)
def store1h(b, p, x):
    """As float16, rounded to nearest even."""
    _store(b, p, b.fptrunc(x, F16), 2)


@_word(types.void, types.int64, types.float32)
def store1b(b, p, x):
    """As int8, rounded to nearest even; |x| < 128."""
    _store(b, p, b.fptosi(_call(b, "llvm.rint.f32", F32, [x]), I8), 1)


@_word(types.int64, types.int64)
def load_i64(b, p):
    return _load(b, p, I64, 1)


@_word(types.int64, types.int64)
def load_i32(b, p):
    return b.sext(_load(b, p, I32, 4), I64)


@_word(types.int64, types.int64)
def load_u32(b, p):
    return b.zext(_load(b, p, I32, 1), I64)


@_word(types.void, types.int64, types.int64)
def store_u32(b, p, x):
    """The low four bytes of x."""
    _store(b, p, b.trunc(x, I32), 1)


@_word(types.void, types.int64, types.int64)
def store_u8(b, p, x):
    """The low byte of x."""
    _store(b, p, b.trunc(x, I8), 1)


@_word(types.void, types.int64, types.int64)
def copy2(b, p, to):
    _store(b, to, _load(b, p, ir.IntType(16), 1), 1)


@_word(types.void, types.int64, types.int64)
def copy4(b, p, to):
    _store(b, to, _load(b, p, I32, 1), 1)


@_word(types.void, types.int64)
def prefetch(b, p):
    """Ask for the cache line at p; any address is allowed."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    fetch = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    b.call(fetch, [_at(b, p, I8), *(ir.Constant(I32, c) for c in (0, 3, 1))])


# --- float arithmetic -------------------------------------------------------------------------------------------


@_word(f32x8)
def zero8(b):
    return ir.Constant(FV, [0.0] * LANES)


@_word(f32x8, types.float32)
def splat8(b, x):
    return _splat(b, x, FV)


@_word(f32x8, f32x8, f32x8, f32x8)
def fma8(b, x, y, z):
    """x·y + z, rounded once."""
    return _call(b, "llvm.fma.v8f32", FV, [x, y, z])


@_word(types.float32, types.float32, types.float32, types.float32)
def fma1(b, x, y, z):
    return _call(b, "llvm.fma.f32", F32, [x, y, z])


@_word(f32x8, f32x8, f32x8)
def mul8(b, x, y):
    return b.fmul(x, y)


@_word(f32x8, f32x8, f32x8)
def add8(b, x, y):
    return b.fadd(x, y)


@_word(f32x8, f32x8, f32x8)
def sub8(b, x, y):
    return b.fsub(x, y)


@_word(f32x8, f32x8, f32x8)
def div8(b, x, y):
    return b.fdiv(x, y)


@_word(f32x8, f32x8, f32x8)
def max8(b, x, y):
    """The larger; y where x is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@_word(f32x8, f32x8, f32x8)
def min8(b, x, y):
    return b.select(b.fcmp_ordered("<", x, y), x, y)


@_word(f32x8, f32x8)
def magnitude8(b, x):
    return _call(b, "llvm.fabs.v8f32", FV, [x])


@_word(f32x8, f32x8)
def round8(b, x):
    """To the nearest integer, ties to even."""
    return _call(b, "llvm.rint.v8f32", FV, [x])


@_word(f32x8, f32x8, f32x8, f32x8)
def zero_below(b, value, x, least):
    """value, but 0 in the lanes where x < least."""
    return b.select(b.fcmp_ordered("<", x, least), ir.Constant(FV, [0.0] * LANES), value)


@_word(f32x8, f32x8, f32x8)
def power_of_two(b, value, n):
    """value · 2**n for integral n, by adding n to the exponent bits (value and result normal)."""
    exponent = b.shl(b.fptosi(n, IV), ir.Constant(IV, [23] * LANES))
    return b.bitcast(b.add(b.bitcast(value, IV), exponent), FV)


@_word(types.float32, types.float32)
def sqrt1(b, x):
    return _call(b, "llvm.sqrt.f32", F32, [x])


def _rotated(b, v, by):
    return b.shuffle_vector(v, v, ir.Constant(IV, [(i + by) % LANES for i in range(LANES)]))


@_word(types.float32, f32x8)
def sum8(b, v):
    """((0+4)+(2+6)) + ((1+5)+(3+7)): the one tree by which eight lanes are summed everywhere."""
    for by in (4, 2, 1):
        v = b.fadd(v, _rotated(b, v, by))
    return b.extract_element(v, ir.Constant(I32, 0))


@_word(types.float32, f32x8)
def largest8(b, v):
    for by in (4, 2, 1):
        w = _rotated(b, v, by)
        v = b.select(b.fcmp_ordered(">", v, w), v, w)
    return b.extract_element(v, ir.Constant(I32, 0))


# --- integers, for codes ----------------------------------------------------------------------------------------


@_word(i32x8, i32x8, types.int64)
def and8(b, v, mask):
    return b.and_(v, _splat(b, b.trunc(mask, I32), IV))


@_word(i32x8, i32x8, i32x8)
def or8(b, v, w):
    return b.or_(v, w)


@_word(i32x8, i32x8, types.int64)
def right8(b, v, n):
    """Logical shift right."""
    return b.lshr(v, _splat(b, b.trunc(n, I32), IV))


@_word(i32x8, i32x8, types.int64)
def left8(b, v, n):
    return b.shl(v, _splat(b, b.trunc(n, I32), IV))


@_word(f32x8, i32x8)
def float8(b, v):
    return b.sitofp(v, FV)


@_word(types.void, types.int64, types.int64, *[f32x8] * 8)
def store_transposed(b, p, stride, *v):
    """Eight vectors (lane = row, one vector a column) become eight rows of eight columns, `stride` bytes apart."""
    lanes = list(v)
    for half in (1, 2, 4):  # butterflies: exchange lanes whose numbers differ in one bit
        for i in range(LANES):
            if i & half == 0:
                x, y = lanes[i], lanes[i + half]
                low = [n if n & half == 0 else n - half + LANES for n in range(LANES)]
                high = [n + half if n & half == 0 else n + LANES for n in range(LANES)]
                lanes[i] = b.shuffle_vector(x, y, ir.Constant(IV, low))
                lanes[i + half] = b.shuffle_vector(x, y, ir.Constant(IV, high))
    for i in range(LANES):
        _store(b, b.add(p, b.mul(stride, ir.Constant(I64, i))), lanes[i], 4)


# --- float64, four lanes ----------------------------------------------------------------------------------------


@_word(f64x4, types.int64)
def load4d(b, p):
    """Four float32 at p, as float64."""
    return b.fpext(_load(b, p, ir.VectorType(F32, 4), 4), DV)


@_word(types.float64, types.int64)
def load_f64(b, p):
    return _load(b, p, F64, 8)


@_word(types.void, types.int64, types.float64)
def store_f64(b, p, x):
    _store(b, p, x, 8)


@_word(f64x4)
def zero4d(b):
    return ir.Constant(DV, [0.0] * 4)


@_word(f64x4, types.float64)
def splat4d(b, x):
    one = b.insert_element(ir.Constant(DV, ir.Undefined), x, ir.Constant(I32, 0))
    return b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, 4), [0] * 4))


@_word(f64x4, f64x4, f64x4, f64x4)
def fma4d(b, x, y, z):
    return _call(b, "llvm.fma.v4f64", DV, [x, y, z])


@_word(f64x4, f64x4, f64x4)
def mul4d(b, x, y):
    return b.fmul(x, y)


@_word(f64x4, f64x4, f64x4)
def add4d(b, x, y):
    return b.fadd(x, y)


@_word(f64x4, f64x4, f64x4)
def sub4d(b, x, y):
    return b.fsub(x, y)


@_word(f64x4, f64x4, f64x4)
def max4d(b, x, y):
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@_word(f64x4, f64x4)
def round4d(b, x):
    return _call(b, "llvm.rint.v4f64", DV, [x])


@_word(f64x4, f64x4, f64x4, f64x4)
def zero_below4d(b, value, x, least):
    """value, but 0 in the lanes where x < least."""
    return b.select(b.fcmp_ordered("<", x, least), ir.Constant(DV, [0.0] * 4), value)


@_word(f64x4, f64x4, types.int64)
def first4d(b, v, n):
    """The first n lanes of v; 0 in the others."""
    lanes = ir.Constant(ir.VectorType(I64, 4), [0, 1, 2, 3])
    one = b.insert_element(ir.Constant(ir.VectorType(I64, 4), ir.Undefined), n, ir.Constant(I32, 0))
    count = b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, 4), [0] * 4))
    return b.select(b.icmp_signed("<", lanes, count), v, ir.Constant(DV, [0.0] * 4))


@_word(f64x4, f64x4, f64x4)
def power_of_two4d(b, value, n):
    """value · 2**n for integral n (value and result normal)."""
    wide = b.sext(b.fptosi(n, ir.VectorType(I32, 4)), ir.VectorType(I64, 4))
    exponent = b.shl(wide, ir.Constant(ir.VectorType(I64, 4), [52] * 4))
    return b.bitcast(b.add(b.bitcast(value, ir.VectorType(I64, 4)), exponent), DV)


@_word(types.float64, f64x4)
def sum4d(b, v):
    """(0+2) + (1+3)."""
    for by in (2, 1):
        w = b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, 4), [(i + by) % 4 for i in range(4)]))
        v = b.fadd(v, w)
    return b.extract_element(v, ir.Constant(I32, 0))


@_word(types.int64, types.int64, types.int64)
def rotate64(b, x, n):
    return _call(b, "llvm.fshl.i64", I64, [x, x, n])


@_word(types.int64, types.int64, types.int64)
def shift_right64(b, x, n):
    """Logical."""
    return b.lshr(x, n)


# --- threads ----------------------------------------------------------------------------------------------------


@_word(types.int64, types.int64, types.int64)
def atomic_add(b, p, n):
    """Add n to the int64 at p; returns what was there before."""
    return b.atomic_rmw("add", _at(b, p, I64), n, "seq_cst")


@_word(types.int64, types.int64)
def atomic_load(b, p):
    return b.load_atomic(_at(b, p, I64), "seq_cst", 8)


@_word(types.void)
def pause(b):
    """Tell the core that this is a spin."""
    name = {"x86_64": "llvm.x86.sse2.pause"}.get(b.module.triple.split("-")[0])
    if name is not None:
        b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(ir.VoidType(), []), name), [])


@_word(types.void)
def give_way(b):
    """Let another thread have this core (POSIX sched_yield)."""
    b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(I32, []), "sched_yield"), [])
