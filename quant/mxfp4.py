"""MXFP4: 32 floats of 4 bits (1 sign, 2 exponent, 1 mantissa) and a power of two as scale."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, nibbles

BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 17

# Twice the floats, which makes them integers; the scale is halved instead.
VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
TABLE = np.array(VALUES, np.float32)


def half_power(exponents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """2^(e - 128) of each e; the first two are subnormal. 255 is a number too, not NaN."""
    e = exponents.astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << (e & 1), (np.maximum(e, 1) - 1) << 23)
    return bits.astype(np.uint32).view(np.float32)


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 32): low nibbles are elements 0-15, high ones 16-31."""
    return half_power(blocks["e"])[:, None] * TABLE[nibbles(blocks["qs"], 16)]


FORMAT = Format("MXFP4", 39, 32, BLOCK, dequantize)
