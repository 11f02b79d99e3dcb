"""What Q4_K and Q5_K share: eight groups of 32 with scales and mins of 6 bits in twelve bytes."""

import numpy as np

from ..cpu.simd import (
    fill_f32x16,
    inline,
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
    put_half,
    put_levels,
    sum_of_squares,
    weigh,
    weigh_by_size,
)
from .words import (
    fill_i32x16,
    greater,
    larger,
    load_i32x16,
    nearest_int,
    select,
    smaller,
    store_i32x16,
)

GROUP, GROUPS = 32, 8
HEADER = 16  # bytes: scale and min of the super-block as float16, then those of the groups
_LARGEST = np.float32(63)
_up_4, _up_6 = shift_left("i32", 16, 4), shift_left("i32", 16, 6)
_down_4, _down_6 = shift_right("i32", 16, 4), shift_right("i32", 16, 6)


@inline
def fit(top, start, num_steps, importance, scratch):
    """Scales and mins, and their 6-bit levels; the super-block's own are returned, to be rounded.

    start, num_steps: of the search without importance.
    """
    scales, mins, sums = scratch + SCALES, scratch + MINS, scratch + SUMS
    weights, spare = scratch + WEIGHTS, scratch + SPARE
    variance = zero_f32x16()
    if importance != 0:
        total = sum_of_squares(scratch + X, SIZE)
        variance = fill_f32x16(np.float32(2)) * total / fill_f32x16(np.float32(SIZE))
    for j in range(GROUPS):
        x, levels = scratch + X + 64 * GROUP * j, scratch + LEVELS + 16 * GROUP * j
        if importance != 0:
            store_f32x16(sums + 64 * j, weigh(j, GROUP, variance, scratch))
            scale, low = fit_scale_and_min(
                x,
                weights,
                spare,
                levels,
                GROUP,
                top,
                np.float32(-0.9),
                np.float32(0.05),
                37,
                True,
                False,
            )
        else:
            weigh_by_size(j, GROUP, scratch)
            scale, low = fit_scale_and_min(
                x,
                weights,
                spare,
                levels,
                GROUP,
                top,
                start,
                np.float32(0.1),
                num_steps,
                False,
                False,
            )
        store_f32x16(scales + 64 * j, scale)
        store_f32x16(mins + 64 * j, low)
    if importance != 0:
        scale = fit_positive(scales, sums, scratch + SCALE_LEVELS, GROUPS, _LARGEST)
        low = fit_positive(mins, sums, scratch + MIN_LEVELS, GROUPS, _LARGEST)
        return scale, low
    return (
        _levels_of(scales, scratch + SCALE_LEVELS),
        _levels_of(mins, scratch + MIN_LEVELS),
    )


@inline
def _levels_of(values, levels):
    """Eight values as 0..63 times what is returned, their largest / 63."""
    zero, top, largest = zero_f32x16(), fill_f32x16(_LARGEST), zero_f32x16()
    for j in range(GROUPS):
        largest = larger(load_f32x16(values + 64 * j), largest)
    factor = select(greater(largest, zero), top / largest, zero)
    for j in range(GROUPS):
        level = nearest_int(factor * load_f32x16(values + 64 * j)) & fill_i32x16(255)
        store_i32x16(levels + 64 * j, smaller(fill_i32x16(63), level))
    return largest / top


@inline
def cut_levels(scratch):
    """Levels of at most 63."""
    for at in range(SCALE_LEVELS, SCALE_LEVELS + 64 * GROUPS, 64):
        for k in range(0, 2 * (MIN_LEVELS - SCALE_LEVELS), MIN_LEVELS - SCALE_LEVELS):
            level = load_i32x16(scratch + at + k)
            store_i32x16(scratch + at + k, smaller(fill_i32x16(63), level))


@inline
def put_scales(scale, low, top, scratch):
    """The header, and each group's levels by what it says.

    Four groups' scales have a byte each and four groups' mins; above the 6 bits lie the upper two
    of the other four groups, whose lower four are in the last bytes.
    """
    rows, byte, six = scratch + ROWS, fill_i32x16(255), fill_i32x16(63)
    four = fill_i32x16(15)
    d, m = put_half(rows, scale), put_half(rows + 32, low)
    for j in range(4):
        s, t = scratch + SCALE_LEVELS + 64 * j, scratch + MIN_LEVELS + 64 * j
        s_low, s_high = load_i32x16(s), load_i32x16(s + 64 * 4)
        t_low, t_high = load_i32x16(t), load_i32x16(t + 64 * 4)
        s_byte = (s_low | _up_6(_down_4(s_high))) & byte
        t_byte = (t_low | _up_6(_down_4(t_high))) & byte
        rest = (s_high & four) | _up_4(t_high & four)
        store_i8x16(rows + 16 * (4 + j), narrow_i32x16(s_byte))
        store_i8x16(rows + 16 * (8 + j), narrow_i32x16(t_byte))
        store_i8x16(rows + 16 * (12 + j), narrow_i32x16(rest))
        s_high = (rest & four) | _up_4(_down_6(s_byte))
        t_high = _down_4(rest) | _up_4(_down_6(t_byte))
        zero = np.float32(0)
        low_scale, low_shift = d * to_f32x16(s_byte & six), m * to_f32x16(t_byte & six)
        put_levels(j, GROUP, low_scale, low_shift, zero, top, scratch)
        high_scale, high_shift = d * to_f32x16(s_high), m * to_f32x16(t_high)
        put_levels(j + 4, GROUP, high_scale, high_shift, zero, top, scratch)
