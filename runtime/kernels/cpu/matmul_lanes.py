"""Y = W X for many tokens: a tile of weight rows unpacked once in cache, reused by every token."""

from typing import Any

from numba.core import types

from ....quant.cpu.blocks32 import CpuFormat
from ....quant.cpu.floats import fma_code
from ....quant.cpu.simd import (
    LANES,
    fill,
    inline,
    kernel,
    load,
    load_f32,
    load_i64,
    load_splat,
    make,
    store,
)
from ....quant.cpu.threads import atomic_add
from ....quant.cpu.vector import F32, I64, Builder, Registers, Value, pointer, splat, vec
from ..records import MATMUL, STEP, TILE_ROWS
from .formats import EXPAND, QUANTIZED
from .matmul import share
from .micro import ROWS, make_micro, write, zero_floats

_float = vec("f32", LANES)
_floats = Registers(_float, ROWS)
_load, _store, _fill = load("f32", LANES), store("f32", LANES), fill("f32", LANES)
_splat = load_splat("f32", LANES)
_int = types.int64


def _float_code(b: Builder, sig: Any, args: Any) -> Value:
    """(total, weights, stride, x): total + weight[row] * x, one column."""
    total, w, stride, x = args
    for r in range(ROWS):
        s = b.load(pointer(b, b.add(w, b.mul(stride, I64(r)))), align=1, typ=F32)
        value = fma_code(b, splat(b, s, LANES), x, b.extract_value(total, r))
        total = b.insert_value(total, value, r)
    return total


float_step = make("float_step", 4, lambda a: _floats(_floats, _int, _int, _float), _float_code)


@inline
def _finish(op, row, count, block, tile):
    """Bias, factor and residual addition of `count` (at most ROWS) x LANES results, into place."""
    bias = load_i64(op + MATMUL.bias)
    out = load_i64(op + MATMUL.out) + (block * load_i64(op + MATMUL.out_stride) + row) * LANES * 4
    residual = load_i64(op + MATMUL.residual)
    factor = _fill(load_f32(op + MATMUL.factor))
    for r in range(min(ROWS, count)):
        v = _load(tile + r * LANES * 4)
        at = out + r * LANES * 4
        if bias != 0:
            v = v + _splat(bias + 4 * (row + r))
        v = v * factor
        if residual != 0:
            v = v + _load(at)
        _store(at, v)


def _make_lanes(fmt: CpuFormat) -> Any:
    unpack, group = fmt.unpack_row, fmt.group
    multiply = make_micro(fmt, LANES).multiply

    @kernel
    def matmul_lanes(op, step, thread):
        blocks = (load_i64(load_i64(op + MATMUL.count_at)) + LANES - 1) // LANES
        num_rows = load_i64(op + MATMUL.num_rows)
        weight, row_bytes = load_i64(op + MATMUL.weight), load_i64(op + MATMUL.row_bytes)
        columns = load_i64(op + MATMUL.columns)
        groups = columns >> 5
        q, a_scale, a_sums = (
            load_i64(op + MATMUL.q),
            load_i64(op + MATMUL.scale),
            load_i64(op + MATMUL.sums),
        )
        q_stride = load_i64(op + MATMUL.q_stride)
        # Scratch: one result, then the tile's scales, minima and bytes.
        out = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        scale_bytes = columns // group * 4
        scales = out + ROWS * LANES * 4
        minima = scales + TILE_ROWS * scale_bytes
        tile = minima + TILE_ROWS * scale_bytes
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            begin, end, counter = share(op, num_rows, num_threads, thread, turn)
            while True:
                first = begin + atomic_add(counter, TILE_ROWS)
                if first >= end:
                    break
                some = min(TILE_ROWS, end - first)
                for r in range(some):
                    unpack(
                        weight + (first + r) * row_bytes,
                        groups,
                        tile + r // ROWS * ROWS * columns + r % ROWS * 32,
                        32 * ROWS,
                        scales + r * scale_bytes,
                        minima + r * scale_bytes,
                    )
                for block in range(blocks):
                    at = block * q_stride * LANES
                    for r in range(0, some, ROWS):
                        total = multiply(
                            tile + r * columns,
                            groups,
                            scales + r * scale_bytes,
                            minima + r * scale_bytes,
                            scale_bytes,
                            q + at,
                            a_scale + at // 8,
                            a_sums + at // 4,
                            weight + (first + r + (TILE_ROWS if block == 0 else 0)) * row_bytes,
                        )
                        write(total, out)
                        _finish(op, first + r, some - r, block, out)
        return 0

    return matmul_lanes


def _make_float_lanes(expand: Any) -> Any:
    """The same with float32 activations, [columns][LANES]."""

    @kernel
    def matmul_float_lanes(op, step, thread):
        blocks = (load_i64(load_i64(op + MATMUL.count_at)) + LANES - 1) // LANES
        num_rows = load_i64(op + MATMUL.num_rows)
        weight, row_bytes = load_i64(op + MATMUL.weight), load_i64(op + MATMUL.row_bytes)
        columns = load_i64(op + MATMUL.columns)
        q, q_stride = load_i64(op + MATMUL.q), load_i64(op + MATMUL.q_stride)
        tile = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        wide = tile + ROWS * LANES * 4
        spare = wide + TILE_ROWS * columns * 4
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            begin, end, counter = share(op, num_rows, num_threads, thread, turn)
            while True:
                first = begin + atomic_add(counter, TILE_ROWS)
                if first >= end:
                    break
                some = min(TILE_ROWS, end - first)
                for r in range(some):
                    expand(weight + (first + r) * row_bytes, columns, wide + r * columns * 4, spare)
                for block in range(blocks):
                    for r in range(0, some, ROWS):
                        total = zero_floats()
                        x, w = q + block * q_stride * LANES, wide + r * columns * 4
                        for _ in range(columns):
                            total = float_step(total, w, columns * 4, _load(x))
                            x += LANES * 4
                            w += 4
                        write(total, tile)
                        _finish(op, first + r, some - r, block, tile)
        return 0

    return matmul_float_lanes


for _name, _format in QUANTIZED.items():
    globals()[f"matmul_lanes_{_name}"] = _make_lanes(_format)
for _name, _expand in EXPAND.items():
    globals()[f"matmul_float_lanes_{_name}"] = _make_float_lanes(_expand)
