"""Q6_K: 16 groups of 16 x 6 bits with signed 8-bit scales; x = d * s * (q - 32)."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, nibbles

BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
assert BLOCK.itemsize == 210


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256), in two halves of 128 elements.

    A half has 64 bytes of low nibbles (elements 0-63 low, 64-127 high) and 32 bytes of upper bits:
    bits 2j and 2j + 1 of byte i belong to element 32 j + i.
    """
    scales = blocks["d"].astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks["qh"].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 256)
    q = (nibbles(blocks["ql"], 64) | high << 4).astype(np.int8) - np.int8(32)
    return (scales[:, :, None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


FORMAT = Format("Q6_K", 14, 256, BLOCK, dequantize)
