"""Memory that a kernel works in."""

import numpy as np
from numpy.typing import NDArray

_NUM_BYTES = 1 << 16
_ALIGNMENT = 64


def scratch() -> tuple[NDArray[np.uint8], int]:
    """64 KiB, to be kept while they are used, and the address of a cache line at their begin."""
    memory = np.empty(_NUM_BYTES + _ALIGNMENT, np.uint8)
    return memory, -(-memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
