"""Q4_1: 32 x 4 bits, a scale and a minimum; x = d * q + m."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, nibbles

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 20


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 32): low nibbles are elements 0-15, high ones 16-31."""
    q = nibbles(blocks["qs"], 16).astype(np.float32)
    d, m = (blocks[name].astype(np.float32)[:, None] for name in ("d", "m"))
    return d * q + m


FORMAT = Format("Q4_1", 3, 32, BLOCK, dequantize)
