"""A small SIMD vocabulary for numba: eight float32 or int32 lanes, raw addresses.

Addresses are plain int64: numba's arrays bring bounds, strides and wrap-around indices that cost more than the work.
Every word here is one machine instruction or a fixed handful of them, and none may be reordered or contracted by the
compiler, so a kernel's order of float32 operations is the order it is written in.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

F32, F16 = ir.FloatType(), ir.HalfType()
I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
LANES = 8
FV, IV, HV, BV = (ir.VectorType(t, LANES) for t in (F32, I32, F16, I8))


class F32x8(types.Type):
    def __init__(self):
        super().__init__(name="f32x8")


class I32x8(types.Type):
    def __init__(self):
        super().__init__(name="i32x8")


f32x8, i32x8 = F32x8(), I32x8()


@register_model(F32x8)
class _F32x8Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, FV)


@register_model(I32x8)
class _I32x8Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, IV)


def word_of(result, *arguments):
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


def external(name, count):
    """A function of `count` int64 that is linked by its name."""
    return types.ExternalFunction(name, types.int64(*[types.int64] * count))


def _at(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def load_at(builder, address, kind, align):
    value = builder.load(_at(builder, address, kind))
    value.align = align
    return value


def store_at(builder, address, value, align):
    builder.store(value, _at(builder, address, value.type)).align = align


def _splat(builder, value, vector):
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(IV, [0] * LANES))


def call_named(builder, name, result, args):
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


# --- memory -----------------------------------------------------------------------------------------------------


@word_of(f32x8, types.int64)
def load8(b, p):
    """Eight float32 at p."""
    return load_at(b, p, FV, 4)


@word_of(types.void, types.int64, f32x8)
def store8(b, p, v):
    store_at(b, p, v, 4)


@word_of(f32x8, types.int64)
def load8h(b, p):
    """Eight float16 at p, as float32."""
    return b.fpext(load_at(b, p, HV, 2), FV)


@word_of(i32x8, types.int64)
def load8i(b, p):
    """Eight int32 at p."""
    return load_at(b, p, IV, 4)


@word_of(i32x8, types.int64)
def load8b(b, p):
    """Eight int8 at p, sign-extended."""
    return b.sext(load_at(b, p, BV, 1), IV)


@word_of(f32x8, types.int64)
def broadcast(b, p):
    """The float32 at p in every lane."""
    return _splat(b, load_at(b, p, F32, 4), FV)


@word_of(types.float32, types.int64)
def load1(b, p):
    return load_at(b, p, F32, 4)


@word_of(types.void, types.int64, types.float32)
def store1(b, p, x):
    store_at(b, p, x, 4)


@word_of(types.void, types.int64, types.float32)
def store1h(b, p, x):
    """As float16, rounded to nearest even."""
    store_at(b, p, b.fptrunc(x, F16), 2)


@word_of(types.void, types.int64, types.float32)
def store1b(b, p, x):
    """As int8, rounded to nearest even; |x| < 128."""
    store_at(b, p, b.fptosi(call_named(b, "llvm.rint.f32", F32, [x]), I8), 1)


@word_of(types.int64, types.int64)
def load_i64(b, p):
    return load_at(b, p, I64, 1)


@word_of(types.int64, types.int64)
def load_i32(b, p):
    return b.sext(load_at(b, p, I32, 4), I64)


@word_of(types.int64, types.int64)
def load_u32(b, p):
    return b.zext(load_at(b, p, I32, 1), I64)


@word_of(types.void, types.int64, types.int64)
def store_u32(b, p, x):
    """The low four bytes of x."""
    store_at(b, p, b.trunc(x, I32), 1)


@word_of(types.void, types.int64, types.int64)
def store_u8(b, p, x):
    """The low byte of x."""
    store_at(b, p, b.trunc(x, I8), 1)


@word_of(types.void, types.int64, types.int64)
def copy2(b, p, to):
    store_at(b, to, load_at(b, p, ir.IntType(16), 1), 1)


@word_of(types.void, types.int64, types.int64)
def copy4(b, p, to):
    store_at(b, to, load_at(b, p, I32, 1), 1)


@word_of(types.void, types.int64)
def prefetch(b, p):
    """Ask for the cache line at p; any address is allowed."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    fetch = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    b.call(fetch, [_at(b, p, I8), *(ir.Constant(I32, c) for c in (0, 3, 1))])


# --- float arithmetic -------------------------------------------------------------------------------------------


@word_of(f32x8)
def zero8(b):
    return ir.Constant(FV, [0.0] * LANES)


@word_of(f32x8, types.float32)
def splat8(b, x):
    return _splat(b, x, FV)


@word_of(f32x8, f32x8, f32x8, f32x8)
def fma8(b, x, y, z):
    """x·y + z, rounded once."""
    return call_named(b, "llvm.fma.v8f32", FV, [x, y, z])


@word_of(types.float32, types.float32, types.float32, types.float32)
def fma1(b, x, y, z):
    return call_named(b, "llvm.fma.f32", F32, [x, y, z])


@word_of(f32x8, f32x8, f32x8)
def mul8(b, x, y):
    return b.fmul(x, y)


@word_of(f32x8, f32x8, f32x8)
def add8(b, x, y):
    return b.fadd(x, y)


