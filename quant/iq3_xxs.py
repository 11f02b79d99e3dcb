"""IQ3_XXS: 8 groups of 32 with a 4-bit scale; 4 weights are one of 256 points, 8 have 7 signs."""

import numpy as np
from numpy.typing import NDArray

from .format import Format
from .grids import eighth_sign, grid, spread_signs

# A group's word in `signs` is four times 7 signs, and the scale on top.
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])
assert BLOCK.itemsize == 98


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256); the scale stands for (s + 1/2) / 2."""
    n = len(blocks)
    words: NDArray[np.uint32] = blocks["signs"]
    sevens = words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)
    signs = spread_signs(eighth_sign(sevens).reshape(n, 32))
    q = grid("iq3_xxs")[blocks["qs"]].reshape(n, 256) * signs
    steps: NDArray[np.float32] = (words >> 28).astype(np.float32) + np.float32(0.5)
    d: NDArray[np.float32] = blocks["d"].astype(np.float32)[:, None]
    scales = d * steps * np.float32(0.5)
    return (scales[:, :, None] * q.reshape(n, 8, 32).astype(np.float32)).reshape(n, 256)


FORMAT = Format("IQ3_XXS", 18, 256, BLOCK, dequantize)
