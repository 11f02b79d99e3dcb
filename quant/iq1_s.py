"""IQ1_S: 8 groups of 32 with a 3-bit scale and a shift of 1/8 up or down; 8 weights are a point."""

import numpy as np
from numpy.typing import NDArray

from .format import Format
from .grids import grid

# A group's word in `qh` is four times the upper 3 bits of a point, the scale and the shift's sign.
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
assert BLOCK.itemsize == 50


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256)."""
    n, words = len(blocks), blocks["qh"]
    high = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    points = blocks["qs"] | high.reshape(n, 32) << 8
    shift = np.where(words & 0x8000, np.float32(-0.125), np.float32(0.125))[:, :, None]
    q = grid("iq1_s")[points].reshape(n, 8, 32).astype(np.float32) + shift
    steps = (2 * (words >> 12 & 7) + 1).astype(np.float32)
    d: NDArray[np.float32] = blocks["d"].astype(np.float32)[:, None]
    scales = d * steps
    return (scales[:, :, None] * q).reshape(n, 256)


FORMAT = Format("IQ1_S", 19, 256, BLOCK, dequantize)
