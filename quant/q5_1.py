"""Q5_1: 32 x 5 bits (the fifth ones in `qh`), a scale and a minimum; x = d * q + m."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, bits, nibbles

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 24


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 32): nibbles as in Q4_0, bit i of `qh` belongs to element i."""
    q = nibbles(blocks["qs"], 16) | bits(blocks["qh"]) << 4
    d, m = (blocks[name].astype(np.float32)[:, None] for name in ("d", "m"))
    return d * q.astype(np.float32) + m


FORMAT = Format("Q5_1", 7, 32, BLOCK, dequantize)
