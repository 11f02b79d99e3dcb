"""The non-linearity of a feed-forward block, quantized for the down projection; and quantization.

All are f(gate) * g(up): SiLU, GELU's tanh form and gpt-oss's are x / (1 + exp(-z)), where z is x,
2 sqrt(2 / pi) (x + 0.044715 x^3) or 1.702 x.
"""

from typing import Any

import numpy as np

from ....quant.cpu.simd import (
    LANES,
    call,
    exp,
    fill,
    inline,
    kernel,
    load,
    load_f32,
    load_f32x16,
    load_i64,
    maximum,
    store,
    store_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ....quant.cpu.vector import vec
from ..records import ACTIVATE, STEP
from .lanes import put_lanes
from .quantize import put_row

_PART = 512  # columns a piece of work (rows)
_CUBIC, _FACTOR = np.float32(0.044715), np.float32(-1.5957691216057308)  # -2 sqrt(2 / pi)
_LIMIT, _STEEP = np.float32(7), np.float32(-1.702)
_load, _store = load("f32", LANES), store("f32", LANES)


def _make_gate(count: int) -> tuple[Any, Any]:
    """(f(x, up, kind), sigmoid(x)) of `count` lanes; kinds as models/architecture.py's."""
    splat, power, largest = fill("f32", count), exp(count), maximum(count)
    least = call(f"llvm.minnum.v{count}f32", vec("f32", count), 2, ("nnan",))

    @inline
    def gate(x, up, kind):
        one = splat(np.float32(1))
        if kind == 2 or kind == 3:
            r = largest(x, splat(np.float32(0)))
            return r * up if kind == 2 else r * r * up
        if kind == 0:
            z = x * splat(np.float32(-1))
        elif kind == 1:
            z = x * (one + x * x * splat(_CUBIC)) * splat(_FACTOR)
        else:
            x = least(x, splat(_LIMIT))
            up = one + least(largest(up, splat(-_LIMIT)), splat(_LIMIT))
            z = x * splat(_STEEP)
        return x * up / (one + power(z))

    @inline
    def sigmoid(x):
        one = splat(np.float32(1))
        return one / (one + power(x * splat(np.float32(-1))))

    return gate, sigmoid


_fill16, _fill = fill("f32", 16), fill("f32", LANES)
_gate, _sigmoid = _make_gate(16)
_gate_lanes, _sigmoid_lanes = _make_gate(LANES)


@kernel
def activate_rows(op, step, thread):
    """_PART columns of a token a piece of work; without `up`, `alone` or quantize only."""
    tokens = load_i64(load_i64(op + ACTIVATE.count_at))
    columns, stride = load_i64(op + ACTIVATE.columns), load_i64(op + ACTIVATE.stride)
    kind, alone = load_i64(op + ACTIVATE.kind), load_i64(op + ACTIVATE.alone)
    weights = load_i64(op + ACTIVATE.token_gate)
    parts = (columns + _PART - 1) // _PART
    y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    one = _fill16(np.float32(1))
    while True:
        item = atomic_add(load_i64(op + ACTIVATE.counter), 1)
        if item >= tokens * parts:
            return 0
        t, start = item // parts, item % parts * _PART
        count = min(_PART, columns - start)
        gate = load_i64(op + ACTIVATE.gate) + t * stride + 4 * start
        up = load_i64(op + ACTIVATE.up)
        if up != 0:
            up += t * stride + 4 * start
            for i in range(0, count, 16):
                v = _gate(load_f32x16(gate + 4 * i), load_f32x16(up + 4 * i), kind)
                store_f32x16(y + 4 * i, v)
        elif alone != 0:
            for i in range(0, count, 16):
                store_f32x16(y + 4 * i, _gate(load_f32x16(gate + 4 * i), one, kind))
        else:
            for i in range(0, count, 16):
                store_f32x16(y + 4 * i, load_f32x16(gate + 4 * i))
        if weights != 0:
            s = _sigmoid(_fill16(load_f32(weights + 4 * t)))
            for i in range(0, count, 16):
                store_f32x16(y + 4 * i, load_f32x16(y + 4 * i) * s)
        put_row(op, t, start, count, y)


@kernel
def activate_lanes(op, step, thread):
    """_PART columns of a block of tokens a piece of work; without `up`, as above."""
    blocks = (load_i64(load_i64(op + ACTIVATE.count_at)) + LANES - 1) // LANES
    columns, stride = load_i64(op + ACTIVATE.columns), load_i64(op + ACTIVATE.stride)
    kind, alone = load_i64(op + ACTIVATE.kind), load_i64(op + ACTIVATE.alone)
    weights = load_i64(op + ACTIVATE.token_gate)
    parts = (columns + _PART - 1) // _PART
    y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    one = _fill(np.float32(1))
    while True:
        item = atomic_add(load_i64(op + ACTIVATE.counter), 1)
        if item >= blocks * parts:
            return 0
        block, first = item // parts, item % parts * _PART
        gate = load_i64(op + ACTIVATE.gate) + block * stride * LANES * 4
        up = load_i64(op + ACTIVATE.up)
        for start in range(first, min(columns, first + _PART), 32):
            at = start * LANES * 4
            if up == 0 and alone == 0:
                put_lanes(op, block, start, gate + at)
                continue
            u = up + block * stride * LANES * 4 + at
            for i in range(0, 32 * LANES * 4, LANES * 4):
                v = one if up == 0 else _load(u + i)
                _store(y + i, _gate_lanes(_load(gate + at + i), v, kind))
            if weights != 0:
                s = _sigmoid_lanes(_load(weights + block * LANES * 4))
                for i in range(0, 32 * LANES * 4, LANES * 4):
                    _store(y + i, _load(y + i) * s)
            put_lanes(op, block, start, y)
