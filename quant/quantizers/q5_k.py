"""Q5_K: groups of 32 with a scale and a min of 6 bits each. Algorithm: llama.cpp, ggml-quants.c."""

import numpy as np

from ..cpu.simd import (
    inline,
    kernel,
    load_i8x16,
    shift_left,
    shift_right,
    store_i8x16,
)
from .scales_6bit import HEADER, cut_levels, fit, put_scales
from .super_blocks import LANES, LEVELS, ROWS, SIZE, put, shift_left_4, take
from .words import fill_i8x16, zero_i8x16

BLOCK_BYTES = 176
_TOP = np.float32(31)
_fifth = shift_right("i8", 16, 4)
_next = shift_right("i8", 16, 1)
_last = shift_left("i8", 16, 7)


@inline
def _pack(scratch):
    """The fifth bits, a bit a group in 32 bytes; then two groups in the halves of 32 bytes."""
    levels, rows, four = scratch + LEVELS, scratch + ROWS + 16 * HEADER, fill_i8x16(15)
    for i in range(0, 16 * 32, 16):
        bits = zero_i8x16()
        for group in range(8):
            level = load_i8x16(levels + 16 * 32 * group + i)
            bits = _next(bits) | _last(_fifth(level))
        store_i8x16(rows + i, bits)
        for pair in range(4):
            at = levels + 16 * 64 * pair + i
            high = shift_left_4(load_i8x16(at + 16 * 32))
            store_i8x16(rows + 16 * 32 * (1 + pair) + i, (load_i8x16(at) & four) | high)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """float32 rows at `values` to blocks at `out`, by the `importance` of the columns (or 0)."""
    count = num_rows * (columns // SIZE)
    for first in range(0, count, LANES):
        take(values, importance, out, first, count, columns, BLOCK_BYTES, scratch)
        scale, low = fit(_TOP, np.float32(-0.5), 16, importance, scratch)
        cut_levels(scratch)
        put_scales(scale, low, _TOP, scratch)
        _pack(scratch)
        put(BLOCK_BYTES, scratch)
    return 0
