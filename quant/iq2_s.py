"""IQ2_S: 16 groups of 16 with a 4-bit scale; 8 weights are one of 1024 points and 8 signs."""

import numpy as np
from numpy.typing import NDArray

from .format import Format
from .grids import grid, quarter_steps, spread_signs

BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]
)
assert BLOCK.itemsize == 82


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256); two bits of `qh` are on top of each byte of `qs`."""
    n = len(blocks)
    high = blocks["qh"][:, :, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    points = blocks["qs"] | high.reshape(n, 32).astype(np.uint16) << 8
    q = grid("iq2_s")[points].reshape(n, 256) * spread_signs(blocks["signs"])
    d: NDArray[np.float32] = blocks["d"].astype(np.float32)[:, None]
    scales = d * quarter_steps(blocks["scales"])
    return (scales[:, :, None] * q.reshape(n, 16, 16).astype(np.float32)).reshape(n, 256)


FORMAT = Format("IQ2_S", 22, 256, BLOCK, dequantize)
