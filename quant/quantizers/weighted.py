"""Q4_0, Q4_1, Q5_0 and Q5_1 with importance: the scale (and minimum) of the least weighted error.

llama.cpp's make_qx_quants and make_qkx3_quants, 16 blocks at a time, one a lane. A weight is the
column's importance times sqrt(mean square of the row + x * x).
"""

from typing import Any

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    convert,
    fill_f32x16,
    inline,
    load_f32x16,
    store_f32x16,
    store_i64,
    to_i32x16,
    zero,
    zero_f32x16,
)
from ..cpu.vector import vec
from .block_words import copy_i32
from .lanes import (
    ADDRESSES,
    LANE_SUMS,
    QUANTS,
    SUMS,
    WEIGHTED,
    WEIGHTS,
    X,
    gather_blocks,
    load_blocks,
    make_put,
    nearest,
    put_halves,
    sum_squares,
    weigh,
)
from .words import (
    equal,
    larger,
    less,
    load_i32x16,
    nearest_int,
    select,
    smaller,
    store_i32x16,
)

_ZERO = np.float32(0)
_ALL_ZERO = np.float32(1e-15)  # a block without a larger |x| has a scale of 0
_zero_i32x16 = zero("i32", 16)
_to_floats = convert("sitofp", vec("i32", 16), vec("f32", 16))


@inline
def _signed_quant(x, inverse_d, least, most):
    return smaller(larger(nearest(inverse_d * x), least), most)


@inline
def _fit_symmetric(scratch, bits):
    """The scale of each lane's block to HEADS, its quants to QUANTS."""
    offset = np.float32(1 << (bits - 1))
    least, most = fill_f32x16(-offset), fill_f32x16(offset - np.float32(1))
    zeros = zero_f32x16()
    size, top = zeros, zeros
    for i in range(0, 2048, 64):
        x = load_f32x16(scratch + X + i)
        store_f32x16(scratch + WEIGHTED + i, load_f32x16(scratch + WEIGHTS + i) * x)
        a = abs_f32x16(x)
        top = select(less(size, a), x, top)
        size = select(less(size, a), a, size)
    found = fill_f32x16(-offset) / top
    lx, l2 = zeros, zeros
    for i in range(0, 2048, 64):
        q = _signed_quant(load_f32x16(scratch + X + i), found, least, most)
        lx = lx + load_f32x16(scratch + WEIGHTED + i) * q
        l2 = l2 + load_f32x16(scratch + WEIGHTS + i) * q * q
    scale = select(equal(l2, zeros), zeros, lx / l2)
    best = scale * lx
    # Two of the 18 other scales that are tried at a time.
    for k in range(-9, 9, 2):
        one = k if k < 0 else k + 1
        two = k + 1 if k < -1 else k + 2
        by = fill_f32x16(-(offset + np.float32(0.1) * np.float32(one))) / top
        by2 = fill_f32x16(-(offset + np.float32(0.1) * np.float32(two))) / top
        lx, l2, lx2, l22 = zeros, zeros, zeros, zeros
        for i in range(0, 2048, 64):
            x, w = load_f32x16(scratch + X + i), load_f32x16(scratch + WEIGHTS + i)
            wx = load_f32x16(scratch + WEIGHTED + i)
            q = _signed_quant(x, by, least, most)
            lx = lx + wx * q
            l2 = l2 + w * q * q
            q = _signed_quant(x, by2, least, most)
            lx2 = lx2 + wx * q
            l22 = l22 + w * q * q
        for _ in range(2):
            # No gain where l2 is 0.
            gain = select(less(zeros, l2), lx * lx, best * l2)
            d, bar = lx / l2, best * l2
            scale = select(less(bar, gain), d, scale)
            best = select(less(bar, gain), d * lx, best)
            found = select(less(bar, gain), by, found)
            lx, l2, by = lx2, l22, by2
    limit = fill_f32x16(_ALL_ZERO)
    shift = fill_f32x16(offset)
    for i in range(0, 2048, 64):
        q = _signed_quant(load_f32x16(scratch + X + i), found, least, most) + shift
        q = select(less(size, limit), zeros, q)
        store_i32x16(scratch + QUANTS + i, to_i32x16(q))
    put_halves(scratch, select(less(size, limit), zeros, scale), zeros)


@inline
def _quant(x, inverse_d, m, most):
    """0 where (x - m) / d is not positive, or NaN."""
    return nearest(smaller(larger(inverse_d * (x - m), zero_f32x16()), most))


