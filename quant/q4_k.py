"""Q4_K: 8 groups of 32 x 4 bits with 6-bit scales and minima; x = d * s * q - dmin * m."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, k_scales, nibbles

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
assert BLOCK.itemsize == 144


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256): a group is the low or the high nibbles of 32 bytes."""
    scales, minima = k_scales(blocks)
    q = nibbles(blocks["qs"], 32).reshape(-1, 8, 32).astype(np.float32)
    return (scales * q - minima).reshape(-1, 256)


FORMAT = Format("Q4_K", 12, 256, BLOCK, dequantize)
