"""TQ1_0: one scale for 256 weights of -1, 0 or 1, five of them a byte; x = d * (q - 1)."""

import numpy as np
from numpy.typing import NDArray

from .format import Format

BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
assert BLOCK.itemsize == 54

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256).

    A byte b stands for b / 256, whose first ternary digit is b * 3 >> 8; times 3 (modulo 256) it
    stands for the rest. The first digits of 32 bytes come first, then their second ones, and so on
    to the fifth; then those of 16 bytes, then four digits of 4 bytes.
    """
    n, qs = len(blocks), blocks["qs"]
    parts = (qs[:, None, :32], _POWERS), (qs[:, None, 32:], _POWERS), (blocks["qh"], _POWERS[:4])
    bytes_ = [(b.reshape(n, 1, -1) * powers).reshape(n, -1) for b, powers in parts]
    digits = np.concatenate(bytes_, axis=1).astype(np.uint16) * 3 >> 8
    q = digits.astype(np.int8) - np.int8(1)
    return blocks["d"].astype(np.float32)[:, None] * q.astype(np.float32)


FORMAT = Format("TQ1_0", 34, 256, BLOCK, dequantize)
