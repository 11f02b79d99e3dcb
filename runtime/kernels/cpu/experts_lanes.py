"""Each chosen expert's own matrix times the tokens that chose it, LANES of them side by side.

An expert's tokens fill blocks of their own (route.py): its rows are unpacked once for all of them.
"""

from typing import Any

from ....quant.cpu.blocks32 import CpuFormat
from ....quant.cpu.simd import (
    LANES,
    inline,
    kernel,
    load,
    load_f32,
    load_i32,
    load_i64,
    load_splat,
    store,
    store_f32,
    store_i32,
    store_i64,
)
from ....quant.cpu.threads import atomic_add
from ..records import EXPERTS, REGROUP, STEP, TILE_ROWS
from .formats import EXPAND, QUANTIZED
from .matmul import share
from .matmul_lanes import float_step
from .micro import ROWS, make_micro, make_write_rows, write, zero_floats

_load, _store, _splat = load("f32", LANES), store("f32", LANES), load_splat("f32", LANES)
_load_rows, _store_rows = load("f32", ROWS), store("f32", ROWS)
_write_rows = make_write_rows(LANES)


@inline
def _regroup(source, words, block, lanes, target):
    """A block of `words` words a token, gathered: `lanes` holds each lane's (block, lane)."""
    if source == 0:
        return
    out = target + block * words * LANES * 4
    for w in range(words):
        for lane in range(LANES):
            at = load_i64(lanes + 16 * lane) * words + w
            at = source + (at * LANES + load_i64(lanes + 16 * lane + 8)) * 4
            store_i32(out + (w * LANES + lane) * 4, load_i32(at))


