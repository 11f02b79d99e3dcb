"""The language of GPU kernels: what one thread of a block can say.

Kernels are Python functions of this module's words. Numba types them, LLVM makes PTX of them
(compiler.py); tests run the same source in NumPy, all threads in step. Scalars are int64 and
float32; a 32-bit word is an int32 that only goes through words with `32` in their name (Numba would
widen it). Vectors (`f32x4`) are registers: v[k] is an element, and k must be a constant or the
variable of a loop with constant bounds, which LLVM unrolls. Memory is reached through int64
addresses, aligned to what is read (memory.py); matrices.py has the tensor cores.

Kernels must not use other Python objects than int, float32 and vectors; helpers are `@inline`.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit

from ..cpu.vector import F16, F32, I32, I64, Builder, Value, declare, splat
from .vocabulary import GLOBAL, SHARED, assembly, joined, llvm_of, plain, pointer, split, word

I8, I16 = ir.IntType(8), ir.IntType(16)
inline = njit(error_model="numpy", nogil=True, forceinline=True)


class Kernel:
    """A kernel's source with the block that it is written for.

    block: threads of a block (x). min_blocks: of a multiprocessor, which bounds the registers.
    """

    def __init__(self, function: Callable[..., Any], block: int, min_blocks: int) -> None:
        self.function, self.block, self.min_blocks = function, block, min_blocks
        self.dispatcher: Any = njit(error_model="numpy", nogil=True)(function)


def kernel(*, block: int, min_blocks: int = 0) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorates a function of int64 (annotated as float: float32) arguments, without a result."""
    return lambda function: Kernel(function, block, min_blocks)


# ---- who am I ----------------------------------------------------------------------------------
def _register(name: str, register: str) -> Any:
    def code(b: Builder) -> Value:
        function = declare(b, f"llvm.nvvm.read.ptx.sreg.{register}", I32, [])
        return b.zext(b.call(function, []), I64)

    return word(name, [], "i64", code)


thread = _register("thread", "tid.x")  # of the block
block_x, block_y, block_z = (_register(f"block_{a}", f"ctaid.{a}") for a in "xyz")
grid_x, grid_y = (_register(f"grid_{a}", f"nctaid.{a}") for a in "xy")


# Programmatic dependent launch: a kernel may start before the one before it ends. Until
# `wait_for_inputs` it may only read what no kernel of the step writes. On GPUs before 9.0, and
# where it isn't launched so, both do nothing (compiler.py drops them).
wait_for_inputs = plain("wait_for_inputs", "griddepcontrol.wait;")
let_next_start = plain("let_next_start", "griddepcontrol.launch_dependents;")

# ---- together ----------------------------------------------------------------------------------
barrier = plain("barrier", "bar.sync 0;")  # all threads of the block
sync_warp = plain("sync_warp", "bar.warp.sync 0xffffffff;")
fence = plain("fence", "membar.gl;")


def _shuffle(name: str, mode: str, kind: str) -> Any:
    def code(b: Builder, value: Value, by: Value) -> Value:
        text = f"shfl.sync.{mode}.b32 $0, $1, $2, 0x1f, 0xffffffff;"
        bits = value if kind == "i32" else b.bitcast(value, I32)
        found = assembly(
            b, text, ["i32"], [("i32", bits), ("i32", b.trunc(by, I32))], volatile=True
        )
        return found[0] if kind == "i32" else b.bitcast(found[0], F32)

    return word(name, [kind, "i64"], kind, code)


# Another thread's value of the warp: thread ^ mask; thread number `lane`. All 32 take part.
shuffle_xor_f32, shuffle_xor_i32 = (_shuffle(f"shuffle_xor_{k}", "bfly", k) for k in ("f32", "i32"))
shuffle_f32, shuffle_i32 = (_shuffle(f"shuffle_{k}", "idx", k) for k in ("f32", "i32"))


def _atomic_add(b: Builder, at: Value, value: Value) -> Value:
    return b.atomic_rmw("add", pointer(b, at, GLOBAL), value, "monotonic")


atomic_add_i32 = word("atomic_add_i32", ["i64", "i32"], "i32", _atomic_add)  # the value before
atomic_add_f32 = word(
    "atomic_add_f32",
    ["i64", "f32"],
    "f32",
    lambda b, at, v: b.atomic_rmw("fadd", pointer(b, at, GLOBAL), v, "monotonic"),
)


atomic_add_shared32 = word(
    "atomic_add_shared32",
    ["i64", "i32"],
    "i32",
    lambda b, at, v: b.atomic_rmw("add", pointer(b, at, SHARED), v, "monotonic"),
)


def _reduce(name: str, op: str) -> Any:
    text = f"redux.sync.{op}.s32 $0, $1, 0xffffffff;"

    def code(b: Builder, value: Value) -> Value:
        return assembly(b, text, ["i32"], [("i32", value)], volatile=True)[0]

    return word(name, ["i32"], "i32", code)


