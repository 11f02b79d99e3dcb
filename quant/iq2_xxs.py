"""IQ2_XXS: 8 groups of 32 with a 4-bit scale; 8 weights are one of 256 points and 7 signs."""

import numpy as np
from numpy.typing import NDArray

from .format import Format
from .grids import eighth_sign, grid, spread_signs

# Of each group's two words the first is four points, the second four times 7 signs and the scale.
BLOCK = np.dtype([("d", "<f2"), ("groups", "<u4", (8, 2))])
assert BLOCK.itemsize == 66


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256); the scale stands for (s + 1/2) / 4."""
    n = len(blocks)
    words: NDArray[np.uint32] = blocks["groups"]
    points = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)  # (n, 32)
    sevens = words[:, :, 1:] >> np.array([0, 7, 14, 21], np.uint32)
    q = grid("iq2_xxs")[points].reshape(n, 256) * spread_signs(eighth_sign(sevens).reshape(n, 32))
    steps: NDArray[np.float32] = (words[:, :, 1] >> 28).astype(np.float32) + np.float32(0.5)
    d: NDArray[np.float32] = blocks["d"].astype(np.float32)[:, None]
    scales = d * steps * np.float32(0.25)
    return (scales[:, :, None] * q.reshape(n, 8, 32).astype(np.float32)).reshape(n, 256)


FORMAT = Format("IQ2_XXS", 16, 256, BLOCK, dequantize)
