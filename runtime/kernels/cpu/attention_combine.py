"""The pieces of decode attention merged: into a row's activations, or into its lane of a block.

A piece is the maximum m of its scores, the sum l of exp(score - m) and the values weighted so; the
whole is sum(e^(m - top) values) / sum(e^(m - top) l). A sink (gpt-oss) is a piece without values,
whose l is 1. Pieces lie [split][token][head][m, l, 14 of padding, values], float32, the values
filled up to a multiple of 32.
"""

import numpy as np

from ....quant.cpu.simd import (
    LANES,
    exp_f32,
    fill_f32x16,
    inline,
    kernel,
    load_f32,
    load_f32x16,
    load_i64,
    store_f32x16,
    zero_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ..records import COMBINE, SPLIT, STEP
from .lanes import transpose_block
from .quantize import put_row

_LOW = np.float32(-1e30)


@inline
def _merge(op, step, t, start, end, out):
    """Columns start..end of token t to address out."""
    dim, heads = load_i64(op + COMBINE.head_dim), load_i64(op + COMBINE.num_heads)
    room, stride = (dim + 31) // 32 * 32, load_i64(op + COMBINE.split_stride)
    sinks = load_i64(op + COMBINE.sinks)
    position = load_i64(load_i64(step + STEP.positions) + 8 * t)
    last = load_i64(load_i64(step + STEP.ends) + 8 * t)
    window, ahead = load_i64(op + COMBINE.window), load_i64(op + COMBINE.ahead)
    if ahead > 0:
        last = min(last, position + ahead)
    first = max(0, position - window + 1) // SPLIT if window > 0 else 0
    last = last // SPLIT + 1
    for i in range(start, end, 16):
        partial = load_i64(op + COMBINE.partial) + (t * heads + i // dim) * (room + 16) * 4
        top = _LOW
        for s in range(first, last):
            top = max(top, load_f32(partial + s * stride))
        total, acc = np.float32(0), zero_f32x16()
        if sinks != 0:
            sink = load_f32(sinks + 4 * (i // dim))
            top = max(top, sink)
            total = exp_f32(sink - top)
        for s in range(first, last):
            at = partial + s * stride
            c = exp_f32(load_f32(at) - top)
            total += c * load_f32(at + 4)
            acc = acc + load_f32x16(at + 64 + i % dim * 4) * fill_f32x16(c)
        store_f32x16(out + 4 * (i - start), acc * fill_f32x16(np.float32(1) / total))


@kernel
def combine_rows(op, step, thread):
    """Merge and quantize; 256 columns of a token are a piece of work."""
    tokens = load_i64(load_i64(op + COMBINE.count_at))
    columns = load_i64(op + COMBINE.num_heads) * load_i64(op + COMBINE.head_dim)
    parts = (columns + 255) // 256
    x = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        item = atomic_add(load_i64(op + COMBINE.counter), 1)
        if item >= tokens * parts:
            return 0
        t, start = item // parts, item % parts * 256
        end = min(columns, start + 256)
        _merge(op, step, t, start, end, x)
        put_row(op, t, start, end - start, x)


@kernel
def combine_lanes(op, step, thread):
    """Merge the packed tokens, the first of a step in lanes; a head of a block a piece of work.

    Lanes without a token become 0.
    """
    tokens, heads = load_i64(load_i64(op + COMBINE.count_at)), load_i64(op + COMBINE.num_heads)
    dim, columns = load_i64(op + COMBINE.head_dim), load_i64(op + COMBINE.out_stride)
    blocks = (tokens + LANES - 1) // LANES
    x = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        item = atomic_add(load_i64(op + COMBINE.counter), 1)
        if item >= blocks * heads:
            return 0
        block, start = item // heads, item % heads * dim
        for lane in range(LANES):
            t, row = block * LANES + lane, x + lane * dim * 4
            if t < tokens:
                _merge(op, step, t, start, start + dim, row)
            else:
                for i in range(0, dim, 16):
                    store_f32x16(row + 4 * i, zero_f32x16())
        out = load_i64(op + COMBINE.out) + (block * columns + start) * LANES * 4
        for i in range(0, dim, LANES):
            transpose_block(x + 4 * i, dim * 4, out + i * LANES * 4, LANES * 4)
