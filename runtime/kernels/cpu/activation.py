"""The gated activation, f(gate) * up, quantized for the down projection; and plain quantization.

Both activations are x / (1 + exp(-z)): SiLU with z = x, GELU's tanh form with
z = 2 sqrt(2 / pi) (x + 0.044715 x^3).
"""

import numpy as np

from ....quant.cpu.simd import (
    LANES,
    exp_f32x16,
    exp_lanes,
    fill,
    fill_f32x16,
    inline,
    kernel,
    load,
    load_f32x16,
    load_i64,
    store,
    store_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ..records import ACTIVATE, STEP
from .lanes import put_lanes
from .quantize import put_row

_PART = 512  # columns a piece of work (rows)
_CUBIC, _FACTOR = np.float32(0.044715), np.float32(-1.5957691216057308)  # -2 sqrt(2 / pi)
_load, _store, _fill = load("f32", LANES), store("f32", LANES), fill("f32", LANES)


@inline
def _gate(x, up, kind):
    one = fill_f32x16(np.float32(1))
    if kind == 0:
        z = x * fill_f32x16(np.float32(-1))
    else:
        z = x * (one + x * x * fill_f32x16(_CUBIC)) * fill_f32x16(_FACTOR)
    return x * up / (one + exp_f32x16(z))


@inline
def _gate_lanes(x, up, kind):
    one = _fill(np.float32(1))
    if kind == 0:
        z = x * _fill(np.float32(-1))
    else:
        z = x * (one + x * x * _fill(_CUBIC)) * _fill(_FACTOR)
    return x * up / (one + exp_lanes(z))


@kernel
def activate_rows(op, step, thread):
    """_PART columns of a token a piece of work."""
    tokens = load_i64(load_i64(op + ACTIVATE.count_at))
    columns, stride = load_i64(op + ACTIVATE.columns), load_i64(op + ACTIVATE.stride)
    kind = load_i64(op + ACTIVATE.kind)
    parts = (columns + _PART - 1) // _PART
    y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        item = atomic_add(load_i64(op + ACTIVATE.counter), 1)
        if item >= tokens * parts:
            return 0
        t, start = item // parts, item % parts * _PART
        count = min(_PART, columns - start)
        gate = load_i64(op + ACTIVATE.gate) + t * stride + 4 * start
        up = load_i64(op + ACTIVATE.up) + t * stride + 4 * start
        for i in range(0, count, 16):
            v = _gate(load_f32x16(gate + 4 * i), load_f32x16(up + 4 * i), kind)
            store_f32x16(y + 4 * i, v)
        put_row(op, t, start, count, y)


@kernel
def activate_lanes(op, step, thread):
    """_PART columns of a block of tokens a piece of work; without `up`, quantize only."""
    blocks = (load_i64(load_i64(op + ACTIVATE.count_at)) + LANES - 1) // LANES
    columns, stride = load_i64(op + ACTIVATE.columns), load_i64(op + ACTIVATE.stride)
    kind = load_i64(op + ACTIVATE.kind)
    parts = (columns + _PART - 1) // _PART
    y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        item = atomic_add(load_i64(op + ACTIVATE.counter), 1)
        if item >= blocks * parts:
            return 0
        block, first = item // parts, item % parts * _PART
        gate = load_i64(op + ACTIVATE.gate) + block * stride * LANES * 4
        up = load_i64(op + ACTIVATE.up)
        for start in range(first, min(columns, first + _PART), 32):
            at = start * LANES * 4
            if up == 0:
                put_lanes(op, block, start, gate + at)
                continue
            u = up + block * stride * LANES * 4 + at
            for i in range(0, 32 * LANES * 4, LANES * 4):
                _store(y + i, _gate_lanes(_load(gate + at + i), _load(u + i), kind))
            put_lanes(op, block, start, y)
