"""TQ1_0: 256 times -1, 0 or 1, five in a byte, and the largest |x| as scale."""

from ..cpu.simd import (
    inline,
    kernel,
    literal,
    narrow_i32x16,
    shift_right,
    shuffle,
    store_f16,
    store_i8x16,
)
from .block_words import copy_i32
from .plain import inverse
from .trits import digits, largest_of_256
from .words import fill_i32x16

_down21 = shift_right("i32", 16, 21)
_mul = literal("i32", [8631] * 16)
_powers = literal("i32", [81] * 4 + [27] * 4 + [9] * 4 + [3] * 4)
_turn8, _turn4 = (shuffle("i32", 16, [(j + n) % 16 for j in range(16)]) for n in (8, 4))


@inline
def _fractions(numbers):
    """Numbers n of five ternary digits as bytes: n / 243 of 256, rounded up."""
    # 8631 / 2^21 is 1 / 243, near enough for all that occur.
    return narrow_i32x16(_down21((numbers * fill_i32x16(256) + fill_i32x16(242)) * _mul()))


@inline
def _five(at, stride, by):
    """The numbers of five digits each of 16 places, the first digit `stride` bytes before."""
    three = fill_i32x16(3)
    n = digits(at, by)
    for i in range(1, 5):
        n = n * three + digits(at + i * stride, by)
    return _fractions(n)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """Float32 rows at `values` to blocks at `out`; importance does not count."""
    for _ in range(num_rows * columns // 256):
        d = largest_of_256(values)
        by = inverse(d)
        store_i8x16(out, _five(values, 128, by))
        store_i8x16(out + 16, _five(values + 64, 128, by))
        store_i8x16(out + 32, _five(values + 640, 64, by))
        # The last 16 have four digits in each of four bytes.
        n = digits(values + 960, by) * _powers()
        n = n + _turn8(n, n)
        store_i8x16(scratch, _fractions(n + _turn4(n, n)))
        copy_i32(scratch, out + 48)
        store_f16(out + 52, d)
        values += 1024
        out += 54
    return 0
