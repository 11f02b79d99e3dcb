"""Words that quantizers need beside quant/cpu/simd.py: comparisons, selects, exact rounding, tiles.

Quantizers run a scalar algorithm in each lane and must give the same bits on every CPU: here is
nothing that rounds otherwise than C's float does. Comparisons with NaN are false, as in C.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.extending import register_model

from ..cpu.simd import address, call, convert, fill, fill_f32x16, inline, load, store, zero
from ..cpu.vector import (
    I64,
    Builder,
    Value,
    Vector,
    lanes,
    make,
    pointer,
    vec,
)

# Adding this to a float32 below 2^22 leaves it rounded to an integer in the low bits, ties to even.
ROUND = 12582912.0  # 1.5 * 2^23


# ---- masks -------------------------------------------------------------------------------------
class Mask(Vector):
    """A bit a lane: what comparisons give and `select` takes; `&` and `|` combine them."""

    @property
    def llvm(self) -> ir.VectorType:
        """The LLVM type."""
        return ir.VectorType(ir.IntType(1), self.count)


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


_masks: dict[int, Mask] = {}


def mask(count: int) -> Mask:
    """The one type object of masks of `count` lanes."""
    return _masks.setdefault(count, Mask("i1", count))


def _compare(name: str, op: str) -> Any:
    def typer(a: Any) -> Any:
        if isinstance(a[0], Vector) and a[0] == a[1]:
            return mask(a[0].count)(a[0], a[0])
        return None

    def code(b: Builder, sig: Any, args: Any) -> Value:
        floating = sig.args[0].element[0] == "f"
        return (b.fcmp_ordered if floating else b.icmp_signed)(op, *args)

    return make(name, 2, typer, code)


less, greater = _compare("less", "<"), _compare("greater", ">")
equal, differs = _compare("equal", "=="), _compare("differs", "!=")


def _select_type(a: Any) -> Any:
    if isinstance(a[0], Mask) and isinstance(a[1], Vector) and a[1] == a[2]:
        return a[1](*a)
    return None


# select(mask, a, b): a where the mask is set, else b.
select = make("select", 3, _select_type, lambda b, sig, args: b.select(*args))


def _lanes(name: str, op: str, value: int) -> Any:
    def code(b: Builder, sig: Any, args: Any) -> Value:
        bits = ir.IntType(sig.args[0].count)
        return b.zext(b.icmp_unsigned(op, b.bitcast(args[0], bits), bits(value)), I64)

    return make(name, 1, lambda a: types.int64(a[0]) if isinstance(a[0], Mask) else None, code)


# any_lane(mask), all_lanes(mask) -> 1 or 0.
any_lane, all_lanes = _lanes("any_lane", "!=", 0), _lanes("all_lanes", "==", -1)


def _choose(name: str, op: str) -> Any:
    def code(b: Builder, sig: Any, args: Any) -> Value:
        floating = sig.args[0].element[0] == "f"
        return b.select((b.fcmp_ordered if floating else b.icmp_signed)(op, *args), *args)

    return make(name, 2, lambda a: a[0](*a) if a[0] == a[1] else None, code)


# C's usual MIN and MAX: a < b ? a : b and a > b ? a : b, so the second one if either is NaN.
smaller, larger = _choose("smaller", "<"), _choose("larger", ">")


# ---- conversions -------------------------------------------------------------------------------
sqrt_f32x16 = call("llvm.sqrt.v16f32", vec("f32", 16), 1)
bits_f32x16 = convert("bitcast", vec("f32", 16), vec("i32", 16))
from_bits_f32x16 = convert("bitcast", vec("i32", 16), vec("f32", 16))
halves_f16x16 = convert("bitcast", vec("f16", 16), vec("i16", 16))
u16_to_i32x16 = convert("zext", vec("i16", 16), vec("i32", 16))
i8_to_i32x16 = convert("sext", vec("i8", 16), vec("i32", 16))
fill_i32x16, fill_i8x16 = fill("i32", 16), fill("i8", 16)
zero_i8x16 = zero("i8", 16)
load_i32x16, store_i32x16 = load("i32", 16), store("i32", 16)


@inline
def _rounded(v):
    """12582912 + the nearest integer: from 2^23 on and below 2^24, whatever v (even NaN) is."""
    bits = bits_f32x16(v + fill_f32x16(ROUND))
    return (bits & fill_i32x16(0x7FFFFF)) | fill_i32x16(0x4B000000)


@inline
def nearest_int(v):
    """The nearest integers as i32; too large ones give what llama.cpp's nearest_int gives."""
    bits = bits_f32x16(v + fill_f32x16(ROUND))
    return (bits & fill_i32x16(0x7FFFFF)) - fill_i32x16(0x400000)


@inline
def nearest_between(v, low, high):
    """The nearest integers as f32, as nearest_int gives them, cut off at `low` and `high`."""
    large = fill_f32x16(ROUND)
    r = from_bits_f32x16(_rounded(v))
    return larger(smaller(r, high + large), low + large) - large


# ---- tiles: 16 x 16 from rows to lanes and back ------------------------------------------------
def _transpose(b: Builder, rows: list[Value]) -> list[Value]:
    """16 vectors of 16 lanes, rows for lanes: four times, interleave those that are 8 apart."""
    low = [n for k in range(8) for n in (k, 16 + k)]
    high = [n + 8 for n in low]
    for _ in range(4):
        pairs = [(rows[k], rows[k + 8]) for k in range(8)]
        rows = [lanes(b, x, y, order) for x, y in pairs for order in (low, high)]
    return rows


def _addresses(b: Builder, at: Value, offset: Value) -> list[Value]:
    places = [b.add(at, I64(8 * k)) for k in range(16)]
    return [b.add(b.load(pointer(b, p), align=1, typ=I64), offset) for p in places]


def _gather_code(b: Builder, sig: Any, args: Any) -> Value:
    at, offset, out = args
    kind = vec("f32", 16).llvm
    rows = [b.load(pointer(b, p), align=1, typ=kind) for p in _addresses(b, at, offset)]
    for k, row in enumerate(_transpose(b, rows)):
        b.store(row, pointer(b, b.add(out, I64(64 * k))), align=1)
    return I64(0)


def _scatter_code(b: Builder, sig: Any, args: Any) -> Value:
    rows, at, offset = args
    kind = vec("i8", 16).llvm
    places = [pointer(b, b.add(rows, I64(16 * k))) for k in range(16)]
    columns = _transpose(b, [b.load(p, align=1, typ=kind) for p in places])
    for place, column in zip(_addresses(b, at, offset), columns, strict=True):
        b.store(column, pointer(b, place), align=1)
    return I64(0)


def _tile(name: str, code: Any) -> Any:
    return make(name, 3, lambda a: types.int64(address, address, address), code)


# gather_tile(at, offset, out): 16 floats from each of the 16 addresses at `at`, plus the offset;
# lane k of the 16 vectors at `out` is the k-th's.
gather_tile = _tile("gather_tile", _gather_code)
# scatter_tile(rows, at, offset): the reverse for bytes: the vectors of 16 bytes at `rows`.
scatter_tile = _tile("scatter_tile", _scatter_code)
