"""What TQ1_0 and TQ2_0 share: x / d rounded to -1, 0 or 1, by the largest |x| of 256."""

import numpy as np

from ..cpu.simd import abs_f32x16, fill_f32x16, inline, load_f32x16, max_f32x16, max_f32x16_all
from .words import fill_i32x16, less, select


@inline
def largest_of_256(at):
    """The largest |x| of 256 at an address."""
    found = abs_f32x16(load_f32x16(at))
    for i in range(64, 1024, 64):
        found = max_f32x16(found, abs_f32x16(load_f32x16(at + i)))
    return max_f32x16_all(found)


@inline
def digits(at, inverse_d):
    """0, 1 or 2 for 16 values, as int32; halves are rounded away from zero."""
    x = load_f32x16(at) * fill_f32x16(inverse_d)
    half = fill_f32x16(np.float32(0.5))
    upper = select(less(x, half), fill_i32x16(1), fill_i32x16(2))
    return select(less(fill_f32x16(np.float32(-0.5)), x), upper, fill_i32x16(0))
