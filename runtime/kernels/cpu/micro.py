"""The micro kernel of tiles: ROWS unpacked weight rows times WIDTH tokens, in registers.

Activations lie as [columns / C][WIDTH][C] int8, C = 4 * LANES / WIDTH: a vector holds C columns of
each token. It meets C bytes of a weight row, broadcast. With WIDTH = LANES a lane is a token;
with fewer tokens several lanes are one, whose sums are added at the end of the row. So a step of
4 tokens costs little more than half of one of 16, and weights are unpacked once for all of them.

Weights stay as the format's unsigned bytes; the offset or the minima are taken off once a group,
from the activations' sums.
"""

from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import types

from ....quant.cpu.blocks32 import CpuFormat
from ....quant.cpu.floats import fma_code
from ....quant.cpu.native import native
from ....quant.cpu.prefetch import prefetch
from ....quant.cpu.simd import LANES, ROWS, WIDE_BIAS, dot4_code, fma, inline, load, make, zero
from ....quant.cpu.vector import (
    F32,
    I8,
    I32,
    I64,
    Builder,
    Registers,
    Value,
    constant,
    lanes,
    pointer,
    splat,
    vec,
)
from .chain import byte_products, chain_of, pair_sums

_float = vec("f32", LANES)
_ints = Registers(vec("i32", LANES), ROWS)
_floats = Registers(_float, ROWS)
_load, _load_i32, _zero, _fma = (
    load("f32", LANES),
    load("i32", LANES),
    zero("f32", LANES),
    fma(LANES),
)
_int = types.int64


def registers_zero(kind: Registers) -> Any:
    """() -> all lanes 0."""
    return make("registers_zero", 0, lambda a: kind(), lambda b, s, a: ir.Constant(kind.llvm, None))


def _start_code(offset: int, group: int) -> Any:
    """sums address -> accumulators at -offset * sum of each lane's share of `group` values."""

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


