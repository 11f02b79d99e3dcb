"""Q3_K's search without importance: one rounding, then each level in turn, up to five times.

Algorithm: llama.cpp, ggml-quants.c. A level waits for the division of the one before: SIDE groups
go side by side, so that something is to be done meanwhile.
"""

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    fill_f32x16,
    inline,
    load_f32x16,
    narrow_i32x16,
    store_f32x16,
    store_i8x16,
    to_i32x16,
    zero_f32x16,
)
from .scale_search import TINY
from .words import any_lane, differs, greater, less, nearest_between, select

SIDE = 4


@inline
def _start(x, fitted, count, top):
    """Levels of a group by its largest value, to `fitted`: sums of w * x * level and w * level^2.

    The weight w of a value is its square.
    """
    size = peak = sum_xl = sum_l2 = zero_f32x16()
    for i in range(count):
        v = load_f32x16(x + 64 * i)
        above = greater(abs_f32x16(v), size)
        size, peak = select(above, abs_f32x16(v), size), select(above, v, peak)
    low, high = fill_f32x16(-top), fill_f32x16(top - np.float32(1))
    factor = low / peak
    for i in range(count):
        v = load_f32x16(x + 64 * i)
        level = nearest_between(factor * v, low, high)
        store_f32x16(fitted + 64 * i, level)
        sum_xl = sum_xl + v * v * v * level
        sum_l2 = sum_l2 + v * v * level * level
    return sum_xl, sum_l2, less(size, fill_f32x16(TINY))


@inline
def _improve(x, fitted, sum_xl, sum_l2, top):
    """One value's level for the scale that the others ask for, if the fit gets better by it."""
    zero, low, high = zero_f32x16(), fill_f32x16(-top), fill_f32x16(top - np.float32(1))
    v, old = load_f32x16(x), load_f32x16(fitted)
    w = v * v
    rest_xl, rest_l2 = sum_xl - w * v * old, sum_l2 - w * old * old
    new = nearest_between(v * rest_l2 / rest_xl, low, high)
    new_xl, new_l2 = rest_xl + w * v * new, rest_l2 + w * new * new
    better = greater(rest_xl, zero) & differs(new, old) & greater(new_l2, zero)
    better = better & greater(new_xl * new_xl * sum_l2, sum_xl * sum_xl * new_l2)
    store_f32x16(fitted, select(better, new, old))
    return select(better, new_xl, sum_xl), select(better, new_l2, sum_l2), better


@inline
def _finish(fitted, levels, sum_xl, sum_l2, none, count, top):
    """The scale of a group; its levels as bytes from 0 on, all 0 where all is tiny."""
    zero, low = zero_f32x16(), fill_f32x16(-top)
    for i in range(count):
        level = select(none, zero, load_f32x16(fitted + 64 * i) - low)
        store_i8x16(levels + 16 * i, narrow_i32x16(to_i32x16(level)))
    return select(none, zero, select(greater(sum_l2, zero), sum_xl / sum_l2, zero))


@inline
def fit_each_level(x, fitted, levels, count, top):
    """x = scale * level, level -top..top-1, for SIDE groups of `count`; returns their scales.

    `fitted`: space for SIDE * count vectors. `levels` (bytes) are level + top.
    """
    fx, fl = 64 * count, 16 * count
    xl_a, l2_a, none_a = _start(x, fitted, count, top)
    xl_b, l2_b, none_b = _start(x + fx, fitted + fx, count, top)
    xl_c, l2_c, none_c = _start(x + 2 * fx, fitted + 2 * fx, count, top)
    xl_d, l2_d, none_d = _start(x + 3 * fx, fitted + 3 * fx, count, top)
    for _ in range(5):
        changed = 0
        for i in range(0, fx, 64):
            y, f = x + i, fitted + i
            xl_a, l2_a, a = _improve(y, f, xl_a, l2_a, top)
            xl_b, l2_b, b = _improve(y + fx, f + fx, xl_b, l2_b, top)
            xl_c, l2_c, c = _improve(y + 2 * fx, f + 2 * fx, xl_c, l2_c, top)
            xl_d, l2_d, d = _improve(y + 3 * fx, f + 3 * fx, xl_d, l2_d, top)
            changed |= any_lane(a | b | c | d)
        if changed == 0:
            break
    return (
        _finish(fitted, levels, xl_a, l2_a, none_a, count, top),
        _finish(fitted + fx, levels + fl, xl_b, l2_b, none_b, count, top),
        _finish(fitted + 2 * fx, levels + 2 * fl, xl_c, l2_c, none_c, count, top),
        _finish(fitted + 3 * fx, levels + 3 * fl, xl_d, l2_d, none_d, count, top),
    )
