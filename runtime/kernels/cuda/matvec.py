"""Matrices times the vectors of 1 to 8 tokens, read once from memory.

out[token][row] = softcap(factor * (the row times x + bias) + old), where softcap(v) is
cap * tanh(v / cap), and old what is there already (with `residual`).

A warp has a few rows at once: its threads read a piece of each (quant/cuda/rows.py) and multiply it
with the tokens' columns; `split` warps share rows. Each thread keeps `ahead` pieces a row under
way, the first of them asked for before the input is there. Kernels are made when asked for by name:
q4_k_1_r2_a1_s1_b8 has one token, two rows and one piece, one warp a row, and registers for 8
blocks at once.
"""

import math
import re
from typing import Any

import numpy as np

from ....quant.cuda.memory import (
    load_f32,
    load_shared_f32,
    prefetch,
    shared,
    store_f32,
    store_shared_f32,
)
from ....quant.cuda.row_formats import ROW_FORMATS
from ....quant.cuda.rows import RowFormat
from ....quant.cuda.simt import (
    Kernel,
    barrier,
    block_x,
    exp2,
    f32_of,
    i32,
    inline,
    kernel,
    let_next_start,
    put,
    put_part,
    reciprocal,
    take,
    thread,
    u64,
    wait_for_inputs,
    warp_sum,
    zero,
)
from .launches.matvec import FETCHES, THREADS, WARPS

_TWO_BY_LN2 = np.float32(2 / math.log(2))


@inline
def product(a, b):
    """a * b of numbers below 2^32, which takes one instruction."""
    return u64(i32(a)) * u64(i32(b))


@inline
def soft_capped(v, cap):
    """cap * tanh(v / cap); v where cap is 0."""
    if cap != f32_of(0):
        power = exp2(v * reciprocal(cap) * _TWO_BY_LN2)
        return cap * (f32_of(1) - f32_of(2) * reciprocal(power + f32_of(1)))
    return v


def _make(form: RowFormat, tokens: int, rows: int, ahead: int, split: int, blocks: int) -> Kernel:
    loaded = f"i32x{form.loaded * rows * ahead}"
    prepared = f"i32x{form.prepared * rows}"
    no_loads, put_load = zero(loaded), put_part(loaded, form.loaded)
    take_load = take(loaded, form.loaded)
    none_made, put_made = zero(prepared), put_part(prepared, form.prepared)
    take_made = take(prepared, form.prepared)
    results = rows * tokens
    no_sums, put_sum = zero(f"f32x{results}"), put(f"f32x{results}")
    sums = shared(4 * WARPS * results)
    columns_bits = form.columns.bit_length() - 1
    load, prepare, take_input, dot = form.load, form.prepare, form.take_input, form.dot
    block_rows = WARPS // split * rows
    stride = 32 * split  # pieces of a step

    @kernel(block=THREADS, min_blocks=blocks)
    def matvec(
        weight0, rows0, out0, out_stride0, bias0, blocks0,
        weight1, rows1, out1, out_stride1, bias1, blocks1,
        weight2, rows2, out2, out_stride2, bias2, blocks2,
        row_bytes, columns, rounds, fetch,
        x, x_stride, scales, scales_stride, factor: float, residual, softcap: float,
    ):  # fmt: skip
        """Blocks before blocks0 have rows of the first matrix, and so on."""
        let_next_start()
        block = block_x()
        weight, count, out, out_stride, bias = weight0, rows0, out0, out_stride0, bias0
        if block >= blocks1:
            block = block - blocks1
            weight, count, out, out_stride, bias = weight2, rows2, out2, out_stride2, bias2
        elif block >= blocks0:
            block = block - blocks0
            weight, count, out, out_stride, bias = weight1, rows1, out1, out_stride1, bias1
        lane, warp = thread() & 31, (thread() >> 5) & (WARPS - 1)
        first = block * block_rows
        row = first + warp // split * rows  # of the warp
        begin = warp % split * 32 + lane
        pieces = u64(i32(columns >> columns_bits))
        ring = no_loads()
        for slot in range(ahead):
            if begin + slot * stride < pieces:
                for r in range(rows):
                    at = weight + product(min(row + r, count - 1), row_bytes)
                    ring = put_load(ring, slot * rows + r, load(at, columns, begin + slot * stride))
        if fetch != 0:
            ask = weight + product(first, row_bytes)
            for k in range(FETCHES):
                at = (k * THREADS + thread()) * fetch
                if at < product(min(count - first, block_rows), row_bytes):
                    prefetch(ask + at)
        wait_for_inputs()
        # The thread that will write a result asks for what it needs to that end.
        token, mine = thread() // block_rows, first + thread() % block_rows
        writes = token < tokens and mine < count
        target = out + product(token, out_stride) + mine * 4
        more, old = f32_of(0), f32_of(0)
        if writes:
            if bias != 0:
                more = load_f32(bias + mine * 4)
            if residual != 0:
                old = load_f32(target)
        acc = no_sums()
        for turn in range(rounds):
            for slot in range(ahead):
                piece = (turn * ahead + slot) * stride + begin
                if piece < pieces:
                    made = none_made()
                    for r in range(rows):
                        made = put_made(made, r, prepare(take_load(ring, slot * rows + r), piece))
                    later = piece + stride * ahead
                    if later < pieces:
                        for r in range(rows):
                            at = weight + product(min(row + r, count - 1), row_bytes)
                            ring = put_load(ring, slot * rows + r, load(at, columns, later))
                    for t in range(tokens):
                        given = take_input(x + t * x_stride, scales + t * scales_stride, piece)
                        for r in range(rows):
                            k = t * rows + r
                            acc = put_sum(acc, k, acc[k] + dot(take_made(made, r), given))
        for k in range(results):
            total = warp_sum(acc[k])
            if lane == 0:
                store_shared_f32(sums() + (warp * results + k) * 4, total)
        barrier()
        if writes:
            group, r = thread() % block_rows // rows, thread() % rows
            total = f32_of(0)
            for part in range(split):
                at = (group * split + part) * results + token * rows + r
                total += load_shared_f32(sums() + at * 4)
            store_f32(target, soft_capped(factor * (total + more) + old, softcap))

    return matvec


def __getattr__(name: str) -> Any:
    """The kernel of a name."""
    found = re.fullmatch(r"(\w+)_([1248])_r([124])_a([124])_s([124])_b(\d+)", name)
    if not found or found[1] not in ROW_FORMATS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = _make(ROW_FORMATS[found[1]], *map(int, found.groups()[1:]))
    return made
