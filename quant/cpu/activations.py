"""float32 rows to int8 with a scale for each 16 values, in the orders that the formats want.

Layout of one row of `columns` values: int8 [columns] for each order, float32 scale [columns / 16]
and float32 sums [columns / 16] (scale * sum of the group's int8), both in natural order.

Orders: NATURAL; PAIR32, in which each 128 values are the 32-groups 0, 2, 1, 3; PAIR16, in which
each 128 (then 64) values are the even 16-groups, then the odd ones.

A scale a 16 values costs nothing in the dot products (the scales are one vector operation a block
either way) and is about 15 % closer to the float values than llama.cpp's one a 32, and far closer
than its one a 256.
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

__all__ = ["FLOAT", "NATURAL", "PAIR16", "PAIR32", "quantize_row"]

_evens = shuffle("i8", 64, [32 * g + j for g in range(4) for j in range(16)])
_odds = shuffle("i8", 64, [32 * g + 16 + j for g in range(4) for j in range(16)])
_halves = shuffle("i8", 64, [32 * (g % 2) + 16 * (g // 2) + j for g in range(4) for j in range(16)])


@inline
def quantize_row(x, count, natural, pair32, pair16, scale, sums, plain):  # noqa: ANN001, ANN201
    """Quantize `count` float32 values (a multiple of 32; a row, or a part at a multiple of 256).

    All arguments are addresses of the part's first element; `natural` is always written when any
    int8 order is wanted, `pair32`, `pair16` and `plain` (a float32 copy) only where not 0.
    """
    if plain != 0:
        for i in range(0, count, 16):
            store_f32x16(plain + 4 * i, load_f32x16(x + 4 * i))
    if natural == 0:
        return
    for i in range(0, count, 16):
        v = load_f32x16(x + 4 * i)
        largest = max_f32x16_all(abs_f32x16(v))
        step = largest / np.float32(127)
        inverse = np.float32(127) / largest if largest > np.float32(1e-30) else np.float32(0)
        n = to_i32x16(nearest_f32x16(v * fill_f32x16(inverse)))
        store_i8x16(natural + i, narrow_i32x16(n))
        store_f32(scale + i // 4, step)
        store_f32(sums + i // 4, step * np.float32(sum_i32x16(n)))
    if pair32 != 0:
        for i in range(0, count, 128):
            store_i8x32(pair32 + i, load_i8x32(natural + i))
            store_i8x32(pair32 + i + 32, load_i8x32(natural + i + 64))
            store_i8x32(pair32 + i + 64, load_i8x32(natural + i + 32))
            store_i8x32(pair32 + i + 96, load_i8x32(natural + i + 96))
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
