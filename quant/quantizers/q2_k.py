"""Q2_K: groups of 16 with a scale and a min of 4 bits each. Algorithm: llama.cpp, ggml-quants.c."""

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    fill_f32x16,
    inline,
    kernel,
    load_f32x16,
    narrow_i32x16,
    shift_left,
    shift_right,
    store_f32x16,
    store_i8x16,
    to_f32x16,
    zero_f32x16,
)
from .scale_search import fit_positive, fit_scale_and_min
from .super_blocks import (
    LANES,
    LEVELS,
    MIN_LEVELS,
    MINS,
    ROWS,
    SCALE_LEVELS,
    SCALES,
    SIZE,
    SPARE,
    SUMS,
    WEIGHTS,
    X,
    pack_crumbs,
    put,
    put_half,
    put_levels,
    sum_of_squares,
    take,
    weigh,
)
from .words import (
    fill_i32x16,
    greater,
    larger,
    load_i32x16,
    nearest_int,
    select,
    store_i32x16,
)

BLOCK_BYTES = 84
GROUP, GROUPS = 16, 16
_TOP, _LARGEST = np.float32(3), np.float32(15)
_QUANTS_ROW, _HALF_ROW = 16, 80  # after the bytes of the groups' scales and mins
_up, _down = shift_left("i32", 16, 4), shift_right("i32", 16, 4)


@inline
def _fit(importance, scratch):
    """Scales and mins of the groups, to SCALES and MINS."""
    variance = zero_f32x16()
    weights, spare = scratch + WEIGHTS, scratch + SPARE
    if importance != 0:
        variance = sum_of_squares(scratch + X, SIZE) / fill_f32x16(np.float32(SIZE))
    for j in range(GROUPS):
        x, levels = scratch + X + 64 * GROUP * j, scratch + LEVELS + 16 * GROUP * j
        if importance != 0:
            start, step = np.float32(-0.9), np.float32(0.05)
            store_f32x16(scratch + SUMS + 64 * j, weigh(j, GROUP, variance, scratch))
            scale, low = fit_scale_and_min(
                x, weights, spare, levels, GROUP, _TOP, start, step, 37, True, False
            )
        else:
            start, step = np.float32(-0.5), np.float32(0.1)
            for i in range(0, 64 * GROUP, 64):
                store_f32x16(weights + i, abs_f32x16(load_f32x16(x + i)))
            scale, low = fit_scale_and_min(
                x, weights, spare, levels, GROUP, _TOP, start, step, 16, False, True
            )
        store_f32x16(scratch + SCALES + 64 * j, scale)
        store_f32x16(scratch + MINS + 64 * j, low)


@inline
def _levels_of(values, levels):
    """Sixteen values as 0..15 times what is returned, their largest / 15."""
    zero, top, largest = zero_f32x16(), fill_f32x16(_LARGEST), zero_f32x16()
    for j in range(GROUPS):
        largest = larger(load_f32x16(values + 64 * j), largest)
    some, factor = greater(largest, zero), top / largest
    for j in range(GROUPS):
        level = nearest_int(factor * load_f32x16(values + 64 * j))
        store_i32x16(levels + 64 * j, select(some, level, fill_i32x16(0)))
    return select(some, largest / top, zero)


@inline
def _put_groups(importance, scratch):
    """The super-block's scale and min, the groups' bytes, and the levels by what these say."""
    scales, mins, sums = scratch + SCALES, scratch + MINS, scratch + SUMS
    scale_levels, min_levels = scratch + SCALE_LEVELS, scratch + MIN_LEVELS
    if importance != 0:
        scale = fit_positive(scales, sums, scale_levels, GROUPS, _LARGEST)
        low = fit_positive(mins, sums, min_levels, GROUPS, _LARGEST)
    else:
        scale, low = _levels_of(scales, scale_levels), _levels_of(mins, min_levels)
    half = scratch + ROWS + 16 * _HALF_ROW
    d, m = put_half(half, scale), put_half(half + 32, low)
    for j in range(GROUPS):
        byte = load_i32x16(scale_levels + 64 * j) | _up(load_i32x16(min_levels + 64 * j))
        byte = byte & fill_i32x16(255)
        store_i8x16(scratch + ROWS + 16 * j, narrow_i32x16(byte))
        scale = d * to_f32x16(byte & fill_i32x16(15))
        put_levels(j, GROUP, scale, m * to_f32x16(_down(byte)), np.float32(0), _TOP, scratch)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """float32 rows at `values` to blocks at `out`, by the `importance` of the columns (or 0)."""
    count = num_rows * (columns // SIZE)
    for first in range(0, count, LANES):
        take(values, importance, out, first, count, columns, BLOCK_BYTES, scratch)
        _fit(importance, scratch)
        _put_groups(importance, scratch)
        pack_crumbs(scratch + LEVELS, scratch + ROWS + 16 * _QUANTS_ROW)
        put(BLOCK_BYTES, scratch)
    return 0
