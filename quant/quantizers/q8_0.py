"""Q8_0: the largest |x| of 32 becomes 127, the rest is rounded, halves away from zero."""

import numpy as np

from ..cpu.simd import (
    fill_f32x16,
    inline,
    kernel,
    literal,
    load_f32x16,
    narrow_i32x16,
    store_f16,
    store_i8x16,
    to_i32x16,
)
from .plain import inverse, largest
from .words import bits_f32x16, from_bits_f32x16

_sign = literal("i32", [1 << 31] * 16)
# The float32 before 0.5: 0.5 itself would make the number before it 1.
_almost_half = literal("i32", [0x3EFFFFFF] * 16)
_STEPS = np.float32(127)


@inline
def _rounded(x):
    half = from_bits_f32x16((bits_f32x16(x) & _sign()) | _almost_half())
    return to_i32x16(x + half)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """Float32 rows at `values` to blocks at `out`; importance does not count."""
    for _ in range(num_rows * columns // 32):
        d = largest(values) / _STEPS
        by = fill_f32x16(inverse(d))
        store_f16(out, d)
        for i in range(0, 32, 16):
            quants = _rounded(load_f32x16(values + 4 * i) * by)
            store_i8x16(out + 2 + i, narrow_i32x16(quants))
        values += 128
        out += 34
    return 0
