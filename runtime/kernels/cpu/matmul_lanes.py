"""Y = W X for many tokens: a tile of weight rows unpacked once in cache, reused by every token.

The micro kernel multiplies ROWS weight rows by LANES tokens: a vector of activations (four columns
of each token) meets four bytes of a row, broadcast. Weights stay as the format's unsigned bytes;
the offset or the minima are taken off once a group, from the activations' sums.
"""

from typing import Any

from llvmlite import ir
from numba.core import types

from ....quant.cpu.blocks32 import CpuFormat
from ....quant.cpu.simd import (
    LANES,
    dot4_code,
    fma,
    inline,
    kernel,
    load,
    load_f32,
    load_i8x32,
    load_i64,
    load_splat,
    make,
    store,
    store_f32,
    store_i8x32,
    zero,
)
from ....quant.cpu.threads import atomic_add
from ....quant.cpu.vector import (
    F32,
    I8,
    I32,
    I64,
    Builder,
    Registers,
    Value,
    constant,
    declare,
    pointer,
    splat,
    vec,
)
from ..records import MATMUL, STEP, TILE_ROWS
from .formats import EXPAND, QUANTIZED
from .matmul import share

# Accumulators of one micro kernel: with LANES = 16 there are 32 registers, with 8 there are 16.
ROWS = 8 if LANES == 16 else 4

_float = vec("f32", LANES)
_ints = Registers(vec("i32", LANES), ROWS)
_floats = Registers(_float, ROWS)
_load, _store = load("f32", LANES), store("f32", LANES)
_load_i32 = load("i32", LANES)
_zero = zero("f32", LANES)
_fma, _splat = fma(LANES), load_splat("f32", LANES)
_int = types.int64


def _registers_zero(kind: Registers) -> Any:
    return make("registers_zero", 0, lambda a: kind(), lambda b, s, a: ir.Constant(kind.llvm, None))


def _start_code(offset: int, group: int) -> Any:
    """sums address -> accumulators at -offset * sum of each token's `group` int8 values."""

    def code(b: Builder, sig: Any, args: Any) -> Value:
        value: Any = ir.Constant(_ints.llvm, None)
        if offset:
            kind = vec("i32", LANES).llvm
            sums = b.load(pointer(b, args[0]), align=1, typ=kind)
            if group == 32:
                second = pointer(b, b.add(args[0], I64(LANES * 4)))
                sums = b.add(sums, b.load(second, align=1, typ=kind))
            start = b.mul(sums, constant("i32", [-offset] * LANES))
            for r in range(ROWS):
                value = b.insert_value(value, start, r)
        return value

    return make("start", 1, lambda a: _ints(_int), code)


def _dot_code(wide: bool) -> Any:
    """(acc, weights, activations): ROWS x LANES dot products of `columns` columns."""

    def build(columns: int) -> Any:
        def code(b: Builder, sig: Any, args: Any) -> Value:
            acc, w, q = args
            rows = [b.extract_value(acc, r) for r in range(ROWS)]
            data = ir.VectorType(I8, 4 * LANES)
            for k in range(0, columns, 4):
                x = b.load(pointer(b, b.add(q, I64(k * LANES))), align=1, typ=data)
                for r in range(ROWS):
                    four = b.load(pointer(b, b.add(w, I64(32 * r + k))), align=1, typ=I32)
                    u = b.bitcast(splat(b, four, LANES), data)
                    rows[r] = dot4_code(b, rows[r], u, x, wide=wide)
            for r in range(ROWS):
                acc = b.insert_value(acc, rows[r], r)
            return acc

        return make(f"dot_{columns}", 3, lambda a: _ints(_ints, _int, _int), code)

    return build


def _scale_code(b: Builder, sig: Any, args: Any) -> Value:
    """(total, acc, scales, activation scales): total + acc * scale[row] * scale[token]."""
    total, acc, scales, factor = args
    kind = _float.llvm
    function = declare(b, f"llvm.fma.v{LANES}f32", kind, [kind] * 3)
    for r in range(ROWS):
        s = b.load(pointer(b, b.add(scales, I64(4 * r))), align=1, typ=F32)
        product = b.fmul(splat(b, s, LANES), factor)
        value = b.sitofp(b.extract_value(acc, r), kind)
        total = b.insert_value(
            total, b.call(function, [value, product, b.extract_value(total, r)]), r
        )
    return total


def _subtract_code(b: Builder, sig: Any, args: Any) -> Value:
    """(total, minima, activation sums): total - minimum[row] * sum[token]."""
    total, minima, sums = args
    kind = _float.llvm
    function = declare(b, f"llvm.fma.v{LANES}f32", kind, [kind] * 3)
    negative = b.fneg(sums)
    for r in range(ROWS):
        m = b.load(pointer(b, b.add(minima, I64(4 * r))), align=1, typ=F32)
        value = b.call(function, [splat(b, m, LANES), negative, b.extract_value(total, r)])
        total = b.insert_value(total, value, r)
    return total


def _float_code(b: Builder, sig: Any, args: Any) -> Value:
    """(total, weights, stride, x): total + weight[row] * x, one column."""
    total, w, stride, x = args
    kind = _float.llvm
    function = declare(b, f"llvm.fma.v{LANES}f32", kind, [kind] * 3)
    for r in range(ROWS):
        s = b.load(pointer(b, b.add(w, b.mul(stride, I64(r)))), align=1, typ=F32)
        value = b.call(function, [splat(b, s, LANES), x, b.extract_value(total, r)])
        total = b.insert_value(total, value, r)
    return total


