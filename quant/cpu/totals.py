"""Sums over the lanes of sixteen vectors at once: a third of the work of one after the other.

A row's dot product ends as a vector whose lanes are to be added. The vectors of sixteen rows wait
on the stack; pairs of them are then added crosswise, so that each step halves their number.
"""

from typing import Any

from llvmlite import ir
from numba.core import types

from .blocks32 import CpuFormat
from .simd import inline, load_f32x16, make, shuffle, sum_f32x16, vec
from .vector import I8, I32, I64, Builder, Value

ROWS = 16  # vectors at once, each of as many lanes


def stack(num_bytes: int) -> Any:
    """stack() -> address of `num_bytes` bytes on the kernel's stack, one buffer a place of a call.

    They are left as they are found.
    """

    def code(b: Builder, sig: Any, args: Any) -> Value:
        with b.goto_entry_block():
            buffer = b.alloca(ir.ArrayType(I8, num_bytes))
            buffer.align = 64
            return b.ptrtoint(buffer, I64)

    return make("stack", 0, lambda a: types.int64(), code)


def _stay_apart_code(b: Builder, sig: Any, args: Any) -> Value:
    b.function.attributes.add("noinline")
    return I64(0)


# Called in a function, keeps that from being inlined into its callers.
stay_apart = make("stay_apart", 0, lambda a: types.int64(), _stay_apart_code)


def summed(dot_lanes: Any) -> Any:
    """CpuFormat's dot_row from its dot_lanes."""

    @inline
    def dot_row(w, groups, q, scale, sums):
        return sum_f32x16(dot_lanes(w, groups, q, scale, sums))

    return dot_row


def _first_code(b: Builder, sig: Any, args: Any) -> Value:
    return b.insert_element(ir.Constant(vec("f32", 16).llvm, None), args[0], I32(0))


_first = make("first", 1, lambda a: vec("f32", 16)(types.float32), _first_code)


def lanes_of(fmt: CpuFormat) -> Any:
    """A format's dot_lanes; where it has none, its dot_row in the first lane."""
    if fmt.dot_lanes is not None:
        return fmt.dot_lanes
    dot_row = fmt.dot_row

    @inline
    def dot_lanes(w, groups, q, scale, sums):
        return _first(dot_row(w, groups, q, scale, sums))

    return dot_lanes


def _crosswise(first: list[int], second: list[int]) -> Any:
    """(a, b) -> lanes `first` of both (b's numbered from 16) plus lanes `second` of both."""
    pick, other = shuffle("f32", 16, first), shuffle("f32", 16, second)

    @inline
    def add(a, b):
        return pick(a, b) + other(a, b)

    return add


def _lanes(pattern: list[int], step: int) -> list[int]:
    """A pattern of lanes within 4, or of quarters, for all four quarters."""
    return [4 * q + p % 4 + 16 * (p // 4) + step for q in range(4) for p in pattern]


# Within quarters (128 bits, which no CPU shuffles across for free): a0 b0 a1 b1 + a2 b2 a3 b3, then
# the pairs of two of these; afterwards whole quarters.
_add1 = _crosswise(_lanes([0, 4, 1, 5], 0), _lanes([0, 4, 1, 5], 2))
_add2 = _crosswise(
    [4 * q + p + 16 * v for q in range(4) for v in range(2) for p in (0, 1)],
    [4 * q + p + 16 * v for q in range(4) for v in range(2) for p in (2, 3)],
)
_quarters = [
    [4 * q + p + 16 * v for v in range(2) for q in qs for p in range(4)] for qs in ((0, 2), (1, 3))
]
_add3 = _crosswise(*_quarters)


@inline
def _four(at):
    """Four vectors -> lanes of each quarter: the quarters' sums of vector 0, 1, 2, 3."""
    a = _add1(load_f32x16(at), load_f32x16(at + 64))
    b = _add1(load_f32x16(at + 128), load_f32x16(at + 192))
    return _add2(a, b)


@inline
def totals(at):
    """<16 x f32>: the sum of the lanes of each of the sixteen vectors at an address."""
    # Quarters of the results: 0 + 1, 2 + 3 of the first four rows, then of the second four.
    low = _add3(_four(at), _four(at + 256))
    high = _add3(_four(at + 512), _four(at + 768))
    return _add3(low, high)
