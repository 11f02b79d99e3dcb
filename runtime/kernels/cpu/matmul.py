"""y = W x for a few tokens: each weight row streamed once from the file's own bytes.

One sequential stream a thread: two rows at once from DRAM fall to a third of the bandwidth. A row
that was just read is in the first-level cache for the other tokens.
"""

from typing import Any

import numpy as np

from ....quant.cpu.simd import (
    exp_f32,
    fill_f32x16,
    fma_f32x16,
    inline,
    kernel,
    load_f32,
    load_f32x16,
    load_i64,
    store_f32,
    store_f32x16,
    sum_f32x16,
    zero_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ....quant.cpu.totals import ROWS, lanes_of, stack, stay_apart, totals
from ..records import MATMUL, STEP
from .formats import EXPAND, QUANTIZED


@inline
def share(op, num_rows, num_threads, thread, turn):
    """(first row, end, counter) of the part that a thread works on in its turn: first its own.

    A thread's part is contiguous, since DRAM gives a long stream half as much again as short
    pieces; who is through with it helps the others with theirs.
    """
    owner = (thread + turn) % num_threads
    size = ((num_rows + num_threads - 1) // num_threads + 7) // 8 * 8  # whole micro kernels
    first = owner * size
    return first, min(num_rows, first + size), load_i64(op + MATMUL.counter) + 8 * owner


@inline
def soft_cap(v, cap):
    """cap * tanh(v / cap); v itself when cap is 0."""
    if cap == np.float32(0):
        return v
    e = exp_f32(np.float32(2) * v / cap)
    return cap * (np.float32(1) - np.float32(2) / (e + np.float32(1)))


@inline
def _put(op, token, row, value):
    bias = load_i64(op + MATMUL.bias)
    at = load_i64(op + MATMUL.out) + token * load_i64(op + MATMUL.out_stride) + 4 * row
    if bias != 0:
        value += load_f32(bias + 4 * row)
    value *= load_f32(op + MATMUL.factor)
    if load_i64(op + MATMUL.residual) != 0:
        value += load_f32(at)
    store_f32(at, soft_cap(value, load_f32(op + MATMUL.softcap)))


@inline
def _put_rows(op, token, row, count, values):
    """The results of up to 16 rows from `row` on."""
    cap = load_f32(op + MATMUL.softcap)
    if count == ROWS and cap == np.float32(0):
        bias = load_i64(op + MATMUL.bias)
        at = load_i64(op + MATMUL.out) + token * load_i64(op + MATMUL.out_stride) + 4 * row
        if bias != 0:
            values = values + load_f32x16(bias + 4 * row)
        values = values * fill_f32x16(load_f32(op + MATMUL.factor))
        if load_i64(op + MATMUL.residual) != 0:
            values = values + load_f32x16(at)
        store_f32x16(at, values)
        return
    some = _some()
    store_f32x16(some, values)
    for r in range(count):
        _put(op, token, row + r, load_f32(some + 4 * r))


_TOKENS = 4  # at most, with the same rows, which lie in the first-level cache
_dots = stack(64 * ROWS * _TOKENS)
_some = stack(4 * ROWS)


def _make_rows(dot_lanes: Any) -> Any:
    @kernel
    def dots_of_rows(
        w, row_bytes, count, groups, q, q_stride, scale, scale_stride, sums, tokens, to
    ):
        # A function of its own, so that all registers are the dot product's: what is done to the
        # results has many constants.
        stay_apart()
        for r in range(count):
            for t in range(tokens):
                x, s = q + t * q_stride, t * scale_stride
                lanes = dot_lanes(w, groups, x, scale + s, sums + s)
                store_f32x16(to + 64 * (t * ROWS + r), lanes)
            w += row_bytes
        return 0

    @kernel
    def matmul_rows(op, step, thread):
        tokens = load_i64(load_i64(op + MATMUL.count_at))
        num_rows, chunk = load_i64(op + MATMUL.num_rows), load_i64(op + MATMUL.chunk)
        weight, row_bytes = load_i64(op + MATMUL.weight), load_i64(op + MATMUL.row_bytes)
        groups = load_i64(op + MATMUL.columns) >> 5
        q, q_stride = load_i64(op + MATMUL.q), load_i64(op + MATMUL.q_stride)
        scale, scale_stride = load_i64(op + MATMUL.scale), load_i64(op + MATMUL.scale_stride)
        sums = load_i64(op + MATMUL.sums)
        dots = _dots()
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            first, end, counter = share(op, num_rows, num_threads, thread, turn)
            while True:
                begin = first + atomic_add(counter, chunk)
                if begin >= end:
                    break
                stop = min(end, begin + chunk)
                for row in range(begin, stop, ROWS):
                    w, count = weight + row * row_bytes, min(ROWS, stop - row)
                    for token in range(0, tokens, _TOKENS):
                        some, s = min(_TOKENS, tokens - token), token * scale_stride
                        dots_of_rows(
                            w, row_bytes, count, groups, q + token * q_stride, q_stride,
                            scale + s, scale_stride, sums + s, some, dots,
                        )  # fmt: skip
                        for t in range(some):
                            _put_rows(op, token + t, row, count, totals(dots + 64 * ROWS * t))
        return 0

    return matmul_rows


def _make_float_rows(expand: Any) -> Any:
    """The same with float32 activations: the exact path, and the float formats."""

    @kernel
    def matmul_float_rows(op, step, thread):
        tokens = load_i64(load_i64(op + MATMUL.count_at))
        num_rows, chunk = load_i64(op + MATMUL.num_rows), load_i64(op + MATMUL.chunk)
        weight, row_bytes = load_i64(op + MATMUL.weight), load_i64(op + MATMUL.row_bytes)
        columns = load_i64(op + MATMUL.columns)
        q, q_stride = load_i64(op + MATMUL.q), load_i64(op + MATMUL.q_stride)
        wide = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            first, end, counter = share(op, num_rows, num_threads, thread, turn)
            while True:
                begin = first + atomic_add(counter, chunk)
                if begin >= end:
                    break
                for row in range(begin, min(end, begin + chunk)):
                    expand(weight + row * row_bytes, columns, wide, wide + 4 * columns)
                    for t in range(tokens):
                        x = q + t * q_stride
                        a, b = zero_f32x16(), zero_f32x16()
                        for i in range(0, columns, 32):
                            a = fma_f32x16(load_f32x16(wide + 4 * i), load_f32x16(x + 4 * i), a)
                            i += 16
                            b = fma_f32x16(load_f32x16(wide + 4 * i), load_f32x16(x + 4 * i), b)
                        _put(op, t, row, sum_f32x16(a + b))
        return 0

    return matmul_float_rows


for _name, _format in QUANTIZED.items():
    globals()[f"matmul_rows_{_name}"] = _make_rows(lanes_of(_format))
for _name, _expand in EXPAND.items():
    globals()[f"matmul_float_rows_{_name}"] = _make_float_rows(_expand)