@inline
def _fit_affine(scratch, bits):
    """Scale and minimum of each lane's block to HEADS, its quants to QUANTS."""
    steps = np.float32((1 << bits) - 1)
    zeros, last = zero_f32x16(), fill_f32x16(steps)
    x = load_f32x16(scratch + X)
    m, top = x, x
    sum_w = load_f32x16(scratch + WEIGHTS)
    sum_x = sum_w * x
    for i in range(64, 2048, 64):
        x, w = load_f32x16(scratch + X + i), load_f32x16(scratch + WEIGHTS + i)
        m, top = smaller(x, m), larger(x, top)
        sum_w = sum_w + w
        sum_x = sum_x + w * x
    m = select(less(zeros, m), zeros, m)
    flat_m, flat_top = m, top
    by = last / (top - m)
    scale = fill_f32x16(np.float32(1)) / by
    best = zeros
    for i in range(0, 2048, 64):
        x = load_f32x16(scratch + X + i)
        q = nearest_int(by * (x - m))
        q = to_i32x16(smaller(larger(_to_floats(q), zeros), last))
        store_i32x16(scratch + QUANTS + i, q)
        off = scale * _to_floats(q) + m - x
        best = best + load_f32x16(scratch + WEIGHTS + i) * (off * off)
    better, found, found_m = zeros, by, m
    for k in range(37):
        by = np.float32(-0.9) + np.float32(0.05) * np.float32(k) + steps
        by = fill_f32x16(by) / (top - m)
        sum_l, sum_l2, sum_xl = zeros, zeros, zeros
        for i in range(0, 2048, 64):
            x, w = load_f32x16(scratch + X + i), load_f32x16(scratch + WEIGHTS + i)
            q = _quant(x, by, m, last)
            store_f32x16(scratch + WEIGHTED + i, q)
            wq = w * q
            sum_l = sum_l + wq
            sum_l2 = sum_l2 + wq * q
            sum_xl = sum_xl + wq * x
        det = sum_w * sum_l2 - sum_l * sum_l
        new = (sum_w * sum_xl - sum_x * sum_l) / det
        new_m = (sum_l2 * sum_x - sum_l * sum_xl) / det
        new = select(less(zeros, new_m), sum_xl / sum_l2, new)
        new_m = select(less(zeros, new_m), zeros, new_m)
        error = zeros
        for i in range(0, 2048, 64):
            q = load_f32x16(scratch + WEIGHTED + i)
            off = new * q + new_m - load_f32x16(scratch + X + i)
            error = error + load_f32x16(scratch + WEIGHTS + i) * (off * off)
        error = select(less(zeros, det), error, best)
        better = select(less(error, best), last, better)
        found = select(less(error, best), by, found)
        found_m = select(less(error, best), m, found_m)
        scale = select(less(error, best), new, scale)
        m = select(less(error, best), new_m, m)
        best = select(less(error, best), error, best)
    for i in range(0, 2048, 64):
        first = load_i32x16(scratch + QUANTS + i)
        q = to_i32x16(_quant(load_f32x16(scratch + X + i), found, found_m, last))
        q = select(less(zeros, better), q, first)
        q = select(less(flat_m, flat_top), q, _zero_i32x16())
        store_i32x16(scratch + QUANTS + i, q)
    d = select(less(flat_m, flat_top), scale, zeros)
    put_halves(scratch, d, select(less(flat_m, flat_top), m, flat_m))


def _make_weighted(fit: Any, bits: int, minimum: bool) -> Any:
    put = make_put(bits, minimum)

    @inline
    def weighted(values, importance, out, num_rows, columns, scratch):
        for first in range(0, num_rows, 16):
            rows = min(16, num_rows - first)
            at = values + 4 * columns * first
            sum_squares(at, rows, columns, scratch)
            sigma = load_f32x16(scratch + SUMS) / fill_f32x16(np.float32(columns))
            store_f32x16(scratch + SUMS, sigma)
            blocks = rows * (columns // 32)
            row, column = 0, 0
            for start in range(0, blocks, 16):
                for lane in range(16):
                    store_i64(scratch + ADDRESSES + 8 * lane, importance + 4 * column)
                    copy_i32(scratch + SUMS + 4 * row, scratch + LANE_SUMS + 4 * lane)
                    if start + lane < blocks - 1:
                        column += 32
                        if column == columns:
                            row, column = row + 1, 0
                gather_blocks(scratch + ADDRESSES, scratch + WEIGHTS)
                load_blocks(at, start, blocks, scratch)
                weigh(scratch, load_f32x16(scratch + LANE_SUMS))
                fit(scratch, bits)
                out = put(scratch, min(16, blocks - start), out)

    return weighted


def weighted_symmetric(bits: int) -> Any:
    """weighted(values, importance, out, num_rows, columns, scratch) of Q4_0 or Q5_0."""
    return _make_weighted(_fit_symmetric, bits, False)


def weighted_affine(bits: int) -> Any:
    """weighted(values, importance, out, num_rows, columns, scratch) of Q4_1 or Q5_1."""
    return _make_weighted(_fit_affine, bits, True)
