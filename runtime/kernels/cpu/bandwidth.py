"""How fast a core reads memory: a walk over bytes that does next to nothing with them.

What it adds up is of no use, but it keeps the compiler from leaving the loads out.
"""

from ....quant.cpu.simd import kernel, load, sum_i32x16, zero_i32x16

_load = load("i32", 16)


@kernel
def read(address, num_bytes):
    """Read `num_bytes` (a multiple of 256) in one stream; the sum of their 32-bit words."""
    a, b, c, d = zero_i32x16(), zero_i32x16(), zero_i32x16(), zero_i32x16()
    for at in range(address, address + num_bytes, 256):
        a = a + _load(at)
        b = b + _load(at + 64)
        c = c + _load(at + 128)
        d = d + _load(at + 192)
    return sum_i32x16((a + b) + (c + d))
