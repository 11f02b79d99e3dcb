"""Sixteen super-blocks of 256 values side by side: the lanes of all that K quants are made of.

The super-blocks of all rows lie one after another, so any sixteen will do; where the last ones are
fewer, the last one of all is computed several times. In scratch memory a value of each super-block
is a vector: element e of the sixteen lies at X + 64 * e.
"""

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    fill_f32x16,
    inline,
    load_f32x16,
    load_i8x16,
    narrow_f32x16,
    narrow_i32x16,
    shift_left,
    shift_right,
    store_f32x16,
    store_i8x16,
    store_i64,
    to_i32x16,
    widen_f16x16,
    zero_f32x16,
)
from .words import (
    any_lane,
    equal,
    fill_i8x16,
    gather_tile,
    halves_f16x16,
    nearest_between,
    scatter_tile,
    select,
    sqrt_f32x16,
    u16_to_i32x16,
)

SIZE = 256  # values of a super-block
LANES = 16  # super-blocks at once

# Offsets in scratch memory, in bytes.
X = 0  # the values: 256 vectors
IMPORTANCE = X + 64 * SIZE  # of each value: 256 vectors
WEIGHTS = IMPORTANCE + 64 * SIZE  # of a group's values: 32 vectors
SPARE = WEIGHTS + 64 * 32  # of a group as well
SCALES = SPARE + 64 * 32  # a vector a group, like all up to LEVELS
MINS = SCALES + 64 * 16
SUMS = MINS + 64 * 16  # of weights
SCALE_LEVELS = SUMS + 64 * 16  # i32
MIN_LEVELS = SCALE_LEVELS + 64 * 16
LEVELS = MIN_LEVELS + 64 * 16  # a byte a value: 256 vectors of bytes
ROWS = LEVELS + 16 * SIZE  # the blocks: a vector of bytes for each of their bytes
ADDRESSES = ROWS + 16 * SIZE  # of the sixteen values, importances, blocks
SCRATCH_BYTES = ADDRESSES + 3 * 128
assert SCRATCH_BYTES <= 1 << 16

_higher = shift_right("i32", 16, 8)
shift_left_4, shift_left_2 = shift_left("i8", 16, 4), shift_left("i8", 16, 2)


@inline
def take(values, importance, out, first, count, columns, block_bytes, scratch):
    """Bring sixteen super-blocks from `first` on, of `count`, and their importances, into lanes."""
    a = scratch + ADDRESSES
    for k in range(LANES):
        n = min(first + k, count - 1)
        store_i64(a + 8 * k, values + n * SIZE * 4)
        store_i64(a + 128 + 8 * k, importance + n % (columns // SIZE) * SIZE * 4)
        store_i64(a + 256 + 8 * k, out + n * block_bytes)
    for i in range(0, SIZE, 16):
        gather_tile(a, 4 * i, scratch + X + 64 * i)
    if importance != 0:
        for i in range(0, SIZE, 16):
            gather_tile(a + 128, 4 * i, scratch + IMPORTANCE + 64 * i)


@inline
def put(block_bytes, scratch):
    """Write the sixteen blocks from their rows of bytes."""
    rows, out = scratch + ROWS, scratch + ADDRESSES + 256
    for i in range(0, block_bytes - 15, 16):
        scatter_tile(rows + 16 * i, out, i)
    if block_bytes % 16 != 0:
        scatter_tile(rows + 16 * (block_bytes - 16), out, block_bytes - 16)


@inline
def put_half(row, v):
    """The two bytes of float16 values into rows; returns what they are as float32."""
    half = narrow_f32x16(v)
    bits = u16_to_i32x16(halves_f16x16(half))
    store_i8x16(row, narrow_i32x16(bits))
    store_i8x16(row + 16, narrow_i32x16(_higher(bits)))
    return widen_f16x16(half)


@inline
def sum_of_squares(x, count):
    """Of `count` vectors at x, one after another."""
    acc = zero_f32x16()
    for i in range(count):
        v = load_f32x16(x + 64 * i)
        acc = acc + v * v
    return acc


@inline
def weigh(group, count, variance, scratch):
    """importance * sqrt(variance + x^2) of a group's values to WEIGHTS; returns the sum."""
    at = 64 * group * count
    x, importance, weights = scratch + X + at, scratch + IMPORTANCE + at, scratch + WEIGHTS
    acc = zero_f32x16()
    for i in range(count):
        v = load_f32x16(x + 64 * i)
        w = load_f32x16(importance + 64 * i) * sqrt_f32x16(variance + v * v)
        store_f32x16(weights + 64 * i, w)
        acc = acc + w
    return acc


@inline
def weigh_by_size(group, count, scratch):
    """sqrt(mean of x^2) + |x| of a group's values to WEIGHTS."""
    x, weights = scratch + X + 64 * group * count, scratch + WEIGHTS
    mean = sqrt_f32x16(sum_of_squares(x, count) / fill_f32x16(np.float32(count)))
    for i in range(count):
        store_f32x16(weights + 64 * i, mean + abs_f32x16(load_f32x16(x + 64 * i)))


@inline
def put_levels(group, count, scale, shift, low, high, scratch):
    """The bytes nearest((x + shift) / scale) - low of a group to LEVELS.

    Where the scale is 0, those stay that the search has found.
    """
    x, levels = scratch + X + 64 * group * count, scratch + LEVELS + 16 * group * count
    none = equal(scale, zero_f32x16())
    least, most = fill_f32x16(low), fill_f32x16(high)
    keep = any_lane(none)
    for i in range(count):
        v = (load_f32x16(x + 64 * i) + shift) / scale
        level = narrow_i32x16(to_i32x16(nearest_between(v, least, most) - least))
        if keep != 0:
            level = select(none, load_i8x16(levels + 16 * i), level)
        store_i8x16(levels + 16 * i, level)


@inline
def pack_crumbs(levels, rows):
    """The lower two bits of 128 values at a time into four places of 32 bytes."""
    three = fill_i8x16(3)
    for half in range(2):
        at, row = levels + 16 * 128 * half, rows + 16 * 32 * half
        for i in range(0, 16 * 32, 16):
            a, b = load_i8x16(at + i), load_i8x16(at + 16 * 32 + i)
            c, d = load_i8x16(at + 16 * 64 + i), load_i8x16(at + 16 * 96 + i)
            upper = (c & three) | shift_left_2(d & three)
            upper = (b & three) | shift_left_2(upper)
            store_i8x16(row + i, (a & three) | shift_left_2(upper))
