"""Q6_K: groups of 16 with a signed scale of 8 bits each. Algorithm: llama.cpp, ggml-quants.c."""

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    fill_f32x16,
    inline,
    kernel,
    load_f32x16,
    load_i8x16,
    narrow_i32x16,
    shift_right,
    store_f32x16,
    store_i8x16,
    to_f32x16,
    zero_f32x16,
)
from .scale_search import TINY, fit_scale, put_fitted
from .super_blocks import (
    IMPORTANCE,
    LANES,
    LEVELS,
    ROWS,
    SCALES,
    SIZE,
    SPARE,
    WEIGHTS,
    X,
    put,
    put_half,
    put_levels,
    shift_left_2,
    shift_left_4,
    take,
)
from .words import (
    fill_i8x16,
    fill_i32x16,
    greater,
    i8_to_i32x16,
    less,
    nearest_int,
    select,
    smaller,
    zero_i8x16,
)

BLOCK_BYTES = 210
GROUP, GROUPS = 16, 16
_TOP = np.float32(32)
_SCALES_ROW, _HALF_ROW = 192, 208  # after 128 bytes of lower bits and 64 of upper ones
_upper = shift_right("i8", 16, 4)


@inline
def _fit(importance, scratch):
    """The groups' scales to SCALES; returns the largest by its size."""
    size = peak = zero_f32x16()
    for j in range(GROUPS):
        x, levels = scratch + X + 64 * GROUP * j, scratch + LEVELS + 16 * GROUP * j
        weights = scratch + IMPORTANCE + 64 * GROUP * j
        if importance == 0:
            weights = scratch + WEIGHTS
            for i in range(GROUP):
                v = load_f32x16(x + 64 * i)
                store_f32x16(weights + 64 * i, v * v)
        scale, factor = fit_scale(x, weights, scratch + SPARE, GROUP, _TOP, True)
        put_fitted(x, levels, GROUP, factor, _TOP)
        store_f32x16(scratch + SCALES + 64 * j, scale)
        above = greater(abs_f32x16(scale), size)
        size, peak = select(above, abs_f32x16(scale), size), select(above, scale, peak)
    return peak


@inline
def _put_groups(peak, scratch):
    """Scales and levels by the largest scale; blocks of nothing but tiny ones are all zeros."""
    none, zero = less(abs_f32x16(peak), fill_f32x16(TINY)), zero_f32x16()
    factor = fill_f32x16(np.float32(-128)) / peak
    scale = fill_f32x16(np.float32(1)) / factor
    d = put_half(scratch + ROWS + 16 * _HALF_ROW, select(none, zero, scale))
    for j in range(GROUPS):
        level = nearest_int(factor * load_f32x16(scratch + SCALES + 64 * j))
        byte = narrow_i32x16(smaller(fill_i32x16(127), level))
        byte = select(none, zero_i8x16(), byte)
        store_i8x16(scratch + ROWS + 16 * (_SCALES_ROW + j), byte)
        scale = d * to_f32x16(i8_to_i32x16(byte))
        put_levels(j, GROUP, scale, zero, -_TOP, _TOP - np.float32(1), scratch)
        levels = scratch + LEVELS + 16 * GROUP * j
        for i in range(0, 16 * GROUP, 16):
            store_i8x16(levels + i, select(none, zero_i8x16(), load_i8x16(levels + i)))


@inline
def _pack(scratch):
    """Of 128 values each: 64 bytes of two times 4 lower bits, 32 of four times the upper two."""
    four = fill_i8x16(15)
    for half in range(2):
        levels = scratch + LEVELS + 16 * 128 * half
        low, high = scratch + ROWS + 16 * 64 * half, scratch + ROWS + 16 * (128 + 32 * half)
        for i in range(0, 16 * 32, 16):
            a, b = load_i8x16(levels + i), load_i8x16(levels + 16 * 32 + i)
            c, d = load_i8x16(levels + 16 * 64 + i), load_i8x16(levels + 16 * 96 + i)
            store_i8x16(low + i, (a & four) | shift_left_4(c))
            store_i8x16(low + 16 * 32 + i, (b & four) | shift_left_4(d))
            upper = _upper(c) | shift_left_2(_upper(d))
            upper = _upper(a) | shift_left_2(_upper(b) | shift_left_2(upper))
            store_i8x16(high + i, upper)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """float32 rows at `values` to blocks at `out`, by the `importance` of the columns (or 0)."""
    count = num_rows * (columns // SIZE)
    for first in range(0, count, LANES):
        take(values, importance, out, first, count, columns, BLOCK_BYTES, scratch)
        _put_groups(_fit(importance, scratch), scratch)
        _pack(scratch)
        put(BLOCK_BYTES, scratch)
    return 0
