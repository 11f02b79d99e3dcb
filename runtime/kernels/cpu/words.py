"""16-bit words for prefill attention: twice as many products an instruction as float32 has.

Two words of a lane lie in its 32 bits, the first one low. Keys and queries that are scaled to a
length of LARGEST have products below 2^31 by Cauchy and Schwarz, whatever their size; the error,
about 1e-5 of the product of their lengths, is of the size that float16 keys have anyway. Weights of
TILE keys, at most 2^12, times values of at most LARGEST_VALUE stay below 2^31 as well.
"""

from typing import Any

from llvmlite import ir
from numba.core import types

from ....quant.cpu.floats import fma_code
from ....quant.cpu.native import native
from ....quant.cpu.simd import ISA, LANES, make
from ....quant.cpu.vector import (
    F32,
    I16,
    I32,
    I64,
    Builder,
    Registers,
    Value,
    constant,
    declare,
    lanes,
    pointer,
    splat,
    vec,
)

TILE = 64  # keys whose weights share a maximum
LARGEST = 32767.0
WEIGHT_BITS = 12
LARGEST_VALUE = 8191.0
assert TILE * 2**WEIGHT_BITS * LARGEST_VALUE < 2**31

# Keys, then columns, in registers at once: all of AVX-512's 32 but for what is in work, of others'
# 16 half, since a vector of LANES may be two registers.
WIDTH = {16: 16, 8: 8, 4: 4}[min(LANES, native.NATIVE[ISA])]

# Adding this to a float32 below 2^22 leaves it rounded to an integer, in the low bits.
_ROUND = 1.5 * 2.0**23
# 2^f, |f| <= 0.5, relative error 3e-6: the weights' last bit is 1.2e-4 of the largest.
_POWERS = (0.009582853169, 0.05590642504, 0.2402409861, 0.6931241934, 1.0)

_int = types.int64
_float, _ints = vec("f32", LANES), vec("i32", LANES)
registers = Registers(_ints, WIDTH)


def dot2_code(b: Builder, acc: Value, x: Value, y: Value) -> Value:
    """acc[i] += x[2i] * y[2i] + x[2i + 1] * y[2i + 1] of signed words."""
    count = acc.type.count
    width = native.NATIVE[ISA]
    if count > width:
        parts = []
        for k in range(0, count, width):
            some, words = list(range(k, k + width)), list(range(2 * k, 2 * (k + width)))
            part = (lanes(b, acc, acc, some), lanes(b, x, x, words), lanes(b, y, y, words))
            parts.append(dot2_code(b, *part))
        while len(parts) > 1:
            both = list(range(2 * parts[0].type.count))
            parts = [lanes(b, parts[i], parts[i + 1], both) for i in range(0, len(parts), 2)]
        return parts[0]
    if ISA in ("avx512vnni", "avxvnni"):
        name = f"llvm.x86.avx512.vpdpwssd.{32 * count}"
        return b.call(declare(b, name, acc.type, [acc.type, x.type, y.type]), [acc, x, y])
    if name := _PRODUCTS.get((ISA[:3], count)):
        return b.add(acc, b.call(declare(b, name, acc.type, [x.type, y.type]), [x, y]))
    even, odd = list(range(0, 2 * count, 2)), list(range(1, 2 * count, 2))
    for some in (even, odd):
        wide = [b.sext(lanes(b, v, v, some), acc.type) for v in (x, y)]
        acc = b.add(acc, b.mul(*wide))
    return acc


_PRODUCTS = {
    ("sse", 4): "llvm.x86.sse2.pmadd.wd",
    ("avx", 4): "llvm.x86.sse2.pmadd.wd",
    ("avx", 8): "llvm.x86.avx2.pmadd.wd",
    ("avx", 16): "llvm.x86.avx512.pmaddw.d.512",
}


def _step_code(b: Builder, sig: Any, args: Any) -> Value:
    """(acc, at, x): acc[i] += the pair of words at `at` + 4 i, times each lane's of x."""
    acc, at, x = args
    kind = ir.VectorType(I16, 2 * LANES)
    x = b.bitcast(x, kind)
    for i in range(WIDTH):
        pair = splat(b, b.load(pointer(b, b.add(at, I64(4 * i))), align=1, typ=I32), LANES)
        acc = b.insert_value(
            acc, dot2_code(b, b.extract_value(acc, i), x, b.bitcast(pair, kind)), i
        )
    return acc


