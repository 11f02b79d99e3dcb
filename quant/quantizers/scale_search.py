"""The searches for the scales of a group, by the algorithms of llama.cpp (ggml-quants.c).

A group is `count` vectors; each lane is a group of its own. Whatever a search tries, it computes in
float32, in llama.cpp's order: the bits of the scales depend on it.
"""

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    fill_f32x16,
    inline,
    load_f32x16,
    narrow_i32x16,
    nearest_f32x16,
    store_f32x16,
    store_i8x16,
    to_f32x16,
    to_i32x16,
    zero_f32x16,
)
from .words import (
    all_lanes,
    any_lane,
    differs,
    equal,
    fill_i32x16,
    greater,
    larger,
    less,
    load_i32x16,
    nearest_between,
    nearest_int,
    select,
    smaller,
    store_i32x16,
)

TINY = np.float32(1e-15)  # groups of smaller values are zeros
_NONE = np.float32(np.inf)  # the factor of such a group


@inline
def _guarded(v, top):
    """The nearest integers of 0..top; NaN and what is below 0 become 0."""
    return nearest_f32x16(smaller(larger(v, zero_f32x16()), top))


@inline
def _error(diff, absolute):
    return abs_f32x16(diff) if absolute else diff * diff


@inline
def _tame(factor, first, last, flat):
    """Whether factor * d is in nearest_int's range for all d from first to last, but where flat."""
    limit = fill_f32x16(np.float32(4e6))
    inside = less(abs_f32x16(factor * first), limit) & less(abs_f32x16(factor * last), limit)
    return all_lanes(inside | flat)


@inline
def _sums(x, weights, spare, count, factor, low, top, guarded):
    """Levels of factor * (x - low) to `spare`; sums of w * level, w * level^2, w * level * x."""
    sum_l = sum_l2 = sum_xl = zero_f32x16()
    for i in range(count):
        v = load_f32x16(x + 64 * i)
        t = factor * (v - low)
        level = _guarded(t, top) if guarded else nearest_between(t, zero_f32x16(), top)
        store_f32x16(spare + 64 * i, level)
        wl = load_f32x16(weights + 64 * i) * level
        sum_l = sum_l + wl
        sum_l2 = sum_l2 + wl * level
        sum_xl = sum_xl + wl * v
    return sum_l, sum_l2, sum_xl


@inline
def fit_scale_and_min(
    x, weights, spare, levels, count, top, start, step, num_steps, guarded, absolute
):
    """x = scale * level - min, level 0..top: least squares for `num_steps` roundings in turn.

    The best by the weighted error (|d| if `absolute`, else d^2) stays. A step starts from the min
    found so far; if `guarded`, levels are cut off before they are rounded. Returns scale and min;
    `levels` (bytes) are those of the best step.
    """
    zero, most = zero_f32x16(), fill_f32x16(top)
    low = high = load_f32x16(x)
    sum_w = load_f32x16(weights)
    sum_x = sum_w * low
    for i in range(1, count):
        v, w = load_f32x16(x + 64 * i), load_f32x16(weights + 64 * i)
        low, high = smaller(v, low), larger(v, high)
        sum_w = sum_w + w
        sum_x = sum_x + w * v
    low = smaller(zero, low)
    least, flat = low, equal(high, low)
    factor = most / (high - low)
    scale = fill_f32x16(np.float32(1)) / factor
    error = zero
    for i in range(count):
        v = load_f32x16(x + 64 * i)
        d = scale * nearest_between(factor * (v - low), zero, most) + low - v
        error = error + load_f32x16(weights + 64 * i) * _error(d, absolute)
    best_factor, best_low = factor, low
    if guarded:  # the first rounding is not: infinity gives 0 there
        best_factor = select(less(factor, fill_f32x16(np.float32(np.inf))), factor, zero)
    for k in range(num_steps):
        factor = fill_f32x16(start + step * np.float32(k) + top) / (high - low)
        if guarded or _tame(factor, least - low, high - low, flat):
            sums = _sums(x, weights, spare, count, factor, low, most, True)
        else:
            sums = _sums(x, weights, spare, count, factor, low, most, False)
        sum_l, sum_l2, sum_xl = sums
        det = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / det
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / det
        above = greater(new_low, zero)
        new_low = select(above, zero, new_low)
        new_scale = select(above, sum_xl / sum_l2, new_scale)
        new_error = zero
        for i in range(count):
            d = new_scale * load_f32x16(spare + 64 * i) + new_low - load_f32x16(x + 64 * i)
            new_error = new_error + load_f32x16(weights + 64 * i) * _error(d, absolute)
        better = greater(det, zero) & less(new_error, error)
        error, scale = select(better, new_error, error), select(better, new_scale, scale)
        best_factor, best_low = select(better, factor, best_factor), select(better, low, best_low)
        low = select(better, new_low, low)
    best_factor = select(flat, zero, best_factor)
    for i in range(count):
        t = best_factor * (load_f32x16(x + 64 * i) - best_low)
        level = _guarded(t, most) if guarded else nearest_between(t, zero, most)
        store_i8x16(levels + 16 * i, narrow_i32x16(to_i32x16(level)))
    return select(flat, zero, scale), zero - select(flat, least, low)


@inline
def _weighted_fit(x, weights, products, count, factor, low, high, finite):
    """Sums of w * x * level and w * level^2 with the levels nearest(factor * x)."""
    sum_xl = sum_l2 = zero_f32x16()
    for i in range(count):
        t = factor * load_f32x16(x + 64 * i)
        if finite:  # then it is at most one beyond low or high
            level = larger(smaller(nearest_f32x16(t), high), low)
        else:
            level = nearest_between(t, low, high)
        sum_xl = sum_xl + load_f32x16(products + 64 * i) * level
        sum_l2 = sum_l2 + load_f32x16(weights + 64 * i) * level * level
    return sum_xl, sum_l2


