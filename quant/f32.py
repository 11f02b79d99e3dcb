"""F32: little-endian float32, a block is one number."""

import numpy as np
from numpy.typing import NDArray

from .format import Format

BLOCK = np.dtype([("x", "<f4")])
assert BLOCK.itemsize == 4


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 1), as they are."""
    return blocks["x"][:, None]


FORMAT = Format("F32", 0, 1, BLOCK, dequantize)
