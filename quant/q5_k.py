"""Q5_K: Q4_K with a fifth bit; bit g of `qh[i]` belongs to element i of group g."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, k_scales, nibbles

BLOCK = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
)
assert BLOCK.itemsize == 176


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256): a group is the low or the high nibbles of 32 bytes."""
    scales, minima = k_scales(blocks)
    high = blocks["qh"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    q = nibbles(blocks["qs"], 32).reshape(-1, 8, 32) | high << 4
    return (scales * q.astype(np.float32) - minima).reshape(-1, 256)


FORMAT = Format("Q5_K", 13, 256, BLOCK, dequantize)
