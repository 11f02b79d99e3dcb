"""Activations of LANES tokens side by side: quantized for the prefill matmul, and transposes.

The int8 layout is [columns / 4][LANES][4]: four columns of a token are the four bytes of its lane,
as the byte dot product wants them. Scales (float32) are [columns / 32][LANES], sums (int32, of the
int8 values) [columns / 16][LANES].
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from ....quant.cpu.simd import (
    LANES,
    absolute,
    convert,
    fill,
    inline,
    load,
    load_i64,
    make,
    maximum,
    nearest,
    shift_left,
    store,
    zero,
)
from ....quant.cpu.vector import I64, Builder, Value, constant, lanes, pointer, vec
from ..records import NORM

load_v, store_v, zero_v, fill_v = (
    load("f32", LANES),
    store("f32", LANES),
    zero("f32", LANES),
    fill("f32", LANES),
)
store_vi, zero_vi, fill_vi = store("i32", LANES), zero("i32", LANES), fill("i32", LANES)
_abs, _max, _nearest = absolute(LANES), maximum(LANES), nearest(LANES)
_to_int = convert("fptosi", vec("f32", LANES), vec("i32", LANES))
_left8, _left16, _left24 = (shift_left("i32", LANES, n) for n in (8, 16, 24))


def _reciprocal_code(b: Builder, sig: Any, args: Any) -> Value:
    """127 / v, and 0 where v is (nearly) 0."""
    v = args[0]
    some = b.fcmp_ordered(">", v, ir.Constant(v.type, [1e-30] * v.type.count))
    return b.select(
        some, b.fdiv(constant("f32", [127.0] * v.type.count), v), ir.Constant(v.type, None)
    )


_reciprocal = make(
    "reciprocal_127", 1, lambda a: vec("f32", LANES)(vec("f32", LANES)), _reciprocal_code
)


@inline
def quantize_lanes(x, q, scale, sums):
    """32 columns at x, [32][LANES] float32 -> int8 [8][LANES][4], a scale and two sums a lane."""
    largest = zero_v()
    for i in range(32):
        largest = _max(largest, _abs(load_v(x + i * LANES * 4)))
    store_v(scale, largest * fill_v(np.float32(1.0 / 127)))
    inverse = _reciprocal(largest)
    byte = fill_vi(np.int32(255))
    total = zero_vi()
    for i in range(0, 32, 4):
        at = x + i * LANES * 4
        a = _to_int(_nearest(load_v(at) * inverse))
        b = _to_int(_nearest(load_v(at + LANES * 4) * inverse))
        c = _to_int(_nearest(load_v(at + LANES * 8) * inverse))
        d = _to_int(_nearest(load_v(at + LANES * 12) * inverse))
        total = total + (a + b + c + d)
        packed = (a & byte) | _left8(b & byte) | _left16(c & byte) | _left24(d)
        store_vi(q + i * LANES, packed)
        if i == 12:
            store_vi(sums, total)
            total = zero_vi()
    store_vi(sums + LANES * 4, total)


@inline
def put_lanes(op, block, start, x):
    """Quantize 32 columns from `start` of a token block, [32][LANES] at x, as the record asks."""
    columns = load_i64(op + NORM.act_columns)
    natural = load_i64(op + NORM.act_natural)
    plain = load_i64(op + NORM.act_float)
    at = (block * columns + start) * LANES
    if natural != 0:
        scale = load_i64(op + NORM.act_scale) + at // 8
        quantize_lanes(x, natural + at, scale, load_i64(op + NORM.act_sums) + at // 4)
    if plain != 0:
        for i in range(32):
            store_v(plain + (at + i * LANES) * 4, load_v(x + i * LANES * 4))


def _transpose_code(b: Builder, sig: Any, args: Any) -> Value:
    """LANES x LANES float32 from [row][lane] at `source` to [lane][row] at `target` (strides)."""
    source, source_stride, target, target_stride = args
    n = LANES
    kind = vec("f32", n).llvm

    def at(base: Any, stride: Any, i: int) -> Any:
        return pointer(b, b.add(base, b.mul(stride, I64(i))))

    rows = [b.load(at(source, source_stride, i), align=1, typ=kind) for i in range(n)]
    # log2(n) stages; each swaps one bit of the row number with the same bit of the lane number.
    width = 1
    while width < n:
        low = [j if not j & width else n + (j ^ width) for j in range(n)]
        high = [j + width if not j & width else n + j for j in range(n)]
        for i in range(n):
            if not i & width:
                x, y = rows[i], rows[i + width]
                rows[i], rows[i + width] = lanes(b, x, y, low), lanes(b, x, y, high)
        width *= 2
    for i in range(n):
        b.store(rows[i], at(target, target_stride, i), align=1)
    return I64(0)


transpose_block = make(
    "transpose_block", 4, lambda a: types.int64(*[types.int64] * 4), _transpose_code
)
