"""F16: little-endian float16, a block is one number."""

import numpy as np
from numpy.typing import NDArray

from .format import Format

BLOCK = np.dtype([("x", "<f2")])
assert BLOCK.itemsize == 2


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 1), exact."""
    return blocks["x"].astype(np.float32)[:, None]


FORMAT = Format("F16", 1, 1, BLOCK, dequantize)
