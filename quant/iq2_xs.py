"""IQ2_XS: 16 groups of 16 with a 4-bit scale; 8 weights are one of 512 points and 7 signs."""

import numpy as np
from numpy.typing import NDArray

from .format import Format
from .grids import eighth_sign, grid, quarter_steps, spread_signs

BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
assert BLOCK.itemsize == 74


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256); the point is the word's low 9 bits, the signs the rest."""
    n, words = len(blocks), blocks["qs"]
    q = grid("iq2_xs")[words & 511].reshape(n, 256) * spread_signs(eighth_sign(words >> 9))
    d: NDArray[np.float32] = blocks["d"].astype(np.float32)[:, None]
    scales = d * quarter_steps(blocks["scales"])
    return (scales[:, :, None] * q.reshape(n, 16, 16).astype(np.float32)).reshape(n, 256)


FORMAT = Format("IQ2_XS", 17, 256, BLOCK, dequantize)
