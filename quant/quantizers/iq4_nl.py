"""IQ4_NL: 32 indices of sixteen uneven values and a scale, found by a search."""

import numpy as np

from ..cpu.simd import (
    fill_f32x16,
    kernel,
    load_f32x16,
    store_i64,
    to_i32x16,
    zero_f32x16,
)
from .lanes import (
    ADDRESSES,
    QUANTS,
    WEIGHTED,
    WEIGHTS,
    X,
    gather_blocks,
    load_blocks,
    make_put,
    put_halves,
)
from .nonlinear import best_scale, inverse_or_zero, nearest_index, weigh_block
from .words import store_i32x16

_put = make_put(4, False)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """Float32 rows at `values` to blocks at `out`; importance of the columns, or 0."""
    count = num_rows * columns // 32
    column = 0
    x_at, weights = scratch + X, scratch + WEIGHTS
    for first in range(0, count, 16):
        sigma = zero_f32x16()
        importances = 0
        if importance != 0:
            for lane in range(16):
                store_i64(scratch + ADDRESSES + 8 * lane, importance + 4 * column)
                column = column + 32 if column + 32 < columns else 0
            importances = scratch + WEIGHTED
            gather_blocks(scratch + ADDRESSES, importances)
        load_blocks(values, first, count, scratch)
        if importance != 0:
            for i in range(0, 2048, 64):
                x = load_f32x16(x_at + i)
                sigma = sigma + x * x
            sigma = sigma * fill_f32x16(np.float32(2 / 32))
        weigh_block(x_at, importances, weights, sigma)
        scale = best_scale(x_at, weights)
        by = inverse_or_zero(scale)
        for i in range(0, 2048, 64):
            q = to_i32x16(nearest_index(by * load_f32x16(x_at + i)))
            store_i32x16(scratch + QUANTS + i, q)
        put_halves(scratch, scale, scale)
        out = _put(scratch, min(16, count - first), out)
    return 0
