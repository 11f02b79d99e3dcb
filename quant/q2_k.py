"""Q2_K: 16 groups of 16 x 2 bits with 4-bit scales and minima; x = d * s * q - dmin * m."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, crumbs

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
assert BLOCK.itemsize == 84


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256). A byte of `scales`: scale low, minimum high."""
    packed: NDArray[np.uint8] = blocks["scales"]
    d, dmin = (blocks[name].astype(np.float32)[:, None] for name in ("d", "dmin"))
    scales: NDArray[np.float32] = (d * (packed & 0x0F).astype(np.float32))[:, :, None]
    minima: NDArray[np.float32] = (dmin * (packed >> 4).astype(np.float32))[:, :, None]
    q = crumbs(blocks["qs"]).reshape(-1, 16, 16).astype(np.float32)
    return (scales * q - minima).reshape(-1, 256)


FORMAT = Format("Q2_K", 10, 256, BLOCK, dequantize)
