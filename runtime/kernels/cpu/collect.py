"""Of each column that a matrix product reads: the sum of its squares and of its values.

For importance matrices (runtime/importance_lowering.py). A piece of work is some columns of all the
step's tokens, so that sums don't depend on the number of threads.
"""

import numpy as np

from ....quant.cpu.simd import (
    LANES,
    fma,
    inline,
    kernel,
    load,
    load_f32,
    load_i64,
    store,
    store_f32,
    store_i64,
    zero,
)
from ....quant.cpu.threads import atomic_add
from ..records import COLLECT, COLLECT_PART, STEP

_load, _store, _zero, _fma = load("f32", LANES), store("f32", LANES), zero("f32", LANES), fma(LANES)


@inline
def _total(at):
    total = np.float64(0)
    for lane in range(LANES):
        total += np.float64(load_f32(at + 4 * lane))
    return np.float32(total)


@inline
def _add(op, start, count, first, end, masks, sums, part):
    """Columns from `start` of the blocks first..end, to the sums of a part (an expert, or 0).

    masks: float32 a token, 1 or 0 (an empty lane). sums: room for [2 COLLECT_PART][LANES] float32.
    """
    columns, stride = load_i64(op + COLLECT.columns), load_i64(op + COLLECT.stride)
    for i in range(2 * count):
        _store(sums + i * LANES * 4, _zero())
    for block in range(first, end):
        mask = _load(masks + block * LANES * 4)
        x = load_i64(op + COLLECT.x) + (block * stride + start) * LANES * 4
        for i in range(count):
            v = _load(x + i * LANES * 4) * mask
            at = sums + i * 2 * LANES * 4
            _store(at, _fma(v, v, _load(at)))
            _store(at + LANES * 4, _load(at + LANES * 4) + v)
    to = 4 * (part * columns + start)
    squares, values = load_i64(op + COLLECT.squares) + to, load_i64(op + COLLECT.values) + to
    for i in range(count):
        at = sums + i * 2 * LANES * 4
        store_f32(squares + 4 * i, _total(at))
        store_f32(values + 4 * i, _total(at + LANES * 4))


@kernel
def collect_lanes(op, step, thread):
    """Of a matrix that all tokens meet."""
    columns, blocks = load_i64(op + COLLECT.columns), load_i64(step + STEP.num_blocks)
    valid = load_i64(step + STEP.valid)
    masks = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    for block in range(blocks):
        count = load_i64(valid + 8 * block)
        for lane in range(LANES):
            one = np.float32(1) if lane < count else np.float32(0)
            store_f32(masks + (block * LANES + lane) * 4, one)
    sums = masks + blocks * LANES * 4
    while True:
        start = atomic_add(load_i64(op + COLLECT.counter), COLLECT_PART)
        if start >= columns:
            return 0
        _add(op, start, min(COLLECT_PART, columns - start), 0, blocks, masks, sums, 0)


@kernel
def collect_experts_lanes(op, step, thread):
    """Of the experts' matrices, whose tokens are gathered in slots (route.py).

    Slots that fill up a block repeat the one before them.
    """
    columns, cells = load_i64(op + COLLECT.columns), load_i64(op + COLLECT.cells)
    slots, active = load_i64(op + COLLECT.slots), load_i64(op + COLLECT.active)
    number, size = load_i64(cells), load_i64(cells + 8)
    masks = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    for slot in range(size):
        pair = load_i64(slots + 8 * slot)
        own = slot % LANES == 0 or pair != load_i64(slots + 8 * slot - 8)
        store_f32(masks + 4 * slot, np.float32(1) if own else np.float32(0))
    sums = masks + 4 * size
    while True:
        start = atomic_add(load_i64(op + COLLECT.counter), COLLECT_PART)
        if start >= columns:
            return 0
        for n in range(number):
            expert, first = load_i64(active + 24 * n), load_i64(active + 24 * n + 8)
            end = first + load_i64(active + 24 * n + 16)
            _add(op, start, min(COLLECT_PART, columns - start), first, end, masks, sums, expert)
            if start == 0:
                count = np.float32(0)
                for slot in range(first * LANES, end * LANES):
                    count += load_f32(masks + 4 * slot)
                at = load_i64(op + COLLECT.counts) + 8 * expert
                store_i64(at, load_i64(at) + np.int64(count))
