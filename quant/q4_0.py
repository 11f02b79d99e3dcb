"""Q4_0: 32 x 4 bits and a scale; x = d * (q - 8)."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, nibbles

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 32): low nibbles are elements 0-15, high ones 16-31."""
    q = nibbles(blocks["qs"], 16).astype(np.int8) - np.int8(8)
    return blocks["d"].astype(np.float32)[:, None] * q.astype(np.float32)


FORMAT = Format("Q4_0", 2, 32, BLOCK, dequantize)
