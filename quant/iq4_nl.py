"""IQ4_NL: 32 indices of 4 bits into 16 values that lie closer near zero; x = d * VALUES[q]."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, nibbles

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
TABLE = np.array(VALUES, np.float32)


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 32): low nibbles are elements 0-15, high ones 16-31."""
    return blocks["d"].astype(np.float32)[:, None] * TABLE[nibbles(blocks["qs"], 16)]


FORMAT = Format("IQ4_NL", 20, 32, BLOCK, dequantize)
