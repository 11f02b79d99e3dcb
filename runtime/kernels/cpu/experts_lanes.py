"""Each chosen expert's own matrix times the tokens that chose it, LANES of them side by side.

An expert's tokens fill blocks of their own (route.py): its rows are unpacked once for all of them.
Of a short prompt most experts have a few tokens only. Those of an expert with at most FEW are
copied to rows, and its weights decoded in registers for each, as in experts.py: with one or two
tokens that is as fast as memory, unpacking takes twice as long.
"""

from typing import Any

import numpy as np

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
from ..records import EXPERTS, PAIR16, PAIR32, REGROUP, STEP, TILE_ROWS
from .formats import EXPAND, QUANTIZED
from .matmul import share
from .matmul_lanes import float_step
from .micro import ROWS, make_micro, make_write_rows, write, zero_floats

_load, _store, _splat = load("f32", LANES), store("f32", LANES), load_splat("f32", LANES)
_load_rows, _store_rows = load("f32", ROWS), store("f32", ROWS)
_write_rows = make_write_rows(LANES)
FEW = LANES // 2


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
def _is_few(slots, first_block, end_block):
    """Whether an expert has at most FEW tokens: the block's other slots repeat the last one."""
    at = slots + 8 * first_block * LANES
    same = load_i64(at + 8 * (FEW - 1)) == load_i64(at + 8 * (LANES - 1))
    return end_block == first_block + 1 and same


def _make_copy(order: int) -> Any:
    """copy(q, scale, sums, slots, columns, few) -> tokens: a block's first FEW to rows at `few`.

    For each FEW rows: int8 in the order that the format's dot product reads, then scales, then
    sums: see quant/cpu/activations.py. The latter have room for one a 16 columns.
    """
    pairs = order == PAIR32
    group = 32 if pairs else 16

    @inline
    def copy(q, scale, sums, slots, columns, few):
        count = 1
        while count < FEW and load_i64(slots + 8 * count) != load_i64(slots + 8 * count - 8):
            count += 1
        words = columns >> 2
        for t in range(count):
            row = few + t * columns
            at = 0
            while at < words:  # what is mixed together: 128 columns, at the end 64 and 32
                span = 32 if words - at >= 32 else 16 if words - at >= 16 else 8
                for i in range(0, span, 4):
                    place = i
                    if order == PAIR16:
                        place = ((i >> 2) % 2 * (span >> 3) + (i >> 3)) * 4
                    elif pairs:
                        place = (i >> 3) % 2 * 16 + (i >> 4) * 8 + i % 8
                    for j in range(4):
                        value = load_i32(q + 4 * ((at + i + j) * LANES + t))
                        store_i32(row + 4 * (at + place + j), value)
                at += span
            out_scale = few + FEW * columns + t * (columns >> 2)
            out_sums = few + (FEW * columns >> 2) * 5 + t * (columns >> 2)
            for g in range(columns // group):
                s = load_f32(scale + 4 * ((g * group >> 5) * LANES + t))
                total = load_i32(sums + 4 * (g * group // 16 * LANES + t))
                if pairs:
                    total += load_i32(sums + 4 * ((2 * g + 1) * LANES + t))
                store_f32(out_scale + 4 * g, s)
                store_f32(out_sums + 4 * g, s * np.float32(total))
        return count

    return copy


@inline
def _place(op, block, lane, row):
    """Where a token's result of a row goes, and how far the next row's is."""
    out, out_stride = load_i64(op + EXPERTS.out), load_i64(op + EXPERTS.out_stride)
    if load_i64(op + EXPERTS.by_pair) == 0:
        return out + ((block * out_stride + row) * LANES + lane) * 4, LANES * 4
    slot = load_i64(op + EXPERTS.slots) + 8 * (block * LANES + lane)
    return out + load_i64(slot) * out_stride + 4 * row, 4


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
    multiply, dot_row, copy = make_micro(fmt, LANES).multiply, fmt.dot_row, _make_copy(fmt.order)

    @kernel
    def experts_lanes(op, step, thread):
        slots = load_i64(op + EXPERTS.slots)
        num_rows, row_bytes = load_i64(op + EXPERTS.num_rows), load_i64(op + EXPERTS.row_bytes)
        columns, q_stride = load_i64(op + EXPERTS.columns), load_i64(op + EXPERTS.q_stride)
        groups = columns >> 5
        q, a_scale, a_sums = (
            load_i64(op + EXPERTS.q),
            load_i64(op + EXPERTS.scale),
            load_i64(op + EXPERTS.sums),
        )
        # Scratch: one result, then the tile's scales, minima and bytes, then FEW rows.
        results = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        scale_bytes = columns // group * 4
        scales = results + ROWS * LANES * 4
        minima = scales + TILE_ROWS * scale_bytes
        tile = minima + TILE_ROWS * scale_bytes
        few = tile + TILE_ROWS * columns
        few_scale = few + FEW * columns
        few_sums = few_scale + (FEW * columns >> 2)
        copied, count = -1, 0
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
                if _is_few(slots, first_block, end_block):
                    if first_block != copied:
                        at = first_block * q_stride * LANES
                        own = slots + 8 * first_block * LANES
                        count = copy(q + at, a_scale + at // 8, a_sums + at // 4, own, columns, few)
                        copied = first_block
                    for r in range(some):
                        for t in range(count):
                            row, s = few + t * columns, t * (columns >> 2)
                            w = weight + r * row_bytes
                            v = dot_row(w, groups, row, few_scale + s, few_sums + s)
                            if bias != 0:
                                v += load_f32(bias + 4 * (first + r))
                            at, further = _place(op, first_block, t, first)
                            store_f32(at + r * further, v)
                    continue
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