# Over a warp's words, in every thread of it; all 32 take part.
warp_max32, warp_min32, warp_add32 = (_reduce(f"warp_{n}32", n) for n in ("max", "min", "add"))


# ---- 32-bit words ------------------------------------------------------------------------------
def _binary32(name: str, op: str) -> Any:
    return word(name, ["i32", "i32"], "i32", lambda b, x, y: getattr(b, op)(x, y))


and32, or32, xor32, add32, sub32, mul32 = (
    _binary32(f"{n}32", op)
    for n, op in (
        ("and", "and_"), ("or", "or_"), ("xor", "xor"), ("add", "add"), ("sub", "sub"),
        ("mul", "mul"),
    )
)  # fmt: skip
shl32, shr32, sar32 = (
    _binary32(n, op) for n, op in (("shl32", "shl"), ("shr32", "lshr"), ("sar32", "ashr"))
)
i32 = word("i32", ["i64"], "i32", lambda b, v: b.trunc(v, I32))
i64 = word("i64", ["i32"], "i64", lambda b, v: b.sext(v, I64))
u64 = word("u64", ["i32"], "i64", lambda b, v: b.zext(v, I64))


def _dp4a(kinds: str) -> Callable[..., Value]:
    def code(b: Builder, x: Value, y: Value, z: Value) -> Value:
        found = [("i32", v) for v in (x, y, z)]
        return assembly(b, f"dp4a.{kinds} $0, $1, $2, $3;", ["i32"], found)[0]

    return code


# c + the sum of four products of bytes.
dp4a = word("dp4a", ["i32", "i32", "i32"], "i32", _dp4a("s32.s32"))
dp4a_us = word("dp4a_us", ["i32", "i32", "i32"], "i32", _dp4a("u32.s32"))


def _permute(b: Builder, x: Value, y: Value, order: Value) -> Value:
    found = [("i32", v) for v in (x, y, order)]
    return assembly(b, "prmt.b32 $0, $1, $2, $3;", ["i32"], found)[0]


# Bytes of x (0-3) and y (4-7) in the order of the four low nibbles of `order`.
permute_bytes = word("permute_bytes", ["i32", "i32", "i32"], "i32", _permute)

# ---- numbers -----------------------------------------------------------------------------------
to_f32 = word("to_f32", ["i32"], "f32", lambda b, v: b.sitofp(v, F32))
f32_of = word("f32_of", ["i64"], "f32", lambda b, v: b.sitofp(v, F32))
bits_f32 = word("bits_f32", ["i32"], "f32", lambda b, v: b.bitcast(v, F32))
bits_i32 = word("bits_i32", ["f32"], "i32", lambda b, v: b.bitcast(v, I32))


def _half(b: Builder, v: Value) -> Value:
    return b.fpext(b.bitcast(b.trunc(v, I16), F16), F32)


half = word("half", ["i32"], "f32", _half)  # the float16 in a word's low half
half_high = word(
    "half_high", ["i32"], "f32", lambda b, v: _half(b, b.lshr(v, ir.Constant(I32, 16)))
)


def _pack(b: Builder, low: Value, high: Value) -> Value:
    return assembly(b, "cvt.rn.f16x2.f32 $0, $2, $1;", ["i32"], [("f32", low), ("f32", high)])[0]


pack_half2 = word("pack_half2", ["f32", "f32"], "i32", _pack)  # as float16: low, high half


def _fma_half2(b: Builder, x: Value, y: Value, z: Value) -> Value:
    found = [("i32", v) for v in (x, y, z)]
    return assembly(b, "fma.rn.f16x2 $0, $1, $2, $3;", ["i32"], found)[0]


def _add_half2(b: Builder, x: Value, y: Value) -> Value:
    return assembly(b, "add.rn.f16x2 $0, $1, $2;", ["i32"], [("i32", x), ("i32", y)])[0]


# Of both float16 numbers of words: x * y + z, rounded once; x + y.
fma_half2 = word("fma_half2", ["i32", "i32", "i32"], "i32", _fma_half2)
add_half2 = word("add_half2", ["i32", "i32"], "i32", _add_half2)


def _ptx1(name: str, text: str, kind: str = "f32", result: str = "f32") -> Any:
    return word(name, [kind], result, lambda b, v: assembly(b, text, [result], [(kind, v)])[0])


exp2 = _ptx1("exp2", "ex2.approx.ftz.f32 $0, $1;")  # relative error 2^-22
log2 = _ptx1("log2", "lg2.approx.ftz.f32 $0, $1;")
rsqrt = _ptx1("rsqrt", "rsqrt.approx.f32 $0, $1;")  # 2^-22.4
reciprocal = _ptx1("reciprocal", "rcp.approx.f32 $0, $1;")  # 1 ulp
nearest = _ptx1("nearest", "cvt.rni.s32.f32 $0, $1;", "f32", "i32")  # ties to even, saturating
sqrt = word(
    "sqrt", ["f32"], "f32", lambda b, v: b.call(declare(b, "llvm.sqrt.f32", F32, [F32]), [v])
)


