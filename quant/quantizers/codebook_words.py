"""What codebook quantizers say beside words.py: cells, distances to points, and sums over them.

Points are words of 4 bits a coordinate (codebooks.py). In tables of 8 float32, which x86 looks up
8 words at a time in, 4 coordinates have a table each and 8 share them by twos.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from ..cpu.floats import FEATURES
from ..cpu.simd import LANES, address, make
from ..cpu.vector import F32, I8, I32, I64, Builder, Value, constant, declare, lanes, pointer, vec
from ..cpu.vector import splat as splat_of

_LOOKS_UP = "avx2" in FEATURES
_F32X8, _I32X8 = vec("f32", 8), vec("i32", 8)
_LARGE = 12582912.0  # 1.5 * 2^23: floats of this size are the integers


# ---- bytes and bits ----------------------------------------------------------------------------
def _put_byte_code(b: Builder, sig: Any, args: Any) -> Value:
    b.store(b.trunc(args[1], I8), pointer(b, args[0]), align=1)
    return I64(0)


put_byte = make("put_byte", 2, lambda a: types.int64(address, types.int64), _put_byte_code)


def _load_byte_code(b: Builder, sig: Any, args: Any) -> Value:
    return b.zext(b.load(pointer(b, args[0]), align=1, typ=I8), I64)


load_byte = make("load_byte", 1, lambda a: types.int64(address), _load_byte_code)


def _negative_code(b: Builder, sig: Any, args: Any) -> Value:
    negative = b.fcmp_ordered("<", args[0], ir.Constant(args[0].type, None))
    return b.zext(b.bitcast(negative, ir.IntType(args[0].type.count)), I64)


# negative_lanes(v): a bit for each lane below 0, the first lane lowest.
negative_lanes = make("negative_lanes", 1, lambda a: types.int64(a[0]), _negative_code)


def _bit_count_code(b: Builder, sig: Any, args: Any) -> Value:
    return b.call(declare(b, "llvm.ctpop.i64", I64, [I64]), [args[0]])


bit_count = make("bit_count", 1, lambda a: types.int64(types.int64), _bit_count_code)


def _first_bit_code(b: Builder, sig: Any, args: Any) -> Value:
    count = declare(b, "llvm.cttz.i64", I64, [I64, ir.IntType(1)])
    return b.call(count, [args[0], ir.IntType(1)(0)])


first_bit = make("first_bit", 1, lambda a: types.int64(types.int64), _first_bit_code)


# ---- the least of some -------------------------------------------------------------------------
def _first_lane(b: Builder, mask: Value) -> Value:
    """The number of the first set lane of <8 x i1>; 0 if none is."""
    count = declare(b, "llvm.cttz.i8", I8, [I8, ir.IntType(1)])
    found = b.call(count, [b.bitcast(mask, I8), ir.IntType(1)(0)])
    return b.zext(b.and_(found, I8(7)), I64)


def _all_least(b: Builder, v: Value) -> Value:
    for step in (4, 2, 1):
        moved = lanes(b, v, v, [i ^ step for i in range(8)])
        v = b.select(b.fcmp_ordered("<", moved, v), moved, v)
    return v


def _least_lane_code(b: Builder, sig: Any, args: Any) -> Value:
    return _first_lane(b, b.fcmp_ordered("==", args[0], _all_least(b, args[0])))


def _least_place_code(b: Builder, sig: Any, args: Any) -> Value:
    v, places = args
    equal = b.fcmp_ordered("==", v, _all_least(b, v))
    beyond = constant("i32", [0x7FFFFFFF] * 8)
    found = b.select(equal, places, beyond)
    reduce = declare(b, "llvm.vector.reduce.smin.v8i32", I32, [_I32X8.llvm])
    return b.sext(b.call(reduce, [found]), I64)


# least_lane(v): the first lane of the least of 8. least_place(v, places): the lowest place there.
least_lane = make("least_lane", 1, lambda a: types.int64(_F32X8), _least_lane_code)
least_place = make("least_place", 2, lambda a: types.int64(_F32X8, _I32X8), _least_place_code)


# ---- values by codes ---------------------------------------------------------------------------
def _entries(dimensions: int) -> int:
    return 32 // dimensions


def _codes(b: Builder, found: Value, place: int, dimensions: int) -> Value:
    """The codes of a coordinate of words."""
    count = found.type.count
    some = b.lshr(found, constant("i32", [4 * place] * count)) if place else found
    return b.and_(some, constant("i32", [_entries(dimensions) - 1] * count))


def _look_up(b: Builder, table: Value, found: Value, place: int) -> Value:
    """Entries of <8 x f32> by a coordinate of words (x86): only 3 bits count, no need to mask."""
    count = found.type.count
    name = "llvm.x86.avx2.permps" if count == 8 else "llvm.x86.avx512.permvar.sf.512"
    table = lanes(b, table, table, [i % 8 for i in range(count)])
    index = b.lshr(found, constant("i32", [4 * place] * count)) if place else found
    return b.call(declare(b, name, table.type, [table.type, index.type]), [table, index])


def _odd_numbers(b: Builder, found: Value, place: int, dimensions: int) -> Value:
    """2 c + 1 of the codes c of a coordinate of words, as float32."""
    if _LOOKS_UP:
        count = _entries(dimensions)
        table = constant("f32", [2.0 * (i % count) + 1.0 for i in range(8)])
        return _look_up(b, table, found, place)
    codes = _codes(b, found, place, dimensions)
    ones = constant("i32", [1] * found.type.count)
    odd = b.or_(b.add(codes, codes), ones)
    return b.sitofp(odd, ir.VectorType(F32, found.type.count))


def distances(dimensions: int, given: bool = False) -> Any:
    """distances(scale, values, x, weights, words): of 8 points from x, <8 x f32>.

    A sum over the coordinates, first to last, of weight * d * d where d = scale * value - x. Values
    are 2 c + 1 by the codes c, or the three `given` by an address.
    """
    kind = vec("f32", dimensions)

    def typer(a: Any) -> Any:
        return _F32X8(types.float32, address, kind, kind, _I32X8)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        scale, values, x, weights, found = args
        own = [_load(b, values, i) for i in range(3)] if given else []
        total = None
        for table in range(4) if _LOOKS_UP else range(dimensions):
            per = _entries(dimensions) if _LOOKS_UP else 8
            places = [table * 8 // per + i // per for i in range(8)] if _LOOKS_UP else [table] * 8
            if not _LOOKS_UP:
                value = _chosen(b, found, table, own) if given else None
                value = value or _odd_numbers(b, found, table, dimensions)
            elif given:
                value = ir.Constant(_F32X8.llvm, ir.Undefined)
                for i in range(8):
                    value = b.insert_element(value, own[min(i % 4, 2)], I32(i))
            else:
                value = constant("f32", [2.0 * (i % per) + 1.0 for i in range(8)])
            from_x = b.fsub(b.fmul(splat_of(b, scale, 8), value), lanes(b, x, x, places))
            part = b.fmul(b.fmul(lanes(b, weights, weights, places), from_x), from_x)
            for place in dict.fromkeys(places):
                term = _look_up(b, part, found, place) if _LOOKS_UP else part
                total = b.fadd(total, term) if total else term
        return total

    return make("distances", 5, typer, code)


def _load(b: Builder, at: Value, index: int) -> Value:
    return b.load(pointer(b, b.add(at, I64(4 * index))), align=1, typ=F32)


def _chosen(b: Builder, found: Value, place: int, values: list[Value]) -> Value:
    """One of three values by a coordinate of words."""
    codes = _codes(b, found, place, 8)
    result = splat_of(b, values[2], 8)
    for i in (1, 0):
        equal = b.icmp_signed("==", codes, constant("i32", [i] * 8))
        result = b.select(equal, splat_of(b, values[i], 8), result)
    return result


# ---- LANES scales at once ----------------------------------------------------------------------
_FLOATS, _WORDS = vec("f32", LANES), vec("i32", LANES)


def rounded_cells(dimensions: int) -> Any:
    """rounded_cells(inverses, x): the cells of the values at address x, by LANES inverse scales.

    A code is (inverse * value - 1) / 2 rounded to the nearest, cut off at 0 and the largest. Bits
    are what llama.cpp's nearest_int looks at, so that values far out go where they go there.
    """
    base = 8 if dimensions == 4 else 3
    zero = 0x400000  # in the lowest bits of a large number: 0

    def code(b: Builder, sig: Any, args: Any) -> Value:
        inverses, x = args

        def floats(value: float) -> ir.Constant:
            return constant("f32", [value] * LANES)

        def integers(value: int) -> ir.Constant:
            return constant("i32", [value] * LANES)

        cells = None
        for i in reversed(range(dimensions)):
            v = b.fmul(inverses, splat_of(b, _load(b, x, i), LANES))
            v = b.fmul(floats(0.5), b.fsub(v, floats(1.0)))
            bits = b.bitcast(b.fadd(v, floats(_LARGE)), _WORDS.llvm)
            bits = b.and_(bits, integers(0x7FFFFF))
            for op, limit in ((">", zero), ("<", zero + base - 1)):
                bits = b.select(b.icmp_signed(op, bits, integers(limit)), bits, integers(limit))
            if cells is None:
                cells = bits
            else:
                more = b.shl(cells, integers(3 if base == 8 else 1))
                more = more if base == 8 else b.add(more, cells)
                cells = b.add(more, bits)
        return b.sub(cells, integers(zero * sum(base**i for i in range(dimensions)) % 2**32))

    return make("rounded_cells", 2, lambda a: _WORDS(_FLOATS, address), code)


def _sum(name: str, term: Callable[..., Value]) -> Callable[[int], Any]:
    def of(dimensions: int) -> Any:
        def code(b: Builder, sig: Any, args: Any) -> Value:
            total, found, at = args
            for i in range(dimensions):
                factor = splat_of(b, _load(b, at, i), LANES)
                total = b.fadd(total, term(b, factor, _odd_numbers(b, found, i, dimensions)))
            return total

        return make(name, 3, lambda a: _FLOATS(_FLOATS, _WORDS, address), code)

    return of


# add_products(sum, words, at): + factor * q for each coordinate, add_squares: + factor * q * q, in
# this order; q = 2 c + 1 by the codes c of the words, the factors lie at an address.
add_products = _sum("add_products", lambda b, factor, q: b.fmul(factor, q))
add_squares = _sum("add_squares", lambda b, factor, q: b.fmul(b.fmul(factor, q), q))
