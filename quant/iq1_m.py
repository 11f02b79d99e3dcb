"""IQ1_M: 16 groups of 16 with a 3-bit scale; 8 weights are a point and a shift of 1/8."""

import numpy as np
from numpy.typing import NDArray

from .format import Format
from .grids import grid

# A word in `scales` is four of them, and on top 4 bits of the block's float16 scale.
BLOCK = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])
assert BLOCK.itemsize == 56


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256).

    A half of a byte in `qh` is the upper 3 bits of a point and the sign of its shift.
    """
    n, words = len(blocks), blocks["scales"]
    d = np.bitwise_or.reduce(words >> 12 << np.array([0, 4, 8, 12], np.uint16), axis=1)
    steps = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(n, 16)
    scales = d.view(np.float16).astype(np.float32)[:, None] * (2 * steps + 1).astype(np.float32)
    halves = (blocks["qh"][:, :, None] >> np.array([0, 4], np.uint8)).reshape(n, 32)
    points = blocks["qs"] | (halves & 7).astype(np.uint16) << 8
    shift = np.where(halves & 8, np.float32(-0.125), np.float32(0.125))[:, :, None]
    q = (grid("iq1_s")[points].astype(np.float32) + shift).reshape(n, 16, 16)
    return (scales[:, :, None] * q).reshape(n, 256)


FORMAT = Format("IQ1_M", 29, 256, BLOCK, dequantize)
