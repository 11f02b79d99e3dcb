"""Q8_0: 32 signed bytes and a scale; x = d * q."""

import numpy as np
from numpy.typing import NDArray

from .format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
assert BLOCK.itemsize == 34


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 32)."""
    return blocks["qs"].astype(np.float32) * blocks["d"].astype(np.float32)[:, None]


FORMAT = Format("Q8_0", 8, 32, BLOCK, dequantize)
