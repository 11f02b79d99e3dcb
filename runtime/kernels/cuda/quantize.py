"""Results on their way into matmuls: bytes with scales, float16 or float32 (arena: Activations).

* q: int8 (tokens, columns); in Mode.TILES (`width` 8) [token / 8][column / 32][token % 8][32].
* scales: float32 pairs (d, d * the sum of the bytes) a 32 columns: (tokens, columns / 32), or
  [token / 8][column / 32][token % 8].
* half: float16 (tokens, columns). plain: float32 (tokens, columns).
"""

import numpy as np

from ....quant.cuda.memory import store_f32x2, store_f32x4, store_i32, store_i32x2
from ....quant.cuda.simt import (
    absolute,
    add32,
    and32,
    dp4a,
    f32_of,
    i32,
    inline,
    make_f32x2,
    make_i32x2,
    maximum,
    nearest,
    or32,
    pack_half2,
    reciprocal,
    shl32,
    shuffle_xor_f32,
    shuffle_xor_i32,
    to_f32,
)

_STEP = np.float32(1 / 127)
_LARGEST = np.float32(65504)
_SMALLEST = np.float32(1e-30)  # 127 over less may be infinite; the bytes are 0 then


@inline
def _within(v):
    """The nearest number that float16 has: beyond it would be infinite. NaN stays what it is."""
    if v > _LARGEST:
        v = _LARGEST
    if v < -_LARGEST:
        v = -_LARGEST
    return v


@inline
def put_activations(v, token, column, columns, q, scales, half, plain, width):
    """Four values (f32x4) of a token from `column` on, a multiple of 4.

    Called by whole warps; eight threads in a row hold a block of 32 columns. Nothing is written
    where column >= columns (a multiple of 32).
    """
    inside = column < columns
    if plain != 0 and inside:
        store_f32x4(plain + (token * columns + column) * 4, v)
    if half != 0 and inside:
        low = pack_half2(_within(v[0]), _within(v[1]))
        high = pack_half2(_within(v[2]), _within(v[3]))
        store_i32x2(half + (token * columns + column) * 2, make_i32x2(low, high))
    if q != 0:
        largest = maximum(
            maximum(absolute(v[0]), absolute(v[1])), maximum(absolute(v[2]), absolute(v[3]))
        )
        for k in range(3):
            largest = maximum(largest, shuffle_xor_f32(largest, 1 << k))
        factor = f32_of(0)
        if largest > _SMALLEST:
            factor = f32_of(127) * reciprocal(largest)
        d = largest * _STEP
        low = or32(
            and32(nearest(v[0] * factor), i32(255)),
            shl32(and32(nearest(v[1] * factor), i32(255)), i32(8)),
        )
        high = or32(
            shl32(and32(nearest(v[2] * factor), i32(255)), i32(16)),
            shl32(nearest(v[3] * factor), i32(24)),
        )
        packed = or32(low, high)
        total = dp4a(packed, i32(0x01010101), i32(0))
        for k in range(3):
            total = add32(total, shuffle_xor_i32(total, 1 << k))
        at = token * columns + column
        pair = token * (columns // 32) + column // 32
        if width == 8:
            block = (token // 8) * (columns // 32) + column // 32
            at = block * 256 + (token % 8) * 32 + column % 32
            pair = block * 8 + token % 8
        if inside:
            store_i32(q + at, packed)
            if column % 32 == 0:
                store_f32x2(scales + pair * 8, make_f32x2(d, d * to_f32(total)))
