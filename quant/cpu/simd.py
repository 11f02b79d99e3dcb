"""The vector vocabulary: load, store, widen, int8 dot, fma, f16, exp, horizontal sums, atomics.

Names say the type: `load_f32x16(address)`. Row kernels are written on 16 x i32 whatever the CPU;
the prefill layout uses `LANES` lanes, the native width, so that its micro kernel fits in registers.
"""

from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import types

from ..target import target
from .floats import FEATURES, fma_code, narrow_code, nearest_code, widen_code
from .native import native
from .vector import (
    ELEMENTS,
    F32,
    I32,
    I64,
    SCALARS,
    Builder,
    Value,
    Vector,
    constant,
    declare,
    lanes,
    make,
    pointer,
    splat,
    vec,
)

ISA = target().isa
WIDE_BIAS = native.wide_bias(ISA)
LANES = target().lanes
ROWS = target().rows
# Comparisons give one bit a lane, in registers of their own, rather than a vector.
HAS_MASKS = "avx512bw" in FEATURES

# error_model: no checks for division by zero; the kernels have none.
kernel = njit(error_model="numpy", nogil=True)
inline = njit(error_model="numpy", nogil=True, forceinline=True)

address = types.int64


def _as(code: Any) -> Any:
    return lambda builder, sig, args: code(builder, *args)


# ---- memory ------------------------------------------------------------------------------------
def load(element: str, count: int) -> Any:
    """load(address) -> vector, no alignment needed."""
    kind = vec(element, count)
    return make(
        f"load_{element}x{count}",
        1,
        lambda a: kind(address),
        _as(lambda b, at: b.load(pointer(b, at), align=1, typ=kind.llvm)),
    )


def store(element: str, count: int) -> Any:
    """store(address, vector)."""
    kind = vec(element, count)

    def code(b: Builder, at: Any, value: Any) -> Value:
        b.store(value, pointer(b, at), align=1)
        return ir.Constant(I64, 0)

    return make(f"store_{element}x{count}", 2, lambda a: types.int64(address, kind), _as(code))


def _scalar_load(element: str, result: Any, widen: Any = None) -> Any:
    def code(b: Builder, at: Any) -> Value:
        value = b.load(pointer(b, at), align=1, typ=ELEMENTS[element])
        return widen(b, value) if widen else value

    return make(f"load_{element}", 1, lambda a: result(address), _as(code))


def _scalar_store(element: str, kind: Any, narrow: Any = None) -> Any:
    def code(b: Builder, at: Any, value: Any) -> Value:
        b.store(narrow(b, value) if narrow else value, pointer(b, at), align=1)
        return ir.Constant(I64, 0)

    return make(f"store_{element}", 2, lambda a: types.int64(address, kind), _as(code))


load_i32 = _scalar_load("i32", types.int64, lambda b, value: b.sext(value, I64))
load_i64 = _scalar_load("i64", types.int64)
load_f32 = _scalar_load("f32", types.float32)
load_f16 = _scalar_load("f16", types.float32, widen_code)
store_i64 = _scalar_store("i64", types.int64)
store_i32 = _scalar_store("i32", types.int32)
store_f32 = _scalar_store("f32", types.float32)
store_f16 = _scalar_store("f16", types.float32, narrow_code)

load_i8x16, load_i8x32, load_i8x64 = load("i8", 16), load("i8", 32), load("i8", 64)
load_i16x16 = load("i16", 16)
load_f32x4, load_f32x8, load_f32x16 = load("f32", 4), load("f32", 8), load("f32", 16)
load_f16x16 = load("f16", 16)
store_i8x16, store_i8x32, store_i8x64 = store("i8", 16), store("i8", 32), store("i8", 64)
store_f32x8, store_f32x16 = store("f32", 8), store("f32", 16)
store_f16x16 = store("f16", 16)


def load_splat(element: str, count: int) -> Any:
    """load_splat(address) -> the scalar there in each lane (a broadcast load)."""
    kind = vec(element, count)

    def code(b: Builder, at: Any) -> Value:
        return splat(b, b.load(pointer(b, at), align=1, typ=ELEMENTS[element]), count)

    return make(f"load_splat_{element}x{count}", 1, lambda a: kind(address), _as(code))


def fill(element: str, count: int) -> Any:
    """fill(scalar) -> vector."""
    kind = vec(element, count)
    return make(
        f"fill_{element}x{count}",
        1,
        lambda a: kind(SCALARS[element]),
        _as(lambda b, value: splat(b, value, count)),
    )


def zero(element: str, count: int) -> Any:
    """zero() -> vector of zeros."""
    kind = vec(element, count)
    return make(f"zero_{element}x{count}", 0, lambda a: kind(), _as(lambda b: constant_zero(kind)))


def constant_zero(kind: Vector) -> ir.Constant:
    """LLVM's zero of a vector type."""
    return ir.Constant(kind.llvm, None)


