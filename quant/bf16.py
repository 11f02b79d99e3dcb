"""BF16: the upper half of a float32, a block is one number."""

import numpy as np
from numpy.typing import NDArray

from .format import Format

BLOCK = np.dtype([("x", "<u2")])
assert BLOCK.itemsize == 2


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 1), exact."""
    return (blocks["x"].astype(np.uint32) << 16).view(np.float32)[:, None]


FORMAT = Format("BF16", 30, 1, BLOCK, dequantize)
