"""Words of the quantizers of small blocks: scalars that are only moved, and bits of lanes."""

from typing import Any

from llvmlite import ir
from numba.core import types

from ..cpu.simd import address, convert, make, store
from ..cpu.vector import (
    F32,
    I8,
    I16,
    I32,
    I64,
    Builder,
    Value,
    constant,
    declare,
    pointer,
    splat,
    vec,
)

F32X16, I32X16 = vec("f32", 16), vec("i32", 16)

store_i16x16 = store("i16", 16)
narrow_to_i16x16 = convert("trunc", I32X16, vec("i16", 16))


# ---- scalars -----------------------------------------------------------------------------------
def _copy_i16_code(b: Builder, sig: Any, args: Any) -> Value:
    source, out = args
    b.store(b.load(pointer(b, source), align=1, typ=I16), pointer(b, out), align=1)
    return I64(0)


def _copy_i32_code(b: Builder, sig: Any, args: Any) -> Value:
    source, out = args
    b.store(b.load(pointer(b, source), align=1, typ=I32), pointer(b, out), align=1)
    return I64(0)


_two = types.int64(address, address)
copy_i16 = make("copy_i16", 2, lambda a: _two, _copy_i16_code)  # from, to
copy_i32 = make("copy_i32", 2, lambda a: _two, _copy_i32_code)


# ---- bits of lanes -----------------------------------------------------------------------------
def _lane_bits(b: Builder, mask: Value) -> Value:
    """<n x i1> -> i64, the first lane lowest."""
    return b.zext(b.bitcast(mask, ir.IntType(mask.type.count)), I64)


def _where_code(b: Builder, sig: Any, args: Any) -> Value:
    v, value = args
    return _lane_bits(b, b.fcmp_ordered("==", v, splat(b, value, 16)))


def _bit_code(bit: int) -> Any:
    def code(b: Builder, sig: Any, args: Any) -> Value:
        # The bit becomes the sign, which CPUs without masks can collect.
        up = b.shl(args[0], constant("i32", [31 - bit] * 16))
        return _lane_bits(b, b.icmp_signed("<", up, ir.Constant(I32X16.llvm, None)))

    return code


# The lanes that equal a scalar, and those with bit 4 set, as bits of an int64.
lanes_equal = make("lanes_equal", 2, lambda a: types.int64(F32X16, types.float32), _where_code)
fifth_bits = make("fifth_bits", 1, lambda a: types.int64(I32X16), _bit_code(4))


def _least_code(b: Builder, sig: Any, args: Any) -> Value:
    function = declare(b, "llvm.vector.reduce.fmin.v16f32", F32, [F32X16.llvm])
    return b.call(function, [args[0]], fastmath=("nnan",))


min_f32x16_all = make("min_f32x16_all", 1, lambda a: types.float32(F32X16), _least_code)


def _first_code(b: Builder, sig: Any, args: Any) -> Value:
    return b.call(
        declare(b, "llvm.cttz.i64", I64, [I64, ir.IntType(1)]), [args[0], ir.IntType(1)(0)]
    )


first_bit = make("first_bit", 1, lambda a: types.int64(types.int64), _first_code)


def _bits_code(b: Builder, sig: Any, args: Any) -> Value:
    return b.zext(b.bitcast(args[0], I32), I64)


bits_f32 = make("bits_f32", 1, lambda a: types.int64(types.float32), _bits_code)


def _from_bits_code(b: Builder, sig: Any, args: Any) -> Value:
    return b.bitcast(b.trunc(args[0], I32), F32)


from_bits_f32 = make("from_bits_f32", 1, lambda a: types.float32(types.int64), _from_bits_code)


def _store_u8_code(b: Builder, sig: Any, args: Any) -> Value:
    at, value = args
    b.store(b.trunc(value, I8), pointer(b, at), align=1)
    return I64(0)


store_u8 = make("store_u8", 2, lambda a: types.int64(address, types.int64), _store_u8_code)