def literal(element: str, values: list[Any]) -> Any:
    """literal() -> a constant vector."""
    kind = vec(element, len(values))
    return make("literal", 0, lambda a: kind(), _as(lambda b: constant(element, values)))


zero_i32x16, zero_f32x16, zero_f32x8, zero_f32x4 = (
    zero("i32", 16),
    zero("f32", 16),
    zero("f32", 8),
    zero("f32", 4),
)
fill_f32x16, fill_f32x4 = fill("f32", 16), fill("f32", 4)


# ---- shapes and conversions --------------------------------------------------------------------
def shuffle(element: str, count: int, order: list[int]) -> Any:
    """shuffle(a, b) -> their lanes in a constant order."""
    kind, result = vec(element, count), vec(element, len(order))
    return make(
        "shuffle", 2, lambda a: result(kind, kind), _as(lambda b, x, y: lanes(b, x, y, order))
    )


def convert(op: str, source: Vector, result: Vector) -> Any:
    """convert(v): LLVM's sext, zext, trunc, sitofp, uitofp, fptosi or bitcast."""
    return make(op, 1, lambda a: result(source), _as(lambda b, v: getattr(b, op)(v, result.llvm)))


def shift_right(element: str, count: int, amounts: list[int] | int) -> Any:
    """shift_right(v): logical, by constants a lane."""
    kind = vec(element, count)
    by = constant(element, [amounts] * count if isinstance(amounts, int) else amounts)
    return make("shift_right", 1, lambda a: kind(kind), _as(lambda b, v: b.lshr(v, by)))


def shift_left(element: str, count: int, amounts: list[int] | int) -> Any:
    """shift_left(v): by constants a lane."""
    kind = vec(element, count)
    by = constant(element, [amounts] * count if isinstance(amounts, int) else amounts)
    return make("shift_left", 1, lambda a: kind(kind), _as(lambda b, v: b.shl(v, by)))


def call(name: str, kind: Vector, arity: int, fast: tuple[str, ...] = ()) -> Any:
    """An LLVM intrinsic whose operands and result have one type."""

    def code(b: Builder, *values: Any) -> Value:
        function = declare(b, name, kind.llvm, [kind.llvm] * arity)
        return b.call(function, values, fastmath=fast)

    return make(name.replace(".", "_"), arity, lambda a: kind(*[kind] * arity), _as(code))


def widen_half(count: int) -> Any:
    """float16 -> float32."""
    source, result = vec("f16", count), vec("f32", count)
    return make("widen_half", 1, lambda a: result(source), _as(widen_code))


def narrow_half(count: int) -> Any:
    """float32 -> float16, to the nearest."""
    source, result = vec("f32", count), vec("f16", count)
    return make("narrow_half", 1, lambda a: result(source), _as(narrow_code))


def fma(count: int) -> Any:
    """fma(a, b, c) = a * b + c."""
    kind = vec("f32", count)
    return make("fma", 3, lambda a: kind(kind, kind, kind), _as(fma_code))


def maximum(count: int) -> Any:
    """maximum(a, b) by lane; neither is NaN."""
    return call(f"llvm.maxnum.v{count}f32", vec("f32", count), 2, ("nnan",))


def absolute(count: int) -> Any:
    """|v|."""
    return call(f"llvm.fabs.v{count}f32", vec("f32", count), 1)


def nearest(count: int) -> Any:
    """Round |v| < 2^22 to the nearest integer, ties to even."""
    kind = vec("f32", count)
    return make("nearest", 1, lambda a: kind(kind), _as(nearest_code))


fma_f32x16, fma_f32x8, fma_f32x4 = fma(16), fma(8), fma(4)
max_f32x16 = maximum(16)
abs_f32x16 = absolute(16)
nearest_f32x16 = nearest(16)
to_f32x16 = convert("sitofp", vec("i32", 16), vec("f32", 16))
to_i32x16 = convert("fptosi", vec("f32", 16), vec("i32", 16))
widen_f16x16, narrow_f32x16 = widen_half(16), narrow_half(16)
narrow_i32x16 = convert("trunc", vec("i32", 16), vec("i8", 16))
u8_to_i32x16 = convert("zext", vec("i8", 16), vec("i32", 16))


def sum_f32(count: int) -> Any:
    """sum(v) of all lanes: of the halves, again and again. On every CPU in this order.

    LLVM's own reduction takes the order that costs least, and the targets' answers would differ.
    """
    kind = vec("f32", count)

    def code(b: Builder, v: Any) -> Value:
        width = count // 2
        while width:
            low, high = (lanes(b, v, v, list(range(k, k + width))) for k in (0, width))
            v, width = b.fadd(low, high), width // 2
        return b.extract_element(v, ir.Constant(I32, 0))

    return make("sum_f32", 1, lambda a: types.float32(kind), _as(code))


