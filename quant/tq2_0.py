"""TQ2_0: one scale for 256 weights of 2 bits, which are -1, 0 or 1; x = d * (q - 1)."""

import numpy as np
from numpy.typing import NDArray

from .format import Format

BLOCK = np.dtype([("qs", "u1", 64), ("d", "<f2")])
assert BLOCK.itemsize == 66


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256): bits 2j and 2j + 1 of 32 bytes are 32 weights."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    q = (blocks["qs"].reshape(-1, 2, 1, 32) >> shifts & 3).astype(np.int8) - np.int8(1)
    return blocks["d"].astype(np.float32)[:, None] * q.reshape(-1, 256).astype(np.float32)


FORMAT = Format("TQ2_0", 35, 256, BLOCK, dequantize)