def _dot_code(fmt: CpuFormat, width: int) -> Any:
    """(acc, weights, activations): ROWS x WIDTH dot products of a group's columns."""
    wide, columns, chain = fmt.wide, fmt.group, chain_of(fmt)
    piece = 4 * LANES // width

    def code(b: Builder, sig: Any, args: Any) -> Value:
        acc, w, q = args
        rows = [b.extract_value(acc, r) for r in range(ROWS)]
        data = ir.VectorType(I8, 4 * LANES)
        fours: list[Value] = []
        words: list[Value] = []
        # Where bytes beyond 127 lose 128 they do so before they are spread, and are signed then.
        flip = wide and WIDE_BIAS
        for k in range(0, columns, piece):
            x = b.load(pointer(b, b.add(q, I64(k * width))), align=1, typ=data)
            by_lane = native.LANE_OPERAND and piece == 4
            if by_lane and k % 16 == 0:
                ats = (pointer(b, b.add(w, I64(32 * r + k))) for r in range(ROWS))
                fours = [b.load(at, align=1, typ=ir.VectorType(I32, 4)) for at in ats]
                if flip:
                    fours = [b.xor(v, constant("i32", [0x80808080] * 4)) for v in fours]
            for r in range(ROWS):
                at = pointer(b, b.add(w, I64(32 * r + k)))
                if by_lane:
                    u = b.bitcast(lanes(b, fours[r], fours[r], [k % 16 // 4] * LANES), data)
                elif piece <= 8:
                    few = b.load(at, align=1, typ=ir.IntType(8 * piece))
                    u = b.bitcast(splat(b, few, width), data)
                else:
                    few = b.load(at, align=1, typ=ir.VectorType(I8, piece))
                    u = lanes(b, few, few, list(range(piece)) * width)
                if chain == 1:
                    rows[r] = dot4_code(b, rows[r], u, x, wide=wide and not by_lane)
                elif len(words) == r:
                    words.append(byte_products(b, u, x))
                else:
                    words[r] = b.add(words[r], byte_products(b, u, x))
            if words and (k // piece % chain == chain - 1 or k + piece == columns):
                rows = [b.add(row, pair_sums(b, w)) for row, w in zip(rows, words, strict=True)]
                words = []
        for r in range(ROWS):
            acc = b.insert_value(acc, rows[r], r)
        return acc

    return make(f"dot_{columns}_{width}", 3, lambda a: _ints(_ints, _int, _int), code)


def _scale_code(b: Builder, sig: Any, args: Any) -> Value:
    """(total, acc, scales, stride, factor): total + acc * scale[row] * activation scale."""
    total, acc, scales, stride, factor = args
    for r in range(ROWS):
        at = pointer(b, b.add(scales, b.mul(stride, I64(r))))
        product = b.fmul(splat(b, b.load(at, align=1, typ=F32), LANES), factor)
        value = b.sitofp(b.extract_value(acc, r), _float.llvm)
        value = fma_code(b, value, product, b.extract_value(total, r))
        total = b.insert_value(total, value, r)
    return total


def _subtract_code(b: Builder, sig: Any, args: Any) -> Value:
    """(total, minima, stride, activation sums): total - minimum[row] * sum."""
    total, minima, stride, sums = args
    negative = b.fneg(sums)
    for r in range(ROWS):
        at = pointer(b, b.add(minima, b.mul(stride, I64(r))))
        m = splat(b, b.load(at, align=1, typ=F32), LANES)
        value = fma_code(b, m, negative, b.extract_value(total, r))
        total = b.insert_value(total, value, r)
    return total


def _write_code(b: Builder, sig: Any, args: Any) -> Value:
    """(total, address): ROWS vectors one after the other."""
    total, at = args
    for r in range(ROWS):
        b.store(b.extract_value(total, r), pointer(b, b.add(at, I64(r * LANES * 4))), align=1)
    return I64(0)


def make_write_rows(width: int) -> Any:
    """(total, address): float32 [WIDTH][ROWS], each token's lanes added up."""

    def code(b: Builder, sig: Any, args: Any) -> Value:
        total, at = args
        rows = []
        for r in range(ROWS):
            v = b.extract_value(total, r)
            count = LANES
            while count > width:
                even = lanes(b, v, v, list(range(0, count, 2)))
                v = b.fadd(even, lanes(b, v, v, list(range(1, count, 2))))
                count //= 2
            rows.append(v)
        count = width
        while len(rows) > 1:
            both = list(range(2 * count))
            rows = [lanes(b, rows[i], rows[i + 1], both) for i in range(0, len(rows), 2)]
            count *= 2
        order = [r * width + t for t in range(width) for r in range(ROWS)]
        b.store(lanes(b, rows[0], rows[0], order), pointer(b, at), align=1)
        return I64(0)

    return make(f"write_rows_{width}", 2, lambda a: _int(_floats, _int), code)


zero_floats = registers_zero(_floats)
_scale = make("scale", 5, lambda a: _floats(_floats, _ints, _int, _int, _float), _scale_code)
_subtract = make("subtract", 4, lambda a: _floats(_floats, _int, _int, _float), _subtract_code)
write = make("write", 2, lambda a: _int(_floats, _int), _write_code)
_to_float = make(
    "to_float",
    1,
    lambda a: _float(vec("i32", LANES)),
    lambda b, s, a: b.sitofp(a[0], _float.llvm),
)


class Micro(NamedTuple):
    """The micro kernel of a format and width, and what writes its result as rows."""

    # multiply(u, groups, scales, minima, scale_stride, q, a_scale, a_sums, soon) -> ROWS vectors.
    # u: [group of 32][ROWS][32] bytes; scales and minima: a row's in sequence, `scale_stride`
    # bytes from row to row. `soon`: the address of the packed rows that will be unpacked next; they
    # are asked for meanwhile, since memory would idle between two bursts of unpacking otherwise.
    multiply: Any
    write_rows: Any  # (total, address): float32 [WIDTH][ROWS]


def make_micro(fmt: CpuFormat, width: int) -> Micro:
    """For `width` tokens, at most LANES."""
    group, offset = fmt.group, fmt.offset
    minimum = offset == 0
    start = _start_code(offset - WIDE_BIAS if fmt.wide else offset, group)
    dot = _dot_code(fmt, width)
    halves = group == 16
    parts = 32 // group
    bytes_of_group = fmt.bytes_of_256 * ROWS // 8  # 32 columns of ROWS packed rows
    ask = prefetch(bytes_of_group)

    @inline
    def multiply(u, groups, scales, minima, scale_stride, q, a_scale, a_sums, soon):
        total = zero_floats()
        for _ in range(groups):
            ask(soon)
            soon += bytes_of_group
            factor = _load(a_scale)
            acc = dot(start(a_sums), u, q)
            total = _scale(total, acc, scales, scale_stride, factor)
            if halves:
                if minimum:
                    sums = _to_float(_load_i32(a_sums)) * factor
                    total = _subtract(total, minima, scale_stride, sums)
                    sums = _to_float(_load_i32(a_sums + LANES * 4)) * factor
                    total = _subtract(total, minima + 4, scale_stride, sums)
                    minima += 8
                acc = dot(start(a_sums + LANES * 4), u + 16, q + 16 * width)
                total = _scale(total, acc, scales + 4, scale_stride, factor)
            elif minimum:
                sums = _to_float(_load_i32(a_sums) + _load_i32(a_sums + LANES * 4)) * factor
                total = _subtract(total, minima, scale_stride, sums)
                minima += 4
            u += 32 * ROWS
            q += 32 * width
            scales += 4 * parts
            a_scale += LANES * 4
            a_sums += LANES * 8
        return total

    return Micro(multiply, make_write_rows(width))
