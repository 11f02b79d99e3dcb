"""Q4_K: groups of 32 with a scale and a min of 6 bits each. Algorithm: llama.cpp, ggml-quants.c."""

import numpy as np

from ..cpu.simd import inline, kernel, load_i8x16, store_i8x16
from .scales_6bit import HEADER, fit, put_scales
from .super_blocks import LANES, LEVELS, ROWS, SIZE, put, shift_left_4, take

BLOCK_BYTES = 144
_TOP = np.float32(15)


@inline
def _pack(scratch):
    """Two groups in the halves of 32 bytes."""
    for half in range(0, SIZE, 64):
        levels = scratch + LEVELS + 16 * half
        row = scratch + ROWS + 16 * (HEADER + half // 2)
        for i in range(0, 16 * 32, 16):
            high = shift_left_4(load_i8x16(levels + 16 * 32 + i))
            store_i8x16(row + i, load_i8x16(levels + i) | high)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """float32 rows at `values` to blocks at `out`, by the `importance` of the columns (or 0)."""
    count = num_rows * (columns // SIZE)
    for first in range(0, count, LANES):
        take(values, importance, out, first, count, columns, BLOCK_BYTES, scratch)
        scale, low = fit(_TOP, np.float32(-1), 21, importance, scratch)
        put_scales(scale, low, _TOP, scratch)
        _pack(scratch)
        put(BLOCK_BYTES, scratch)
    return 0