@inline
def fit_scale(x, weights, spare, count, top, finite):
    """x = scale * level, level -top..top-1: the best of nineteen roundings by weighted squares.

    Returns the scale and the factor of its levels, nearest(factor * x): where all is tiny, 0 and
    infinity. finite: says that each x is.
    """
    zero = size = peak = zero_f32x16()
    for i in range(count):
        v = load_f32x16(x + 64 * i)
        above = greater(abs_f32x16(v), size)
        size, peak = select(above, abs_f32x16(v), size), select(above, v, peak)
        store_f32x16(spare + 64 * i, load_f32x16(weights + 64 * i) * v)
    none = less(size, fill_f32x16(TINY))
    low, high = fill_f32x16(-top), fill_f32x16(top - np.float32(1))
    best_factor = low / peak
    sum_xl, sum_l2 = _weighted_fit(x, weights, spare, count, best_factor, low, high, finite)
    scale = select(equal(sum_l2, zero), zero, sum_xl / sum_l2)
    best = scale * sum_xl
    for k in range(-9, 10):
        if k == 0:
            continue
        factor = fill_f32x16(-(top + np.float32(0.1) * np.float32(k))) / peak
        sum_xl, sum_l2 = _weighted_fit(x, weights, spare, count, factor, low, high, finite)
        better = greater(sum_l2, zero) & greater(sum_xl * sum_xl, best * sum_l2)
        new_scale = sum_xl / sum_l2
        scale, best = (
            select(better, new_scale, scale),
            select(better, new_scale * sum_xl, best),
        )
        best_factor = select(better, factor, best_factor)
    return select(none, zero, scale), select(none, fill_f32x16(_NONE), best_factor)


@inline
def put_fitted(x, levels, count, factor, top):
    """The bytes nearest(factor * x) + top of a group; 0 where all is tiny."""
    low, high = fill_f32x16(-top), fill_f32x16(top - np.float32(1))
    none = equal(factor, fill_f32x16(_NONE))
    for i in range(count):
        level = nearest_between(factor * load_f32x16(x + 64 * i), low, high) - low
        level = select(none, zero_f32x16(), level)
        store_i8x16(levels + 16 * i, narrow_i32x16(to_i32x16(level)))


@inline
def fit_positive(x, weights, levels, count, top):
    """x = scale * level, level 0..top, x >= 0: nine roundings, then each level in turn.

    Returns the scale. levels: i32, bytes as in llama.cpp (what is negative wraps around).
    """
    zero, one, byte = zero_f32x16(), fill_f32x16(np.float32(1)), fill_i32x16(255)
    most = to_i32x16(fill_f32x16(top))
    peak = zero
    for i in range(count):
        peak = larger(peak, load_f32x16(x + 64 * i))
    none = less(peak, fill_f32x16(TINY))
    factor = fill_f32x16(top) / peak
    scale, error = one / factor, zero
    for i in range(count):
        v = load_f32x16(x + 64 * i)
        d = v - scale * to_f32x16(nearest_int(factor * v) & byte)
        error = error + load_f32x16(weights + 64 * i) * d * d
    for k in range(-4, 5):
        if k == 0:
            continue
        new_factor = fill_f32x16(np.float32(0.1) * np.float32(k) + top) / peak
        new_scale, new_error = one / new_factor, zero
        for i in range(count):
            v = load_f32x16(x + 64 * i)
            d = v - new_scale * to_f32x16(smaller(most, nearest_int(new_factor * v)))
            new_error = new_error + load_f32x16(weights + 64 * i) * d * d
        better = less(new_error, error)
        error, factor = select(better, new_error, error), select(better, new_factor, factor)
    sum_xl = sum_l2 = zero
    for i in range(count):
        v, w = load_f32x16(x + 64 * i), load_f32x16(weights + 64 * i)
        level = smaller(most, nearest_int(factor * v))
        store_i32x16(levels + 64 * i, level & byte)
        f = to_f32x16(level)
        sum_xl = sum_xl + w * v * f
        sum_l2 = sum_l2 + w * f * f
    for _ in range(5):
        changed = 0
        for i in range(count):
            v, w = load_f32x16(x + 64 * i), load_f32x16(weights + 64 * i)
            old = load_i32x16(levels + 64 * i)
            f = to_f32x16(old)
            rest_xl, rest_l2 = sum_xl - w * v * f, sum_l2 - w * f * f
            better = greater(rest_xl, zero) & greater(rest_l2, zero)
            new = smaller(most, nearest_int(v * rest_l2 / rest_xl))
            better = better & differs(new, old)
            f = to_f32x16(new)
            new_xl, new_l2 = rest_xl + w * v * f, rest_l2 + w * f * f
            better = better & greater(new_xl * new_xl * sum_l2, sum_xl * sum_xl * new_l2)
            sum_xl, sum_l2 = select(better, new_xl, sum_xl), select(better, new_l2, sum_l2)
            store_i32x16(levels + 64 * i, select(better, new & byte, old))
            changed |= any_lane(better)
        if changed == 0:
            break
    for i in range(count):
        level = load_i32x16(levels + 64 * i)
        store_i32x16(levels + 64 * i, select(none, fill_i32x16(0), level))
    scale = select(greater(sum_l2, zero), sum_xl / sum_l2, zero)
    return select(none, zero, scale)
