"""LoRA adapters: each token's A x times its own scale, between the two matmuls."""

import numpy as np

from ....quant.cpu.simd import LANES, kernel, load, load_f32, load_i64, store, store_f32
from ....quant.cpu.threads import atomic_add
from ..records import ADAPT

_load, _store = load("f32", LANES), store("f32", LANES)


@kernel
def adapt_rows(op, step, thread):
    """In place, a token a piece of work; without a scale nothing is left of what was there."""
    count, columns = load_i64(load_i64(op + ADAPT.count_at)), load_i64(op + ADAPT.columns)
    while True:
        t = atomic_add(load_i64(op + ADAPT.counter), 1)
        if t >= count:
            return 0
        x = load_i64(op + ADAPT.x) + t * load_i64(op + ADAPT.stride)
        scale = load_f32(load_i64(op + ADAPT.scales) + 4 * t)
        for i in range(columns):
            value = np.float32(0)
            if scale != np.float32(0):
                value = load_f32(x + 4 * i) * scale
            store_f32(x + 4 * i, value)


@kernel
def adapt_lanes(op, step, thread):
    """The same of a block of tokens."""
    blocks = (load_i64(load_i64(op + ADAPT.count_at)) + LANES - 1) // LANES
    columns = load_i64(op + ADAPT.columns)
    while True:
        block = atomic_add(load_i64(op + ADAPT.counter), 1)
        if block >= blocks:
            return 0
        x = load_i64(op + ADAPT.x) + block * load_i64(op + ADAPT.stride) * LANES * 4
        scales = _load(load_i64(op + ADAPT.scales) + block * LANES * 4)
        for i in range(columns):
            at = x + i * LANES * 4
            _store(at, _load(at) * scales)
