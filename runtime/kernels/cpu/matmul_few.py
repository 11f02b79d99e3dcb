"""Y = W X for a few tokens: each weight row unpacked once, in the first-level cache, for all.

Activations are quantized for the micro kernel of WIDTH tokens (micro.py, quantize.py); the results
go to rows of float32, as the other kernels of a small step want them.
"""

from typing import Any

import numpy as np

from ....quant.cpu.blocks32 import CpuFormat
from ....quant.cpu.simd import (
    LANES,
    fill,
    inline,
    kernel,
    load,
    load_f32,
    load_i64,
    store,
    store_f32,
)
from ....quant.cpu.threads import atomic_add
from ..records import MATMUL, STEP
from .formats import QUANTIZED
from .matmul import share, soft_cap
from .micro import ROWS, make_micro

_load, _store, _fill = load("f32", ROWS), store("f32", ROWS), fill("f32", ROWS)


@inline
def _put_rows(op, row, count, first_token, tokens, results):
    """[WIDTH][ROWS] of `count` rows for `tokens` tokens: bias, factor, residual, soft cap."""
    bias, residual = load_i64(op + MATMUL.bias), load_i64(op + MATMUL.residual)
    cap, factor = load_f32(op + MATMUL.softcap), load_f32(op + MATMUL.factor)
    factors = _fill(factor)
    out, out_stride = load_i64(op + MATMUL.out) + 4 * row, load_i64(op + MATMUL.out_stride)
    for t in range(tokens):
        at = out + (first_token + t) * out_stride
        x = results + t * ROWS * 4
        if count >= ROWS and cap == np.float32(0):
            v = _load(x)
            if bias != 0:
                v = v + _load(bias + 4 * row)
            v = v * factors
            if residual != 0:
                v = v + _load(at)
            _store(at, v)
            continue
        for r in range(min(ROWS, count)):
            value = load_f32(x + 4 * r)
            if bias != 0:
                value += load_f32(bias + 4 * (row + r))
            value *= factor
            if residual != 0:
                value += load_f32(at + 4 * r)
            store_f32(at + 4 * r, soft_cap(value, cap))


def _make_few(fmt: CpuFormat, width: int) -> Any:
    unpack, group = fmt.unpack_row, fmt.group
    multiply, write_rows = make_micro(fmt, width)

    @kernel
    def matmul_few(op, step, thread):
        tokens = load_i64(load_i64(op + MATMUL.count_at))
        num_rows, chunk = load_i64(op + MATMUL.num_rows), load_i64(op + MATMUL.chunk)
        weight, row_bytes = load_i64(op + MATMUL.weight), load_i64(op + MATMUL.row_bytes)
        columns = load_i64(op + MATMUL.columns)
        groups = columns >> 5
        q, a_scale, a_sums = (
            load_i64(op + MATMUL.q),
            load_i64(op + MATMUL.scale),
            load_i64(op + MATMUL.sums),
        )
        q_stride = load_i64(op + MATMUL.q_stride)
        # Scratch: one result, then the rows' scales, minima and bytes.
        out = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        scale_bytes = columns // group * 4
        scales = out + ROWS * LANES * 4
        minima = scales + ROWS * scale_bytes
        tile = minima + ROWS * scale_bytes
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            begin, end, counter = share(op, num_rows, num_threads, thread, turn)
            while True:
                first = begin + atomic_add(counter, chunk)
                if first >= end:
                    break
                for row in range(first, min(end, first + chunk), ROWS):
                    for r in range(min(ROWS, end - row)):
                        unpack(
                            weight + (row + r) * row_bytes,
                            groups,
                            tile + 32 * r,
                            32 * ROWS,
                            scales + r * scale_bytes,
                            minima + r * scale_bytes,
                        )
                    for block in range(0, tokens, width):
                        at = block * q_stride
                        total = multiply(
                            tile,
                            groups,
                            scales,
                            minima,
                            scale_bytes,
                            q + at,
                            a_scale + at // width // 32 * LANES * 4,
                            a_sums + at // width // 16 * LANES * 4,
                            weight + (row + (ROWS if block == 0 else 0)) * row_bytes,
                        )
                        write_rows(total, out)
                        _put_rows(op, row, end - row, block, min(width, tokens - block), out)
        return 0

    return matmul_few


for _name, _format in QUANTIZED.items():
    for _width in sorted({4, 8, LANES}):
        globals()[f"matmul_few{_width}_{_name}"] = _make_few(_format, _width)
