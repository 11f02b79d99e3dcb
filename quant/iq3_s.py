"""IQ3_S: 8 groups of 32 with a 4-bit scale; 4 weights are one of 512 points and 4 signs."""

import numpy as np
from numpy.typing import NDArray

from .format import Format
from .grids import grid, spread_signs

BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)
assert BLOCK.itemsize == 110


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256); a bit of `qh` is on top of each byte of `qs`."""
    n = len(blocks)
    high = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
    points = blocks["qs"] | high.astype(np.uint16) << 8
    q = grid("iq3_s")[points].reshape(n, 256) * spread_signs(blocks["signs"])
    steps = (blocks["scales"][:, :, None] >> np.array([0, 4], np.uint8) & 15).reshape(n, 8)
    d: NDArray[np.float32] = blocks["d"].astype(np.float32)[:, None]
    scales = d * (1 + 2 * steps).astype(np.float32)
    return (scales[:, :, None] * q.reshape(n, 8, 32).astype(np.float32)).reshape(n, 256)


FORMAT = Format("IQ3_S", 21, 256, BLOCK, dequantize)
