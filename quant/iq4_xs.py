"""IQ4_XS: 8 groups of 32 values as IQ4_NL's with 6-bit scales; x = d * (s - 32) * VALUES[q]."""

import numpy as np
from numpy.typing import NDArray

from .format import Format, nibbles
from .iq4_nl import TABLE

BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])
assert BLOCK.itemsize == 136


def dequantize(blocks: NDArray) -> NDArray[np.float32]:
    """Blocks (n,) -> float32 (n, 256): a group is the low, then the high nibbles of 16 bytes.

    Scale i has its low 4 bits in nibble i of `scales_l`, the upper ones in bits 2i and 2i + 1 of
    `scales_h`.
    """
    low = nibbles(blocks["scales_l"], 1)
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3) << 4
    scales = (low | high.astype(np.uint8)).astype(np.int8) - np.int8(32)
    factors = blocks["d"].astype(np.float32)[:, None] * scales.astype(np.float32)
    values = TABLE[nibbles(blocks["qs"], 16)].reshape(-1, 8, 32)
    return (factors[:, :, None] * values).reshape(-1, 256)


FORMAT = Format("IQ4_XS", 23, 256, BLOCK, dequantize)
