"""Q3_K: groups of 16 with a signed scale of 6 bits each. Algorithm: llama.cpp, ggml-quants.c."""

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    fill_f32x16,
    inline,
    kernel,
    load_f32x16,
    load_i8x16,
    narrow_i32x16,
    shift_left,
    shift_right,
    store_f32x16,
    store_i8x16,
    to_f32x16,
    zero_f32x16,
)
from .level_search import SIDE, fit_each_level
from .scale_search import fit_scale, put_fitted
from .super_blocks import (
    LANES,
    LEVELS,
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
    shift_left_2,
    shift_left_4,
    sum_of_squares,
    take,
    weigh,
)
from .words import (
    equal,
    fill_i8x16,
    fill_i32x16,
    greater,
    i8_to_i32x16,
    larger,
    nearest_int,
    select,
    smaller,
    zero_i8x16,
)

BLOCK_BYTES = 110
GROUP, GROUPS = 16, 16
_TOP, _BIAS = np.float32(4), np.float32(32)  # of levels, of the groups' scales
# 32 bytes of the third bits, 64 of the lower two, 12 of scales, a float16.
_QUANTS_ROW, _SCALES_ROW, _HALF_ROW = 32, 96, 108
_third, _next, _last = (shift_right("i8", 16, 2), shift_right("i8", 16, 1), shift_left("i8", 16, 7))
_upper = shift_right("i8", 16, 4)


@inline
def _fit(scratch):
    """Scales of the groups to SCALES."""
    for j in range(0, GROUPS, SIDE):
        x, levels = scratch + X + 64 * GROUP * j, scratch + LEVELS + 16 * GROUP * j
        scales = fit_each_level(x, scratch + WEIGHTS, levels, GROUP, _TOP)
        for k in range(SIDE):
            store_f32x16(scratch + SCALES + 64 * (j + k), scales[k])


@inline
def _fit_weighted(scratch):
    """Scales of the groups to SCALES, by the importance."""
    total = sum_of_squares(scratch + X, SIZE)
    variance = fill_f32x16(np.float32(2)) * total / fill_f32x16(np.float32(SIZE))
    for j in range(GROUPS):
        x, levels = scratch + X + 64 * GROUP * j, scratch + LEVELS + 16 * GROUP * j
        store_f32x16(scratch + SUMS + 64 * j, weigh(j, GROUP, variance, scratch))
        scale, factor = fit_scale(x, scratch + WEIGHTS, scratch + SPARE, GROUP, _TOP, True)
        put_fitted(x, levels, GROUP, factor, _TOP)
        store_f32x16(scratch + SCALES + 64 * j, scale)


@inline
def _scale_levels(scratch):
    """The groups' scales as bytes 0..63, 32 times too many; returns the scale of these."""
    scales, levels, zero = scratch + SCALES, scratch + SCALE_LEVELS, zero_f32x16()
    size = peak = zero
    for j in range(GROUPS):
        scale = load_f32x16(scales + 64 * j)
        above = greater(abs_f32x16(scale), size)
        size, peak = select(above, abs_f32x16(scale), size), select(above, scale, peak)
    none, factor = equal(peak, zero), fill_f32x16(-_BIAS) / peak
    low, high = fill_i32x16(-32), fill_i32x16(31)
    for j in range(GROUPS):
        level = narrow_i32x16(nearest_int(factor * load_f32x16(scales + 64 * j)))
        level = larger(low, smaller(high, i8_to_i32x16(level))) - low
        store_i8x16(levels + 16 * j, select(none, zero_i8x16(), narrow_i32x16(level)))
    return select(none, zero, fill_f32x16(np.float32(1)) / factor)


@inline
def _weighted_scale_levels(scratch):
    """The same by the groups' weights."""
    scales, levels = scratch + SCALES, scratch + SCALE_LEVELS
    scale, factor = fit_scale(scales, scratch + SUMS, scratch + SPARE, GROUPS, _BIAS, False)
    put_fitted(scales, levels, GROUPS, factor, _BIAS)
    return scale


@inline
def _put_groups(scale, scratch):
    """The super-block's scale, the groups' bits, and the levels by what these say."""
    levels, rows = scratch + SCALE_LEVELS, scratch + ROWS + 16 * _SCALES_ROW
    d = put_half(scratch + ROWS + 16 * _HALF_ROW, scale)
    four = fill_i8x16(15)
    for j in range(0, 16 * 8, 16):
        low, high = load_i8x16(levels + j) & four, load_i8x16(levels + 16 * 8 + j)
        store_i8x16(rows + j, low | shift_left_4(high))
    for j in range(0, 16 * 4, 16):
        bits = zero_i8x16()
        for k in range(3, -1, -1):
            bits = shift_left_2(bits) | _upper(load_i8x16(levels + 16 * 4 * k + j))
        store_i8x16(rows + 16 * 8 + j, bits)
    for j in range(GROUPS):
        level = i8_to_i32x16(load_i8x16(levels + 16 * j)) - fill_i32x16(32)
        group_scale = d * to_f32x16(level)
        least, most = -_TOP, _TOP - np.float32(1)
        put_levels(j, GROUP, group_scale, zero_f32x16(), least, most, scratch)


@inline
def _pack_thirds(scratch):
    """The third bits, a bit for 32 values in 32 bytes."""
    for i in range(0, 16 * 32, 16):
        bits = zero_i8x16()
        for part in range(8):
            level = load_i8x16(scratch + LEVELS + 16 * 32 * part + i)
            bits = _next(bits) | _last(_third(level))
        store_i8x16(scratch + ROWS + i, bits)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """float32 rows at `values` to blocks at `out`, by the `importance` of the columns (or 0)."""
    count = num_rows * (columns // SIZE)
    for first in range(0, count, LANES):
        take(values, importance, out, first, count, columns, BLOCK_BYTES, scratch)
        if importance != 0:
            _fit_weighted(scratch)
            scale = _weighted_scale_levels(scratch)
        else:
            _fit(scratch)
            scale = _scale_levels(scratch)
        _put_groups(scale, scratch)
        _pack_thirds(scratch)
        pack_crumbs(scratch + LEVELS, scratch + ROWS + 16 * _QUANTS_ROW)
        put(BLOCK_BYTES, scratch)
    return 0
