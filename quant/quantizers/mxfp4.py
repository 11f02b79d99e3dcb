"""MXFP4: 32 floats of 4 bits, each the nearest one, and a power of two from the largest |x|."""

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    fill_f32x16,
    inline,
    kernel,
    load_f32x16,
    narrow_i32x16,
    shift_left,
    store_i8x16,
    zero,
    zero_f32x16,
)
from .block_words import bits_f32, from_bits_f32, store_u8
from .plain import largest
from .words import fill_i32x16, greater, less, select

_ZERO = np.float32(0)
_SMALLEST, _UP = np.float32(2.0**-126), np.float32(2.0**24)
_up4 = shift_left("i32", 16, 4)
_zero_i32x16 = zero("i32", 16)


@inline
def _floor_log2(x):
    """The integer part of C's log2f(x) of x > 0, which is rounded before it is cut off.

    n last places below 2^(e + 1) it is e + 1 already, for n up to ln 2 times half of the distance
    of float32 numbers there; llama.cpp's files have that.
    """
    e = -127
    if x < _SMALLEST:
        x, e = x * _UP, -127 - 24
    bits = bits_f32(x)
    e += bits >> 23
    below = 0x800000 - (bits & 0x7FFFFF)
    if below < 89:  # the most there is, far below 2^-126
        size = e if e >= 0 else -1 - e
        places = 0
        while size >= 2:
            size >>= 1
            places = places * 2 if places else 1
        # 2^p * ln 2 in whole places.
        if below <= (places * 2 * 11629080) >> 24 and places:
            e += 1
    return e


@inline
def _half_power(exponent):
    """2^(exponent - 128); the first two are subnormal."""
    bits = 0x200000 << exponent if exponent < 2 else (exponent - 1) << 23
    return from_bits_f32(bits)


@inline
def _step(index, size, edge):
    """One more where |x| is above an edge; at the edge the smaller float is meant."""
    return index + select(greater(size, fill_f32x16(edge)), fill_i32x16(1), _zero_i32x16())


@inline
def _indices(x, d):
    """The floats 0, 1, 2, 3, 4, 6, 8, 12 (times d), and the same below 0 from index 9 on."""
    size, index = abs_f32x16(x), _zero_i32x16()
    index = _step(index, size, d * np.float32(0.5))
    sign = select(less(x, zero_f32x16()), fill_i32x16(8), _zero_i32x16())
    sign = select(greater(index, _zero_i32x16()), sign, _zero_i32x16())
    index = _step(index, size, d * np.float32(1.5))
    index = _step(index, size, d * np.float32(2.5))
    index = _step(index, size, d * np.float32(3.5))
    index = _step(index, size, d * np.float32(5))
    # Where 8 or 12 times d is infinite, the float before is the nearest.
    index = _step(index, size, d * np.float32(8) - d)
    index = _step(index, size, d * np.float32(12) - d * np.float32(2))
    return index | sign


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """Float32 rows at `values` to blocks at `out`; importance does not count."""
    for _ in range(num_rows * columns // 32):
        top = largest(values)
        # Less than 2^-125 wraps around: all of it becomes 0.
        exponent = (_floor_log2(top) + 125) & 255 if top > _ZERO else 0
        d = _half_power(exponent)
        store_u8(out, exponent)
        low, high = _indices(load_f32x16(values), d), _indices(load_f32x16(values + 64), d)
        store_i8x16(out + 1, narrow_i32x16(low | _up4(high)))
        values += 128
        out += 17
    return 0