def max_f32(count: int) -> Any:
    """The largest lane."""
    kind = vec("f32", count)

    def code(b: Builder, v: Any) -> Value:
        function = declare(b, f"llvm.vector.reduce.fmax.v{count}f32", F32, [kind.llvm])
        return b.call(function, [v], fastmath=("nnan",))

    return make("max_f32", 1, lambda a: types.float32(kind), _as(code))


def sum_i32(count: int) -> Any:
    """sum(v) of all lanes as int64."""
    kind = vec("i32", count)

    def code(b: Builder, v: Any) -> Value:
        function = declare(b, f"llvm.vector.reduce.add.v{count}i32", I32, [kind.llvm])
        return b.sext(b.call(function, [v]), I64)

    return make("sum_i32", 1, lambda a: types.int64(kind), _as(code))


def _sqrt_code(b: Builder, value: Any) -> Value:
    return b.call(declare(b, "llvm.sqrt.f32", F32, [F32]), [value])


sqrt_f32 = make("sqrt_f32", 1, lambda a: types.float32(types.float32), _as(_sqrt_code))
sum_f32x16, sum_f32x8, sum_f32x4 = sum_f32(16), sum_f32(8), sum_f32(4)
max_f32x16_all = max_f32(16)
sum_i32x16 = sum_i32(16)


# ---- the dot product of bytes ------------------------------------------------------------------
def dot4_code(b: Builder, acc: Value, u: Value, s: Value, *, wide: bool) -> Value:
    """acc[i] += sum of u[4i+j] * s[4i+j], j < 4; u unsigned bytes, s signed bytes from -127 on.

    `wide` says that u may exceed 127: AVX2's vpmaddubsw would saturate, and it is no signed byte.
    Then it is u - WIDE_BIAS that is multiplied, whose offset is as much smaller.
    """
    count = acc.type.count
    width = native.NATIVE[ISA]
    if count > width:
        parts = []
        for k in range(0, count, width):
            some, bytes_ = list(range(k, k + width)), list(range(4 * k, 4 * (k + width)))
            part = (lanes(b, acc, acc, some), lanes(b, u, u, bytes_), lanes(b, s, s, bytes_))
            parts.append(native.dot4(b, *part, ISA, wide=wide))
        while len(parts) > 1:
            both = list(range(2 * parts[0].type.count))
            parts = [lanes(b, parts[i], parts[i + 1], both) for i in range(0, len(parts), 2)]
        return parts[0]
    return native.dot4(b, acc, u, s, ISA, wide=wide)


def dot4(count: int, *, wide: bool = False) -> Any:
    """dot4(acc, u, s): see dot4_code."""
    acc, data = vec("i32", count), vec("i8", 4 * count)
    return make(
        "dot4",
        3,
        lambda a: acc(acc, data, data),
        _as(lambda b, x, u, s: dot4_code(b, x, u, s, wide=wide)),
    )


dot4_x16, dot4_wide_x16 = dot4(16), dot4(16, wide=True)
dot4_wide_x8 = dot4(8, wide=True)


# ---- exp ---------------------------------------------------------------------------------------
def _exp_code(b: Builder, x: Value) -> Value:
    """e**x: Cephes' expf (degree 5 after range reduction by ln 2), relative error about 1.2e-7.

    Inputs are clamped to [-87.3, 88.3], so that -inf gives about 1e-38 and nothing overflows.
    """
    n = x.type.count
    kind = x.type

    def const(value: float) -> ir.Constant:
        return ir.Constant(kind, [value] * n)

    def f(name: str, *values: Any) -> Value:
        return b.call(declare(b, f"llvm.{name}.v{n}f32", kind, [kind] * len(values)), values)

    x = f("maxnum", f("minnum", x, const(88.3762626647949)), const(-87.3365478515625))
    k = nearest_code(b, b.fmul(x, const(1.44269504088896341)))
    x = fma_code(b, k, const(-0.693359375), x)  # exact: few bits times few bits
    x = fma_code(b, k, const(2.12194440e-4), x)
    y = const(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        y = fma_code(b, y, x, const(c))
    y = fma_code(b, y, b.fmul(x, x), b.fadd(x, const(1.0)))
    integers = ir.VectorType(I32, n)
    power = b.shl(
        b.add(b.fptosi(k, integers), ir.Constant(integers, [127] * n)),
        ir.Constant(integers, [23] * n),
    )
    return b.fmul(y, b.bitcast(power, kind))


def exp(count: int) -> Any:
    """exp(v) by lane."""
    kind = vec("f32", count)
    return make("exp", 1, lambda a: kind(kind), _as(_exp_code))


exp_f32x16 = exp(16)
exp_lanes = exp_f32x16 if LANES == 16 else exp(LANES)


@inline
def exp_f32(x):
    """e**x of a scalar, by the same code."""
    return sum_f32x4(exp_f32x4(fill_f32x4(x)) * _first_f32x4())


exp_f32x4 = exp(4)
_first_f32x4 = literal("f32", [1.0, 0.0, 0.0, 0.0])
