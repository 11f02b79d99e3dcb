"""float32 rows to int8 with a scale for each 16 or 32 values, in the orders that the formats want.

Layout of one row of `columns` values: int8 [columns] for each order. NATURAL, and PAIR16, in which
each 128 (then 64) values are the even 16-groups, then the odd ones, share float32 scale
[columns / 16] and sums [columns / 16] (scale * sum of the group's int8). PAIR32, in which each 128
values are the 32-groups 0, 2, 1, 3, has scales and sums [columns / 32] of its own. Scales and sums
are in natural order.

A scale a 16 values costs the dot products of most formats nothing and is about 15 % closer to the
float values than llama.cpp's one a 32, and far closer than its one a 256. Q4_K and Q5_K, whose own
scales are one a 32, decode 5 % faster with activations scaled alike.
"""

import numpy as np

from .blocks32 import FLOAT, NATURAL, PAIR16, PAIR32
from .simd import (
    abs_f32x16,
    fill_f32x16,
    inline,
    load_f32x16,
    load_i8x32,
    load_i8x64,
    max_f32x16,
    max_f32x16_all,
    narrow_i32x16,
    nearest_f32x16,
    shuffle,
    store_f32,
    store_f32x16,
    store_i8x16,
    store_i8x32,
    store_i8x64,
    sum_i32x16,
    to_i32x16,
)

__all__ = ["FLOAT", "NATURAL", "PAIR16", "PAIR32", "inverse_scale", "quantize_row"]

_evens = shuffle("i8", 64, [32 * g + j for g in range(4) for j in range(16)])
_odds = shuffle("i8", 64, [32 * g + 16 + j for g in range(4) for j in range(16)])
_halves = shuffle("i8", 64, [32 * (g % 2) + 16 * (g // 2) + j for g in range(4) for j in range(16)])


@inline
def inverse_scale(largest):
    """127 / largest, and 0 where that is (nearly) 0."""
    return np.float32(127) / largest if largest > np.float32(1e-30) else np.float32(0)


@inline
def quantize_row(x, count, natural, pair16, scale, sums, pair32, pair_scale, pair_sums, plain):
    """Quantize `count` float32 values (a multiple of 32; a row, or a part at a multiple of 256).

    All arguments are addresses of the part's first element; what is 0 is not written. `pair16`
    needs `natural`; `plain` is a float32 copy.
    """
    if plain != 0:
        for i in range(0, count, 16):
            store_f32x16(plain + 4 * i, load_f32x16(x + 4 * i))
    if pair32 != 0:
        for i in range(0, count, 32):
            a, b = load_f32x16(x + 4 * i), load_f32x16(x + 4 * i + 64)
            largest = max_f32x16_all(max_f32x16(abs_f32x16(a), abs_f32x16(b)))
            step = largest / np.float32(127)
            inverse = fill_f32x16(inverse_scale(largest))
            m = to_i32x16(nearest_f32x16(a * inverse))
            n = to_i32x16(nearest_f32x16(b * inverse))
            # The middle two of four groups change places.
            group = i // 32
            place = pair32 + 32 * (group - group % 4 + (group % 2 * 2 + group % 4 // 2))
            store_i8x16(place, narrow_i32x16(m))
            store_i8x16(place + 16, narrow_i32x16(n))
            store_f32(pair_scale + i // 8, step)
            store_f32(pair_sums + i // 8, step * np.float32(sum_i32x16(m + n)))
    if natural == 0:
        return
    for i in range(0, count, 16):
        v = load_f32x16(x + 4 * i)
        largest = max_f32x16_all(abs_f32x16(v))
        step = largest / np.float32(127)
        n = to_i32x16(nearest_f32x16(v * fill_f32x16(inverse_scale(largest))))
        store_i8x16(natural + i, narrow_i32x16(n))
        store_f32(scale + i // 4, step)
        store_f32(sums + i // 4, step * np.float32(sum_i32x16(n)))
    if pair16 != 0:
        whole = count // 128 * 128
        for i in range(0, whole, 128):
            a, b = load_i8x64(natural + i), load_i8x64(natural + i + 64)
            store_i8x64(pair16 + i, _evens(a, b))
            store_i8x64(pair16 + i + 64, _odds(a, b))
        rest = count - whole
        if rest & 64:
            a = load_i8x64(natural + whole)
            store_i8x64(pair16 + whole, _halves(a, a))
            whole += 64
        if rest & 32:
            store_i8x32(pair16 + whole, load_i8x32(natural + whole))