def _llvm2(name: str, function: str) -> Any:
    def code(b: Builder, x: Value, y: Value) -> Value:
        return b.call(declare(b, f"llvm.{function}.f32", F32, [F32, F32]), [x, y])

    return word(name, ["f32", "f32"], "f32", code)


maximum, minimum = _llvm2("maximum", "maxnum"), _llvm2("minimum", "minnum")
absolute = word(
    "absolute", ["f32"], "f32", lambda b, v: b.call(declare(b, "llvm.fabs.f32", F32, [F32]), [v])
)


def _fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return b.call(declare(b, "llvm.fma.f32", F32, [F32] * 3), [x, y, z])


fma = word("fma", ["f32"] * 3, "f32", _fma)  # x * y + z


# int32 whose order is that of the float32: 0 and -0 are equal, NaN is below all. The least int32 is
# none of them.
def _order(b: Builder, v: Value) -> Value:
    bits = b.bitcast(b.fadd(v, ir.Constant(F32, 0.0)), I32)  # -0 + 0 is 0
    sign = b.ashr(bits, ir.Constant(I32, 31))
    turned = b.xor(bits, b.and_(sign, ir.Constant(I32, 0x7FFFFFFF)))
    missing = b.fcmp_unordered("uno", v, v)
    return b.select(missing, ir.Constant(I32, -(1 << 31) + 1), turned)


order_of = word("order_of", ["f32"], "i32", _order)


def _of_order(b: Builder, v: Value) -> Value:
    sign = b.ashr(v, ir.Constant(I32, 31))
    return b.bitcast(b.xor(v, b.and_(sign, ir.Constant(I32, 0x7FFFFFFF))), F32)


of_order = word("of_order", ["i32"], "f32", _of_order)  # the float32 again, but for NaN


# ---- vectors -----------------------------------------------------------------------------------
def zero(kind: str) -> Any:
    """zero(): a vector of zeros; made outside of kernels: `_zero = zero("f32x8")`."""
    return word(f"zero_{kind}", [], kind, lambda b: ir.Constant(llvm_of(kind), None))


def fill(kind: str) -> Any:
    """fill(scalar): it in all elements."""
    element, count = kind.split("x")
    return word(f"fill_{kind}", [element], kind, lambda b, v: splat(b, v, int(count)))


def put(kind: str) -> Any:
    """put(vector, k, value): the vector with another element k."""

    def code(b: Builder, v: Value, k: Value, x: Value) -> Value:
        return b.insert_element(v, x, b.trunc(k, I32))

    return word(f"put_{kind}", [kind, "i64", kind.split("x")[0]], kind, code)


def take(kind: str, count: int) -> Any:
    """take(vector, k): elements count * k and following as a vector of `count`."""
    element = kind.split("x")[0]

    def code(b: Builder, v: Value, k: Value) -> Value:
        first = b.mul(b.trunc(k, I32), ir.Constant(I32, count))
        places = [b.add(first, ir.Constant(I32, i)) for i in range(count)]
        return joined(b, [b.extract_element(v, at) for at in places])

    made = word(f"take{count}_{kind}", [kind, "i64"], f"{element}x{count}", code)
    made.taken = count
    return made


def put_part(kind: str, count: int) -> Any:
    """put_part(vector, k, part): the vector with other elements count * k and following."""
    element = kind.split("x")[0]

    def code(b: Builder, v: Value, k: Value, part: Value) -> Value:
        first = b.mul(b.trunc(k, I32), ir.Constant(I32, count))
        for i, x in enumerate(split(b, part)):
            v = b.insert_element(v, x, b.add(first, ir.Constant(I32, i)))
        return v

    made = word(f"put{count}_{kind}", [kind, "i64", f"{element}x{count}"], kind, code)
    made.taken = count
    return made


def _make(kind: str) -> Any:
    element, count = kind.split("x")
    return word(f"make_{kind}", [element] * int(count), kind, lambda b, *v: joined(b, v))


make_i32x2, make_i32x4, make_f32x2, make_f32x4 = map(_make, ("i32x2", "i32x4", "f32x2", "f32x4"))


# ---- over a warp -------------------------------------------------------------------------------
@inline
def warp_sum(v):
    """The sum of a warp's float32 values, in every thread."""
    for k in range(5):
        v = v + shuffle_xor_f32(v, 16 >> k)
    return v


@inline
def warp_max(v):
    """The largest of them."""
    for k in range(5):
        v = maximum(v, shuffle_xor_f32(v, 16 >> k))
    return v