@kernel
def regroup(op, step, thread):
    """A block of slots a piece of work."""
    blocks = load_i64(load_i64(op + REGROUP.count_at)) // LANES
    columns, divide = load_i64(op + REGROUP.columns), load_i64(op + REGROUP.divide)
    slots = load_i64(op + REGROUP.slots)
    natural, plain = load_i64(op + REGROUP.natural), load_i64(op + REGROUP.plain)
    scale, sums = load_i64(op + REGROUP.scale), load_i64(op + REGROUP.sums)
    lanes = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        block = atomic_add(load_i64(op + REGROUP.counter), 1)
        if block >= blocks:
            return 0
        for lane in range(LANES):
            t = load_i64(slots + 8 * (block * LANES + lane)) // divide
            store_i64(lanes + 16 * lane, t // LANES)
            store_i64(lanes + 16 * lane + 8, t % LANES)
        _regroup(natural, columns >> 2, block, lanes, load_i64(op + REGROUP.to_natural))
        _regroup(scale, columns >> 5, block, lanes, load_i64(op + REGROUP.to_scale))
        _regroup(sums, columns >> 4, block, lanes, load_i64(op + REGROUP.to_sums))
        _regroup(plain, columns, block, lanes, load_i64(op + REGROUP.to_plain))


@inline
def _finish(op, total, bias, row, count, block, results):
    """Bias, and `count` (at most ROWS) x LANES results into place; `bias`: the expert's row 0's."""
    out, out_stride = load_i64(op + EXPERTS.out), load_i64(op + EXPERTS.out_stride)
    if load_i64(op + EXPERTS.by_pair) == 0:
        write(total, results)
        out += (block * out_stride + row) * LANES * 4
        for r in range(min(ROWS, count)):
            v = _load(results + r * LANES * 4)
            if bias != 0:
                v = v + _splat(bias + 4 * (row + r))
            _store(out + r * LANES * 4, v)
        return
    _write_rows(total, results)
    slots = load_i64(op + EXPERTS.slots) + 8 * block * LANES
    for lane in range(LANES):
        at = out + load_i64(slots + 8 * lane) * out_stride + 4 * row
        x = results + lane * ROWS * 4
        if count >= ROWS:
            v = _load_rows(x)
            if bias != 0:
                v = v + _load_rows(bias + 4 * row)
            _store_rows(at, v)
            continue
        for r in range(count):
            value = load_f32(x + 4 * r)
            if bias != 0:
                value += load_f32(bias + 4 * (row + r))
            store_f32(at + 4 * r, value)


@inline
def _expert(op, tile_number):
    """(row, first block, end, weights, bias) of a tile: of TILE_ROWS rows of an active expert."""
    num_rows = load_i64(op + EXPERTS.num_rows)
    tiles = (num_rows + TILE_ROWS - 1) // TILE_ROWS
    n = tile_number // tiles
    active = load_i64(op + EXPERTS.active) + 24 * n
    expert, first = load_i64(active), load_i64(active + 8)
    weight = load_i64(op + EXPERTS.weight) + expert * load_i64(op + EXPERTS.expert_bytes)
    bias = load_i64(op + EXPERTS.bias)
    if bias != 0:
        bias += 4 * expert * num_rows
    row = (tile_number - n * tiles) * TILE_ROWS
    return row, first, first + load_i64(active + 16), weight, bias


@inline
def _num_tiles(op):
    tiles = (load_i64(op + EXPERTS.num_rows) + TILE_ROWS - 1) // TILE_ROWS
    return tiles * load_i64(load_i64(op + EXPERTS.cells))


def _make_lanes(fmt: CpuFormat) -> Any:
    unpack, group = fmt.unpack_row, fmt.group
    multiply = make_micro(fmt, LANES).multiply

    @kernel
    def experts_lanes(op, step, thread):
        num_rows, row_bytes = load_i64(op + EXPERTS.num_rows), load_i64(op + EXPERTS.row_bytes)
        columns, q_stride = load_i64(op + EXPERTS.columns), load_i64(op + EXPERTS.q_stride)
        groups = columns >> 5
        q, a_scale, a_sums = (
            load_i64(op + EXPERTS.q),
            load_i64(op + EXPERTS.scale),
            load_i64(op + EXPERTS.sums),
        )
        # Scratch: one result, then the tile's scales, minima and bytes.
        results = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        scale_bytes = columns // group * 4
        scales = results + ROWS * LANES * 4
        minima = scales + TILE_ROWS * scale_bytes
        tile = minima + TILE_ROWS * scale_bytes
        total_tiles = _num_tiles(op)
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            begin, end, counter = share(op, total_tiles, num_threads, thread, turn)
            while True:
                number = begin + atomic_add(counter, 1)
                if number >= end:
                    break
                first, first_block, end_block, weight, bias = _expert(op, number)
                weight += first * row_bytes
                some = min(TILE_ROWS, num_rows - first)
                for r in range(some):
                    unpack(
                        weight + r * row_bytes,
                        groups,
                        tile + r // ROWS * ROWS * columns + r % ROWS * 32,
                        32 * ROWS,
                        scales + r * scale_bytes,
                        minima + r * scale_bytes,
                    )
                for block in range(first_block, end_block):
                    at = block * q_stride * LANES
                    for r in range(0, some, ROWS):
                        soon = r + (TILE_ROWS if block == first_block else 0)
                        total = multiply(
                            tile + r * columns,
                            groups,
                            scales + r * scale_bytes,
                            minima + r * scale_bytes,
                            scale_bytes,
                            q + at,
                            a_scale + at // 8,
                            a_sums + at // 4,
                            weight + soon * row_bytes,
                        )
                        _finish(op, total, bias, first + r, some - r, block, results)
        return 0

    return experts_lanes


def _make_float_lanes(expand: Any) -> Any:
    """The same with float32 activations, [columns][LANES]."""

    @kernel
    def experts_float_lanes(op, step, thread):
        num_rows, row_bytes = load_i64(op + EXPERTS.num_rows), load_i64(op + EXPERTS.row_bytes)
        columns = load_i64(op + EXPERTS.columns)
        q, q_stride = load_i64(op + EXPERTS.q), load_i64(op + EXPERTS.q_stride)
        results = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        wide = results + ROWS * LANES * 4
        spare = wide + TILE_ROWS * columns * 4
        total_tiles = _num_tiles(op)
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            begin, end, counter = share(op, total_tiles, num_threads, thread, turn)
            while True:
                number = begin + atomic_add(counter, 1)
                if number >= end:
                    break
                first, first_block, end_block, weight, bias = _expert(op, number)
                some = min(TILE_ROWS, num_rows - first)
                for r in range(some):
                    w = weight + (first + r) * row_bytes
                    expand(w, columns, wide + r * columns * 4, spare)
                for block in range(first_block, end_block):
                    for r in range(0, some, ROWS):
                        total = zero_floats()
                        x, w = q + block * q_stride * LANES, wide + r * columns * 4
                        for _ in range(columns):
                            total = float_step(total, w, columns * 4, _load(x))
                            x += LANES * 4
                            w += 4
                        _finish(op, total, bias, first + r, some - r, block, results)
        return 0

    return experts_float_lanes


for _name, _format in QUANTIZED.items():
    globals()[f"experts_lanes_{_name}"] = _make_lanes(_format)
for _name, _expand in EXPAND.items():
    globals()[f"experts_float_lanes_{_name}"] = _make_float_lanes(_expand)
