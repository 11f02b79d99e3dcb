"""IQ4_XS: 256 indices of sixteen uneven values, a 6-bit scale for each 32, and a scale of these."""

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    convert,
    fill_f32x16,
    inline,
    kernel,
    literal,
    load_f32x16,
    load_i64,
    narrow_f32x16,
    shift_left,
    shift_right,
    store_f16x16,
    store_f32x16,
    to_i32x16,
    vec,
    zero,
    zero_f32x16,
)
from .block_words import copy_i16, copy_i32, narrow_to_i16x16, store_i16x16
from .lanes import pack_nibbles
from .nonlinear import best_scale, inverse_or_zero, nearest_index, weigh_block
from .super_blocks import ADDRESSES, IMPORTANCE, ROWS, SCALES, SPARE, WEIGHTS, X, take
from .words import (
    fill_i32x16,
    greater,
    larger,
    nearest_int,
    select,
    smaller,
    store_i32x16,
)

_BYTES = 136
# After the nibbles, [32][16] int32: the scales' low bits, their high ones, and the scale of all.
_LOW, _HIGH, _SCALE = ROWS + 2048, ROWS + 2112, ROWS + 2144

_zero_i32x16 = zero("i32", 16)
_fifteen = literal("i32", [15] * 16)
_up2, _up4 = (shift_left("i32", 16, n) for n in (2, 4))
_down4 = shift_right("i32", 16, 4)
_to_floats = convert("sitofp", vec("i32", 16), vec("f32", 16))


@inline
def _scales(scratch, importance):
    """The scales of the eight blocks of 32 to SCALES; returns the extreme one."""
    sigma = zero_f32x16()
    if importance != 0:
        for i in range(0, 256 * 64, 64):
            x = load_f32x16(scratch + X + i)
            sigma = sigma + x * x
        sigma = sigma * fill_f32x16(np.float32(2 / 256))
    size, top = zero_f32x16(), zero_f32x16()
    for block in range(8):
        x_at = scratch + X + 2048 * block
        importances = scratch + IMPORTANCE + 2048 * block if importance != 0 else 0
        weigh_block(x_at, importances, scratch + WEIGHTS, sigma)
        scale = best_scale(x_at, scratch + WEIGHTS)
        store_f32x16(scratch + SCALES + 64 * block, scale)
        a = abs_f32x16(scale)
        above = greater(a, size)
        top, size = select(above, scale, top), select(above, a, size)
    return top


@inline
def _put(scratch):
    for lane in range(16):
        out = load_i64(scratch + ADDRESSES + 256 + 8 * lane)
        copy_i16(scratch + _SCALE + 2 * lane, out)
        copy_i16(scratch + _HIGH + 2 * lane, out + 2)
        copy_i32(scratch + _LOW + 4 * lane, out + 4)
        for i in range(32):
            copy_i32(scratch + ROWS + 64 * i + 4 * lane, out + 8 + 4 * i)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """Float32 rows at `values` to blocks at `out`; importance of the columns, or 0."""
    count = num_rows * columns // 256
    for first in range(0, count, 16):
        take(values, importance, out, first, count, columns, _BYTES, scratch)
        d = _scales(scratch, importance) / fill_f32x16(np.float32(-32))
        store_f16x16(scratch + _SCALE, narrow_f32x16(d))
        by = inverse_or_zero(d)
        low, high = _zero_i32x16(), _zero_i32x16()
        for block in range(7, -1, -1):
            level = nearest_int(by * load_f32x16(scratch + SCALES + 64 * block))
            level = larger(smaller(level, fill_i32x16(31)), fill_i32x16(-32))
            by_block = inverse_or_zero(d * _to_floats(level))
            for i in range(0, 2048, 64):
                x = load_f32x16(scratch + X + 2048 * block + i)
                store_i32x16(scratch + SPARE + i, to_i32x16(nearest_index(by_block * x)))
            pack_nibbles(scratch + SPARE, scratch + ROWS + 256 * block)
            level = level + fill_i32x16(32)
            low = _up4(low) | (level & _fifteen())
            high = _up2(high) | _down4(level)
        store_i32x16(scratch + _LOW, low)
        store_i16x16(scratch + _HIGH, narrow_to_i16x16(high))
        _put(scratch)
    return 0
