"""Q3_K: 16 groups of 16 x 3 bits with 6-bit scales; x = d * (s - 32) * (q - 4)."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, crumbs

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
assert BLOCK.itemsize == 110


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256). Bit j of byte i of `hmask` belongs to element 32 j + i.

    Bytes 0-7 of the scales hold the low 4 bits of scales 0-7 (low nibble) and 8-15 (high); of bytes
    8-11, bits 2k and 2k + 1 of byte i are the upper bits of scale 4 k + i.
    """
    packed: NDArray[np.uint8] = blocks["scales"]
    low = np.concatenate([packed[:, :8] & 0x0F, packed[:, :8] >> 4], axis=1)
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    factors = blocks["d"].astype(np.float32)[:, None] * scales.astype(np.float32)
    top = blocks["hmask"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    q = (crumbs(blocks["qs"]) | top.reshape(-1, 256) << 2).astype(np.int8) - np.int8(4)
    return (factors[:, :, None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


FORMAT = Format("Q3_K", 11, 256, BLOCK, dequantize)