@word_of(f32x8, f32x8, f32x8)
def sub8(b, x, y):
    return b.fsub(x, y)


@word_of(f32x8, f32x8, f32x8)
def div8(b, x, y):
    return b.fdiv(x, y)


@word_of(f32x8, f32x8, f32x8)
def max8(b, x, y):
    """The larger; y where x is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@word_of(f32x8, f32x8, f32x8)
def min8(b, x, y):
    return b.select(b.fcmp_ordered("<", x, y), x, y)


@word_of(f32x8, f32x8)
def magnitude8(b, x):
    return call_named(b, "llvm.fabs.v8f32", FV, [x])


@word_of(f32x8, f32x8)
def round8(b, x):
    """To the nearest integer, ties to even."""
    return call_named(b, "llvm.rint.v8f32", FV, [x])


@word_of(f32x8, f32x8, f32x8, f32x8)
def zero_below(b, value, x, least):
    """value, but 0 in the lanes where x < least, and x where it is NaN. least is at most 0."""
    zero = ir.Constant(FV, [0.0] * LANES)
    return b.select(b.fcmp_ordered(">=", x, least), value, b.select(b.fcmp_ordered(">", zero, x), zero, x))


@word_of(f32x8, f32x8, f32x8)
def unless_nan(b, value, x):
    """value, but x in the lanes where x is NaN."""
    return b.select(b.fcmp_unordered("uno", x, x), x, value)


@word_of(f32x8, f32x8, f32x8)
def power_of_two(b, value, n):
    """value · 2**n for integral n, by adding n to the exponent bits (value and result normal)."""
    exponent = b.shl(b.fptosi(n, IV), ir.Constant(IV, [23] * LANES))
    return b.bitcast(b.add(b.bitcast(value, IV), exponent), FV)


@word_of(types.float32, types.float32)
def sqrt1(b, x):
    return call_named(b, "llvm.sqrt.f32", F32, [x])


def _rotated(b, v, by):
    return b.shuffle_vector(v, v, ir.Constant(IV, [(i + by) % LANES for i in range(LANES)]))


@word_of(types.float32, f32x8)
def sum8(b, v):
    """((0+4)+(2+6)) + ((1+5)+(3+7)): the one tree by which eight lanes are summed everywhere."""
    for by in (4, 2, 1):
        v = b.fadd(v, _rotated(b, v, by))
    return b.extract_element(v, ir.Constant(I32, 0))


@word_of(types.void, types.int64, f32x8, f32x8, f32x8, f32x8)
def store_sums(b, p, *four):
    """The `sum8` of each of four vectors, side by side, with fewer steps than one by one."""

    def mixed(x, y, lanes):
        return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, 4), lanes))

    a, c, d, e = (b.fadd(mixed(v, v, [0, 1, 2, 3]), mixed(v, v, [4, 5, 6, 7])) for v in four)
    ac = b.fadd(mixed(a, c, [0, 4, 1, 5]), mixed(a, c, [2, 6, 3, 7]))  # (0+4)+(2+6) of both, (1+5)+(3+7) of both
    de = b.fadd(mixed(d, e, [0, 4, 1, 5]), mixed(d, e, [2, 6, 3, 7]))
    store_at(b, p, b.fadd(mixed(ac, de, [0, 1, 4, 5]), mixed(ac, de, [2, 3, 6, 7])), 4)


@word_of(types.float32, f32x8)
def largest8(b, v):
    for by in (4, 2, 1):
        w = _rotated(b, v, by)
        v = b.select(b.fcmp_ordered(">", v, w), v, w)
    return b.extract_element(v, ir.Constant(I32, 0))


# --- order ------------------------------------------------------------------------------------------------------


@word_of(types.Tuple((f32x8, i32x8)), f32x8, i32x8)
def in_order(b, done, v):
    """(done, v) as they are, but nothing is computed from this v before `done` is: an empty piece of assembly.

    Where there is none such, the order is the compiler's; results are the same.
    """
    pair = ir.LiteralStructType([FV, IV])
    if not b.module.triple.startswith("x86_64"):
        return cgutils.pack_struct(b, [done, v])
    kind = ir.FunctionType(pair, [FV, IV])
    return b.call(ir.InlineAsm(kind, "", "=x,=x,0,1", side_effect=True), [done, v])


# --- integers, for codes ----------------------------------------------------------------------------------------


@word_of(i32x8, i32x8, types.int64)
def and8(b, v, mask):
    return b.and_(v, _splat(b, b.trunc(mask, I32), IV))


@word_of(i32x8, i32x8, i32x8)
def or8(b, v, w):
    return b.or_(v, w)


@word_of(i32x8, i32x8, types.int64)
def right8(b, v, n):
    """Logical shift right."""
    return b.lshr(v, _splat(b, b.trunc(n, I32), IV))


@word_of(i32x8, i32x8, types.int64)
def left8(b, v, n):
    return b.shl(v, _splat(b, b.trunc(n, I32), IV))


@word_of(f32x8, i32x8)
def float8(b, v):
    return b.sitofp(v, FV)


@word_of(types.void, types.int64, types.int64, *[f32x8] * 8)
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
        store_at(b, b.add(p, b.mul(stride, ir.Constant(I64, i))), lanes[i], 4)
