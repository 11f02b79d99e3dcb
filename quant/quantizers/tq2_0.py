"""TQ2_0: 256 times -1, 0 or 1 in 2 bits each, and the largest |x| as scale."""

from ..cpu.simd import inline, kernel, narrow_i32x16, shift_left, store_f16, store_i8x16
from .plain import inverse
from .trits import digits, largest_of_256

_up2, _up4, _up6 = (shift_left("i32", 16, n) for n in (2, 4, 6))


@inline
def _four(at, by):
    """Bytes of 16 values at an address and of those 32, 64 and 96 values after them."""
    low = digits(at, by) | _up2(digits(at + 128, by))
    return narrow_i32x16(low | _up4(digits(at + 256, by)) | _up6(digits(at + 384, by)))


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """Float32 rows at `values` to blocks at `out`; importance does not count."""
    for _ in range(num_rows * columns // 256):
        d = largest_of_256(values)
        by = inverse(d)
        for half in range(2):
            at = values + 512 * half
            store_i8x16(out + 32 * half, _four(at, by))
            store_i8x16(out + 32 * half + 16, _four(at + 64, by))
        store_f16(out + 64, d)
        values += 1024
        out += 66
    return 0
