"""Each chosen expert's own matrix times the tokens that chose it, in rows; and their sums.

The rows of all chosen experts are one list of work: a thread's part of it is contiguous and each
row is streamed once, as in matmul.py, whatever the number of tokens that want it.
"""

from typing import Any

from ....quant.cpu.simd import (
    LANES,
    fill,
    fill_f32x16,
    fma_f32x16,
    inline,
    kernel,
    load,
    load_f32,
    load_f32x16,
    load_i64,
    store,
    store_f32,
    store_f32x16,
    sum_f32x16,
    zero_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ..records import EXPERTS, MERGE, STEP
from .formats import EXPAND, QUANTIZED
from .lanes import transpose_block
from .matmul import share

_PART = 256  # columns a piece of work of the sums
_load, _store, _fill = load("f32", LANES), store("f32", LANES), fill("f32", LANES)


def _make_rows(dot_row: Any) -> Any:
    @kernel
    def experts_rows(op, step, thread):
        active, slots = load_i64(op + EXPERTS.active), load_i64(op + EXPERTS.slots)
        num_rows, chunk = load_i64(op + EXPERTS.num_rows), load_i64(op + EXPERTS.chunk)
        total = num_rows * load_i64(load_i64(op + EXPERTS.cells))
        row_bytes = load_i64(op + EXPERTS.row_bytes)
        groups, divide = load_i64(op + EXPERTS.columns) >> 5, load_i64(op + EXPERTS.divide)
        q, q_stride = load_i64(op + EXPERTS.q), load_i64(op + EXPERTS.q_stride)
        scale, scale_stride = load_i64(op + EXPERTS.scale), load_i64(op + EXPERTS.scale_stride)
        sums = load_i64(op + EXPERTS.sums)
        out, out_stride = load_i64(op + EXPERTS.out), load_i64(op + EXPERTS.out_stride)
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            first, end, counter = share(op, total, num_threads, thread, turn)
            while True:
                at = first + atomic_add(counter, chunk)
                if at >= end:
                    break
                stop = min(end, at + chunk)
                while at < stop:  # once, or twice where an expert's rows end
                    n = at // num_rows
                    row = at - n * num_rows
                    some = min(stop - at, num_rows - row)
                    at += some
                    expert, first_slot = load_i64(active + 24 * n), load_i64(active + 24 * n + 8)
                    end_slot = first_slot + load_i64(active + 24 * n + 16)
                    w = load_i64(op + EXPERTS.weight) + row * row_bytes
                    w += expert * load_i64(op + EXPERTS.expert_bytes)
                    bias = load_i64(op + EXPERTS.bias)
                    if bias != 0:
                        bias += 4 * (expert * num_rows + row)
                    for r in range(some):
                        for slot in range(first_slot, end_slot):
                            pair = load_i64(slots + 8 * slot)
                            t = pair // divide
                            s = t * scale_stride
                            v = dot_row(w, groups, q + t * q_stride, scale + s, sums + s)
                            if bias != 0:
                                v += load_f32(bias + 4 * r)
                            store_f32(out + pair * out_stride + 4 * (row + r), v)
                        w += row_bytes
        return 0

    return experts_rows


def _make_float_rows(expand: Any) -> Any:
    """The same with float32 activations: the exact path, and the float formats."""

    @inline
    def dot(x, wide, columns):
        a, b = zero_f32x16(), zero_f32x16()
        for i in range(0, columns, 32):
            a = fma_f32x16(load_f32x16(wide + 4 * i), load_f32x16(x + 4 * i), a)
            b = fma_f32x16(load_f32x16(wide + 4 * i + 64), load_f32x16(x + 4 * i + 64), b)
        return sum_f32x16(a + b)

    @kernel
    def experts_float_rows(op, step, thread):
        active, slots = load_i64(op + EXPERTS.active), load_i64(op + EXPERTS.slots)
        num_rows, chunk = load_i64(op + EXPERTS.num_rows), load_i64(op + EXPERTS.chunk)
        total = num_rows * load_i64(load_i64(op + EXPERTS.cells))
        row_bytes, bias = load_i64(op + EXPERTS.row_bytes), load_i64(op + EXPERTS.bias)
        columns, divide = load_i64(op + EXPERTS.columns), load_i64(op + EXPERTS.divide)
        q, q_stride = load_i64(op + EXPERTS.q), load_i64(op + EXPERTS.q_stride)
        out, out_stride = load_i64(op + EXPERTS.out), load_i64(op + EXPERTS.out_stride)
        wide = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            first, end, counter = share(op, total, num_threads, thread, turn)
            while True:
                begin = first + atomic_add(counter, chunk)
                if begin >= end:
                    break
                for at in range(begin, min(end, begin + chunk)):
                    n = at // num_rows
                    row = at - n * num_rows
                    expert, first_slot = load_i64(active + 24 * n), load_i64(active + 24 * n + 8)
                    end_slot = first_slot + load_i64(active + 24 * n + 16)
                    w = load_i64(op + EXPERTS.weight) + row * row_bytes
                    w += expert * load_i64(op + EXPERTS.expert_bytes)
                    expand(w, columns, wide, wide + 4 * columns)
                    for slot in range(first_slot, end_slot):
                        pair = load_i64(slots + 8 * slot)
                        v = dot(q + pair // divide * q_stride, wide, columns)
                        if bias != 0:
                            v += load_f32(bias + 4 * (expert * num_rows + row))
                        store_f32(out + pair * out_stride + 4 * row, v)
        return 0

    return experts_float_rows


@inline
def _sum(y, weights, token, used, columns, column):
    """16 columns of a token's experts by their weights, in order of rank."""
    acc = zero_f32x16()
    for p in range(token * used, (token + 1) * used):
        w = fill_f32x16(load_f32(weights + 4 * p))
        acc = fma_f32x16(w, load_f32x16(y + 4 * (p * columns + column)), acc)
    return acc


@kernel
def merge_rows(op, step, thread):
    """_PART columns of a token a piece of work."""
    tokens = load_i64(load_i64(op + MERGE.count_at))
    y, used = load_i64(op + MERGE.y), load_i64(op + MERGE.used)
    weights, columns = load_i64(op + MERGE.weights), load_i64(op + MERGE.columns)
    factor, residual = fill_f32x16(load_f32(op + MERGE.factor)), load_i64(op + MERGE.residual)
    parts = (columns + _PART - 1) // _PART
    while True:
        item = atomic_add(load_i64(op + MERGE.counter), 1)
        if item >= tokens * parts:
            return 0
        t, start = item // parts, item % parts * _PART
        out = load_i64(op + MERGE.out) + 4 * t * columns
        for i in range(start, min(columns, start + _PART), 16):
            v = _sum(y, weights, t, used, columns, i) * factor
            if residual != 0:
                v = v + load_f32x16(out + 4 * i)
            store_f32x16(out + 4 * i, v)


@kernel
def merge_lanes(op, step, thread):
    """_PART columns of a block of tokens a piece of work; an empty lane has the last token's."""
    blocks = (load_i64(load_i64(op + MERGE.count_at)) + LANES - 1) // LANES
    y, used = load_i64(op + MERGE.y), load_i64(op + MERGE.used)
    weights, columns = load_i64(op + MERGE.weights), load_i64(op + MERGE.columns)
    factor, residual = _fill(load_f32(op + MERGE.factor)), load_i64(op + MERGE.residual)
    parts = (columns + _PART - 1) // _PART
    rows = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    turned = rows + LANES * 16 * 4
    while True:
        item = atomic_add(load_i64(op + MERGE.counter), 1)
        if item >= blocks * parts:
            return 0
        block, start = item // parts, item % parts * _PART
        valid = load_i64(load_i64(step + STEP.valid) + 8 * block)
        out = load_i64(op + MERGE.out) + block * columns * LANES * 4
        for i in range(start, min(columns, start + _PART), 16):
            for lane in range(LANES):
                t = block * LANES + min(lane, valid - 1)
                store_f32x16(rows + 64 * lane, _sum(y, weights, t, used, columns, i))
            for j in range(0, 16, LANES):
                transpose_block(rows + 4 * j, 64, turned, LANES * 4)
                for k in range(LANES):
                    at = out + (i + j + k) * LANES * 4
                    v = _load(turned + k * LANES * 4) * factor
                    if residual != 0:
                        v = v + _load(at)
                    _store(at, v)


for _name, _format in QUANTIZED.items():
    globals()[f"experts_rows_{_name}"] = _make_rows(_format.dot_row)
for _name, _expand in EXPAND.items():
    globals()[f"experts_float_rows_{_name}"] = _make_float_rows(_expand)