def _scores_code(b: Builder, sig: Any, args: Any) -> Value:
    """(acc, at, factor, top): WIDTH vectors of float32 acc * factor to `at`; their maximum."""
    acc, at, factor, top = args
    kind = _float.llvm
    function = declare(b, f"llvm.maxnum.v{LANES}f32", kind, [kind] * 2)
    for i in range(WIDTH):
        v = b.fmul(b.sitofp(b.extract_value(acc, i), kind), factor)
        b.store(v, pointer(b, b.add(at, I64(4 * LANES * i))), align=1)
        top = b.call(function, [top, v], fastmath=("nnan",))
    return top


def _values_code(b: Builder, sig: Any, args: Any) -> Value:
    """(acc, at, decay, factor): WIDTH vectors at `at` times decay, plus acc * factor."""
    acc, at, decay, factor = args
    kind = _float.llvm
    for i in range(WIDTH):
        where = pointer(b, b.add(at, I64(4 * LANES * i)))
        old = b.fmul(b.load(where, align=1, typ=kind), decay)
        v = b.sitofp(b.extract_value(acc, i), kind)
        b.store(fma_code(b, v, factor, old), where, align=1)
    return I64(0)


def _power_code(b: Builder, x: Value) -> Value:
    """2^x, 0 < 2^-100 for what is less."""
    n, kind = x.type.count, x.type

    def number(value: float) -> ir.Constant:
        return ir.Constant(kind, [value] * n)

    larger = declare(b, f"llvm.maxnum.v{n}f32", kind, [kind] * 2)
    x = b.call(larger, [x, number(-100.0)], fastmath=("nnan",))
    rounded = b.fadd(x, number(_ROUND))
    f = b.fsub(x, b.fsub(rounded, number(_ROUND)))
    y = number(_POWERS[0])
    for c in _POWERS[1:]:
        y = fma_code(b, y, f, number(c))
    whole = ir.VectorType(I32, n)
    exponent = b.shl(b.bitcast(rounded, whole), constant("i32", [23] * n))
    return b.bitcast(b.add(b.bitcast(y, whole), exponent), kind)


def _words_code(b: Builder, x: Value, y: Value) -> Value:
    """The nearest integers, of at most 16 bits, as pairs of words."""
    n = x.type.count
    whole, large = ir.VectorType(I32, n), ir.Constant(x.type, [_ROUND] * n)
    low, high = (b.bitcast(b.fadd(v, large), whole) for v in (x, y))
    low = b.and_(low, constant("i32", [0xFFFF] * n))
    return b.or_(low, b.shl(high, constant("i32", [16] * n)))


def _weights_code(b: Builder, sig: Any, args: Any) -> Value:
    """(at, shift): 2^(score + shift) of two vectors of scores, as words."""
    at, shift = args
    some = (b.load(pointer(b, b.add(at, I64(k))), align=1, typ=_float.llvm) for k in (0, 4 * LANES))
    x, y = (_power_code(b, b.fadd(v, shift)) for v in some)
    return _words_code(b, x, y)


def _sum_code(b: Builder, sig: Any, args: Any) -> Value:
    """(acc, words): acc + both words of each lane."""
    acc, x = args
    kind = ir.VectorType(I16, 2 * LANES)
    return dot2_code(b, acc, b.bitcast(x, kind), ir.Constant(kind, [1] * (2 * LANES)))


def pack_words(count: int) -> Any:
    """pack_words(x, y) of `count` lanes: see _words_code."""
    kind, result = vec("f32", count), vec("i32", count)
    return make("pack_words", 2, lambda a: result(kind, kind), lambda b, s, a: _words_code(b, *a))


def _clear_code(b: Builder, sig: Any, args: Any) -> Value:
    """(at, first, count): 16 float32 at `at`, numbered from `first`: 0 from number `count` on."""
    at, first, count = args
    kind = ir.VectorType(F32, 16)
    number = splat(b, b.trunc(b.sub(count, first), I32), 16)
    kept = b.icmp_signed("<", constant("i32", list(range(16))), number)
    where = pointer(b, at)
    v = b.load(where, align=1, typ=kind)
    b.store(b.select(kept, v, ir.Constant(kind, None)), where, align=1)
    return I64(0)


zero_words = make(
    "zero_words", 0, lambda a: registers(), lambda b, s, a: ir.Constant(registers.llvm, None)
)
step_words = make("step_words", 3, lambda a: registers(registers, _int, _ints), _step_code)
put_scores = make("put_scores", 4, lambda a: _float(registers, _int, _float, _float), _scores_code)
add_values = make("add_values", 4, lambda a: _int(registers, _int, _float, _float), _values_code)
weights = make("weights", 2, lambda a: _ints(_int, _float), _weights_code)
power = make("power", 1, lambda a: _float(_float), lambda b, s, a: _power_code(b, a[0]))
sum_words = make("sum_words", 2, lambda a: _ints(_ints, _ints), _sum_code)
clear_after = make("clear_after", 3, lambda a: _int(_int, _int, _int), _clear_code)
