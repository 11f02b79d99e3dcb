"""Q5_0: 32 x 5 bits (the fifth ones in `qh`) and a scale; x = d * (q - 16)."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, bits, nibbles

BLOCK = np.dtype([("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 22


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 32): nibbles as in Q4_0, bit i of `qh` belongs to element i."""
    q = nibbles(blocks["qs"], 16) | bits(blocks["qh"]) << 4
    signed = q.astype(np.int8) - np.int8(16)
    return blocks["d"].astype(np.float32)[:, None] * signed.astype(np.float32)


FORMAT = Format("Q5_0", 6, 32, BLOCK, dequantize)