def _write_code(b: Builder, sig: Any, args: Any) -> Value:
    """(total, address): ROWS vectors one after the other."""
    total, at = args
    for r in range(ROWS):
        b.store(b.extract_value(total, r), pointer(b, b.add(at, I64(r * LANES * 4))), align=1)
    return I64(0)


_zero_floats = _registers_zero(_floats)
_scale = make("scale", 4, lambda a: _floats(_floats, _ints, _int, _float), _scale_code)
_subtract = make("subtract", 3, lambda a: _floats(_floats, _int, _float), _subtract_code)
_float_step = make("float_step", 4, lambda a: _floats(_floats, _int, _int, _float), _float_code)
_write = make("write", 2, lambda a: _int(_floats, _int), _write_code)
_to_float = make(
    "to_float",
    1,
    lambda a: _float(vec("i32", LANES)),
    lambda b, s, a: b.sitofp(a[0], _float.llvm),
)


@inline
def _finish(op, row, count, block, tile):
    """Bias and residual addition of `count` (at most ROWS) x LANES results, into place."""
    bias = load_i64(op + MATMUL.bias)
    out = load_i64(op + MATMUL.out) + (block * load_i64(op + MATMUL.out_stride) + row) * LANES * 4
    residual = load_i64(op + MATMUL.residual)
    for r in range(min(ROWS, count)):
        v = _load(tile + r * LANES * 4)
        at = out + r * LANES * 4
        if bias != 0:
            v = v + _splat(bias + 4 * (row + r))
        if residual != 0:
            v = v + _load(at)
        _store(at, v)


def _make_lanes(fmt: CpuFormat) -> Any:
    unpack, group, offset = fmt.unpack_row, fmt.group, fmt.offset
    minimum = offset == 0
    start = _start_code(offset, group)
    dot = _dot_code(fmt.wide)(group)
    halves = group == 16

    parts = 32 // group

    @inline
    def place(u, scale, minima, groups, row, tile, tile_scale, tile_minima):
        """An unpacked row into its place among ROWS: [group of 32][row][32], scales [..][row]."""
        for g in range(groups):
            store_i8x32(tile + (g * ROWS + row) * 32, load_i8x32(u + g * 32))
            for i in range(g * parts, (g + 1) * parts):
                store_f32(tile_scale + (i * ROWS + row) * 4, load_f32(scale + 4 * i))
            if minimum:
                store_f32(tile_minima + (g * ROWS + row) * 4, load_f32(minima + 4 * g))

    @inline
    def micro(u, groups, scales, minima, q, a_scale, a_sums, out):
        total = _zero_floats()
        for _ in range(groups):
            factor = _load(a_scale)
            acc = dot(start(a_sums), u, q)
            total = _scale(total, acc, scales, factor)
            if halves:
                acc = dot(start(a_sums + LANES * 4), u + 16, q + 16 * LANES)
                total = _scale(total, acc, scales + 4 * ROWS, factor)
            elif minimum:
                sums = _to_float(_load_i32(a_sums) + _load_i32(a_sums + LANES * 4)) * factor
                total = _subtract(total, minima, sums)
                minima += 4 * ROWS
            u += 32 * ROWS
            q += 32 * LANES
            scales += 4 * ROWS * parts
            a_scale += LANES * 4
            a_sums += LANES * 8
        _write(total, out)

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
        # Scratch: one result, one unpacked row, then the tile's scales, minima and bytes.
        out = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        row_u = out + ROWS * LANES * 4
        row_scale = row_u + columns
        row_minima = row_scale + columns // group * 4
        scales = row_minima + columns // group * 4
        minima = scales + TILE_ROWS * (columns // group) * 4
        tile = minima + TILE_ROWS * (columns // group) * 4
        scale_bytes = columns // group * 4
        num_threads = load_i64(step + STEP.num_threads)
        for turn in range(num_threads):
            begin, end, counter = share(op, num_rows, num_threads, thread, turn)
            while True:
                first = begin + atomic_add(counter, TILE_ROWS)
                if first >= end:
                    break
                some = min(TILE_ROWS, end - first)
                for r in range(some):
                    unpack(weight + (first + r) * row_bytes, groups, row_u, row_scale, row_minima)
                    at = r // ROWS * ROWS
                    place(
                        row_u,
                        row_scale,
                        row_minima,
                        groups,
                        r % ROWS,
                        tile + at * columns,
                        scales + at * scale_bytes,
                        minima + at * scale_bytes,
                    )
                for block in range(blocks):
                    at = block * columns * LANES
                    for r in range(0, some, ROWS):
                        micro(
                            tile + r * columns,
                            groups,
                            scales + r * scale_bytes,
                            minima + r * scale_bytes,
                            q + at,
                            a_scale + at // 8,
                            a_sums + at // 4,
                            out,
                        )
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
        q = load_i64(op + MATMUL.q)
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
                        total = _zero_floats()
                        x, w = q + block * columns * LANES * 4, wide + r * columns * 4
                        for _ in range(columns):
                            total = _float_step(total, w, columns * 4, _load(x))
                            x += LANES * 4
                            w += 4
                        _write(total, tile)
                        _finish(op, first + r, some - r, block, tile)
        return 0

    return matmul_float_lanes


for _name, _format in QUANTIZED.items():
    globals()[f"matmul_lanes_{_name}"] = _make_lanes(_format)
for _name, _expand in EXPAND.items():
    globals()[f"matmul_float_lanes_{_name}"] = _make_float_lanes(_expand)
