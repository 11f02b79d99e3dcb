"""Float instructions that some CPUs lack: fused multiply-add, rounding, float16 to and from.

LLVM would turn each into a call of a C library's function, an element at a time, where the target
has no instruction; here it becomes a few instructions that every CPU has. Values are scalars or
vectors.
"""

from typing import Any

from llvmlite import ir

from ..target import target
from .vector import F16, F32, I16, I32, Builder, Value, declare

_ARM = target().arch == "aarch64"
FEATURES = target().enabled
FUSED = _ARM or "fma" in FEATURES
ROUNDS = _ARM or "sse4.1" in FEATURES
HALVES = _ARM or "f16c" in FEATURES or "avx512f" in FEATURES


def _like(kind: Any, element: ir.Type) -> Any:
    """The type `element` in the shape of another type."""
    return ir.VectorType(element, kind.count) if isinstance(kind, ir.VectorType) else element


def _constant(kind: Any, value: float) -> ir.Constant:
    """A number in each lane."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _suffix(kind: Any) -> str:
    return f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"


def fma_code(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """x * y + z, rounded once where the CPU can, else twice."""
    name = f"llvm.{'fma' if FUSED else 'fmuladd'}.{_suffix(x.type)}"
    return b.call(declare(b, name, x.type, [x.type] * 3), [x, y, z])


def nearest_code(b: Builder, x: Value, instruction: bool = ROUNDS) -> Value:
    """The nearest integer, ties to even, of |x| < 2^22."""
    if instruction:
        return b.call(declare(b, f"llvm.rint.{_suffix(x.type)}", x.type, [x.type]), [x])
    large = _constant(x.type, 1.5 * 2.0**23)  # floats of this size are the integers
    return b.fsub(b.fadd(x, large), large)


def widen_code(b: Builder, x: Value, instruction: bool = HALVES) -> Value:
    """float16 -> float32, exactly."""
    kind, floats = _like(x.type, I32), _like(x.type, F32)
    if instruction:
        return b.fpext(x, floats)

    def number(value: int) -> ir.Constant:
        return _constant(kind, value)

    bits = b.zext(b.bitcast(x, _like(x.type, I16)), kind)
    rest = b.and_(bits, number(0x7FFF))
    # The exponent's bias is 127 instead of 15.
    normal = b.add(b.shl(rest, number(13)), number(112 << 23))
    # A subnormal is 2^-14 too large as a number with a leading one.
    one_more = b.bitcast(b.add(normal, number(1 << 23)), floats)
    small = b.bitcast(b.fsub(one_more, _constant(floats, 2.0**-14)), kind)
    large = b.add(normal, number(112 << 23))  # infinity and NaN
    value = b.select(b.icmp_signed("<", rest, number(1 << 10)), small, normal)
    value = b.select(b.icmp_signed(">", rest, number(0x7BFF)), large, value)
    sign = b.shl(b.xor(bits, rest), number(16))
    return b.bitcast(b.or_(value, sign), floats)


def narrow_code(b: Builder, x: Value, instruction: bool = HALVES) -> Value:
    """float32 -> float16, rounded to the nearest, ties to even; too large becomes infinity."""
    kind, floats = _like(x.type, I32), x.type
    if instruction:
        return b.fptrunc(x, _like(x.type, F16))

    def number(value: int) -> ir.Constant:
        return _constant(kind, value)

    bits = b.bitcast(x, kind)
    rest = b.and_(bits, number(0x7FFFFFFF))
    # Half of the last place that stays is added, less one bit where that place is even: a tie.
    odd = b.and_(b.lshr(rest, number(13)), number(1))
    normal = b.lshr(b.add(b.sub(rest, number((112 << 23) - 0xFFF)), odd), number(13))
    # Next to 0.5, floats are as far apart as subnormal halves.
    shifted = b.bitcast(b.fadd(b.bitcast(rest, floats), _constant(floats, 0.5)), kind)
    small = b.sub(shifted, number(126 << 23))
    nan = b.icmp_signed(">", rest, number(255 << 23))
    large = b.select(nan, number(0x7E00), number(0x7C00))
    value = b.select(b.icmp_signed("<", rest, number(113 << 23)), small, normal)
    value = b.select(b.icmp_signed(">=", rest, number(143 << 23)), large, value)
    sign = b.lshr(b.xor(bits, rest), number(16))
    return b.bitcast(b.trunc(b.or_(value, sign), _like(x.type, I16)), _like(x.type, F16))
