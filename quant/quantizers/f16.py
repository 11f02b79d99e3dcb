"""F16: each number rounded to the nearest float16, ties to even; a NaN becomes the quiet one."""

from ..cpu.simd import (
    inline,
    kernel,
    literal,
    load_f32x16,
    narrow_f32x16,
    store_f16x16,
)
from .block_words import copy_i16, copy_i32
from .words import bits_f32x16, equal, from_bits_f32x16, select

_sign, _nan = literal("i32", [1 << 31] * 16), literal("i32", [0x7FC00000] * 16)


@inline
def _put(values, out):
    x = load_f32x16(values)
    quiet = from_bits_f32x16((bits_f32x16(x) & _sign()) | _nan())
    store_f16x16(out, narrow_f32x16(select(equal(x, x), x, quiet)))


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """Float32 rows at `values` to float16 at `out`."""
    count = num_rows * columns
    whole = count - count % 16
    for i in range(0, whole, 16):
        _put(values + 4 * i, out + 2 * i)
    if whole < count:
        for i in range(whole, count):
            copy_i32(values + 4 * i, scratch + 4 * (i - whole))
        _put(scratch, scratch + 64)
        for i in range(whole, count):
            copy_i16(scratch + 64 + 2 * (i - whole), out + 2 * i)
    return 0
