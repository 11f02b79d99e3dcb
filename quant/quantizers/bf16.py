"""BF16: the upper half of a float32, rounded to the nearest, ties to even; NaN becomes quiet."""

from ..cpu.simd import inline, kernel, literal, load_f32x16, shift_right
from .block_words import copy_i16, copy_i32, narrow_to_i16x16, store_i16x16
from .words import bits_f32x16, equal, select

_one, _half, _quiet = (literal("i32", [v] * 16) for v in (1, 0x7FFF, 64))
_upper = shift_right("i32", 16, 16)


@inline
def _put(values, out):
    x = load_f32x16(values)
    bits = bits_f32x16(x)
    upper = _upper(bits)
    rounded = _upper(bits + (_half() + (upper & _one())))
    store_i16x16(out, narrow_to_i16x16(select(equal(x, x), rounded, upper | _quiet())))


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """Float32 rows at `values` to bfloat16 at `out`."""
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
