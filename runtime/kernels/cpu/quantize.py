"""What the ops that feed a matmul share: one part of a row into the op's activation buffers."""

import numpy as np

from ....quant.cpu.activations import inverse_scale, quantize_row
from ....quant.cpu.simd import (
    LANES,
    abs_f32x16,
    fill_f32x16,
    inline,
    load_f32x16,
    load_i8x16,
    load_i32,
    load_i64,
    max_f32x16,
    max_f32x16_all,
    narrow_i32x16,
    nearest_f32x16,
    store_f32,
    store_f32x16,
    store_i8x16,
    store_i32,
    store_i64,
    sum_i32x16,
    to_i32x16,
)
from ..records import NORM


@inline
def _quantize_few(x, count, row, start, columns, width, q, scale, sums):
    """int8 [columns / C][width][C], a scale a 32 columns in each lane, a sum a 16 in one of them.

    A token's other lanes of the sums stay 0, as they were made. C = 4 * LANES / width.
    """
    piece = 4 * LANES // width
    block, t = row // width, row % width
    q += block * columns * width + t * piece
    at = (block * columns + start) // 32
    share = LANES // width
    scale += (at * LANES + t * share) * 4
    sums += (2 * at * LANES + t * share) * 4
    for i in range(0, count, 32):
        a, b = load_f32x16(x + 4 * i), load_f32x16(x + 4 * i + 64)
        largest = max_f32x16_all(max_f32x16(abs_f32x16(a), abs_f32x16(b)))
        factor = fill_f32x16(inverse_scale(largest))
        m, n = to_i32x16(nearest_f32x16(a * factor)), to_i32x16(nearest_f32x16(b * factor))
        # The float values are read: their place takes the bytes.
        store_i8x16(x + 4 * i, narrow_i32x16(m))
        store_i8x16(x + 4 * i + 16, narrow_i32x16(n))
        out = q + (start + i) * width
        for j in range(0, 32, piece):
            source, target = x + 4 * i + j, out + j * width
            if piece == 16:
                store_i8x16(target, load_i8x16(source))
            elif piece == 8:
                store_i64(target, load_i64(source))
            else:
                store_i32(target, load_i32(source))
        for j in range(share):
            store_f32(scale + 4 * j, largest / np.float32(127))
        store_i32(sums, sum_i32x16(m))
        store_i32(sums + LANES * 4, sum_i32x16(n))
        scale += LANES * 4
        sums += LANES * 8


@inline
def put_row(op, row, start, count, x):
    """Quantize columns start..start+count of token `row` from address x, as the record asks.

    x may be overwritten. The `act_*` fields lie at the same offsets in every record that has them.
    """
    columns = load_i64(op + NORM.act_columns)
    at = row * columns + start
    natural = load_i64(op + NORM.act_natural)
    pair32 = load_i64(op + NORM.act_pair32)
    pair16 = load_i64(op + NORM.act_pair16)
    plain = load_i64(op + NORM.act_float)
    width = load_i64(op + NORM.act_width)
    if width != 0:
        if plain != 0:
            for i in range(0, count, 16):
                store_f32x16(plain + 4 * (at + i), load_f32x16(x + 4 * i))
        if natural != 0:
            scale, sums = load_i64(op + NORM.act_scale), load_i64(op + NORM.act_sums)
            _quantize_few(x, count, row, start, columns, width, natural, scale, sums)
        return
    quantize_row(
        x,
        count,
        natural + at if natural != 0 else 0,
        pair16 + at if pair16 != 0 else 0,
        load_i64(op + NORM.act_scale) + at // 4,
        load_i64(op + NORM.act_sums) + at // 4,
        pair32 + at if pair32 != 0 else 0,
        load_i64(op + NORM.act_pair_scale) + at // 8,
        load_i64(op + NORM.act_pair_sums) + at // 8,
        plain + 4 * at if plain != 0 else 0,
    )
