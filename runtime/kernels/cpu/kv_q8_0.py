"""Keys and values in 8 bits with a scale for each 32 of a position, as ggml's Q8_0 rounds them.

K [key_dim / 4][32][4], four columns of a position side by side; K's scales [key_dim / 32][32],
float16; then V [32][value_dim], and V's scales as K's.

Columns of V share a scale with their neighbours, columns of K by 16s with those half a head further
on, which rotary positions turn together. Some models (Qwen2.5) have keys that are 50 times as large
as others in the columns that turn slowest: they spoil a quarter or half of a head so, rather than
all of it. That halves the divergence of the 0.5B model.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from ....quant.cpu.floats import fma_code, widen_code
from ....quant.cpu.simd import (
    LANES,
    abs_f32x16,
    absolute,
    convert,
    fill,
    fill_f32x16,
    inline,
    load,
    load_f16,
    load_f16x16,
    load_f32x16,
    load_i8x16,
    make,
    max_f32x16,
    max_f32x16_all,
    maximum,
    narrow_half,
    narrow_i32x16,
    nearest,
    nearest_f32x16,
    shift_left,
    store,
    store_f16,
    store_f32x16,
    store_i8x16,
    to_f32x16,
    to_i32x16,
    widen_f16x16,
    zero,
)
from ....quant.cpu.vector import F16, I8, I32, I64, Builder, Registers, pointer, vec
from ..records import PAGE
from .kv_type import (
    FLOATS,
    QUERY_STRIDE,
    WEIGHT_STRIDE,
    KvType,
    get,
    multiply_add,
    prefetch,
    put,
    zeros,
)

_int = types.int64
_TINY = 1e-32  # a scale below which all values become 0
_SPARE = PAGE * 4 + 64  # bytes of a head's weights of a page
_load, _fill, _zero = load("f32", LANES), fill("f32", LANES), zero("f32", LANES)
_abs, _max, _nearest = absolute(LANES), maximum(LANES), nearest(LANES)
_fill_int, _store_int = fill("i32", LANES), store("i32", LANES)
_to_int = convert("fptosi", vec("f32", LANES), vec("i32", LANES))
_left8, _left16, _left24 = (shift_left("i32", LANES, n) for n in (8, 16, 24))
_store_half = store("f16", LANES)
_narrow = narrow_half(LANES)
_widen_i8 = convert("sext", vec("i8", 16), vec("i32", 16))


def _reciprocal_code(b: Builder, sig: Any, args: Any) -> Any:
    """1 / v, and 0 where v is (nearly) 0."""
    v = args[0]
    some = b.fcmp_ordered(">", v, ir.Constant(v.type, [_TINY] * LANES))
    return b.select(some, b.fdiv(ir.Constant(v.type, [1.0] * LANES), v), ir.Constant(v.type, None))


def _scatter_code(b: Builder, sig: Any, args: Any) -> Any:
    """(address, 16 bytes): four at the address, and at each PAGE * 4 bytes further."""
    at, v = args
    fours = b.bitcast(v, ir.VectorType(I32, 4))
    for i in range(4):
        one = b.extract_element(fours, ir.Constant(I32, i))
        b.store(one, pointer(b, b.add(at, I64(i * PAGE * 4))), align=1)
    return I64(0)


def _column_code(j: int) -> Any:
    """Address of 16 positions' four bytes -> column j of each as float32."""

    def code(b: Builder, sig: Any, args: Any) -> Any:
        v = b.load(pointer(b, args[0]), align=1, typ=ir.VectorType(I32, 16))
        return _column(b, v, j)

    return code


def _column(b: Builder, v: Any, j: int) -> Any:
    by = [ir.Constant(v.type, [n] * 16) for n in (24 - 8 * j, 24)]
    return b.sitofp(b.ashr(b.shl(v, by[0]) if j < 3 else v, by[1]), FLOATS.llvm)


_lanes = vec("f32", LANES)
_reciprocal = make("reciprocal", 1, lambda a: _lanes(_lanes), _reciprocal_code)
_scatter = make("scatter", 2, lambda a: _int(_int, vec("i8", 16)), _scatter_code)
_columns = [make(f"column_{j}", 1, lambda a: FLOATS(_int), _column_code(j)) for j in range(4)]
_column_0, _column_1, _column_2, _column_3 = _columns


@inline
def _scale_of(x, y):
    """The largest magnitude of 16 values at x and 16 at y, over 127."""
    a, b = abs_f32x16(load_f32x16(x)), abs_f32x16(load_f32x16(y))
    return max_f32x16_all(max_f32x16(a, b)) / np.float32(127)


@inline
def _round(x, scale):
    """16 values -> int8, to the nearest multiple of the scale."""
    inverse = np.float32(1) / scale if scale > np.float32(_TINY) else np.float32(0)
    return narrow_i32x16(to_i32x16(nearest_f32x16(load_f32x16(x) * fill_f32x16(inverse))))


@inline
def _store_key(head, slot, x, dim):
    scales, half = head + PAGE * dim, dim // 2
    for i in range(0, half, 16):
        scale = _scale_of(x + 4 * i, x + 4 * (half + i))
        store_f16(scales + (i // 16 * PAGE + slot) * 2, scale)
        for j in range(i, dim, half):
            _scatter(head + j * PAGE + slot * 4, _round(x + 4 * j, scale))


@inline
def _store_keys(head, slot, x, dim):
    scales, half = head + PAGE * dim, dim // 2
    byte = _fill_int(np.int32(255))
    for i in range(0, half, 16):
        largest = _zero()
        for j in range(i, i + 16):
            largest = _max(largest, _abs(_load(x + j * LANES * 4)))
            largest = _max(largest, _abs(_load(x + (half + j) * LANES * 4)))
        scale = largest / _fill(np.float32(127))
        _store_half(scales + (i // 16 * PAGE + slot) * 2, _narrow(scale))
        inverse = _reciprocal(scale)
        for k in range(0, 32, 4):
            j = i + k if k < 16 else half + i + k - 16
            at = x + j * LANES * 4
            a = _to_int(_nearest(_load(at) * inverse))
            b = _to_int(_nearest(_load(at + LANES * 4) * inverse))
            c = _to_int(_nearest(_load(at + LANES * 8) * inverse))
            d = _to_int(_nearest(_load(at + LANES * 12) * inverse))
            four = (a & byte) | _left8(b & byte) | _left16(c & byte) | _left24(d)
            _store_int(head + j * PAGE + slot * 4, four)


@inline
def _values(head, dim):
    """Address of V: K's bytes and scales are before it."""
    return head + PAGE * dim + PAGE * dim // 16


@inline
def _store_value(values, slot, x, dim):
    scales = values + PAGE * dim
    for i in range(0, dim, 32):
        scale = _scale_of(x + 4 * i, x + 4 * i + 64)
        store_f16(scales + i * PAGE // 16 + slot * 2, scale)
        for j in range(i, i + 32, 16):
            store_i8x16(values + slot * dim + j, _round(x + 4 * j, scale))


@inline
def _widen_keys(head, keys, dim):
    scales = head + PAGE * dim
    for i in range(0, dim, 4):
        for s in range(0, PAGE, 16):
            scale = widen_f16x16(load_f16x16(scales + (i % (dim // 2) // 16 * PAGE + s) * 2))
            at, out = head + i * PAGE + s * 4, keys + (i * PAGE + s) * 4
            store_f32x16(out, _column_0(at) * scale)
            store_f32x16(out + PAGE * 4, _column_1(at) * scale)
            store_f32x16(out + PAGE * 8, _column_2(at) * scale)
            store_f32x16(out + PAGE * 12, _column_3(at) * scale)


@inline
def _widen_values(values, out, dim):
    scales = values + PAGE * dim
    for j in range(PAGE):
        for i in range(0, dim, 16):
            scale = fill_f32x16(load_f16(scales + i // 32 * PAGE * 2 + j * 2))
            v = to_f32x16(_widen_i8(load_i8x16(values + j * dim + i)))
            store_f32x16(out + (j * dim + i) * 4, v * scale)


def _decode(group: int) -> Any:
    """See KvType.decode."""
    one, two = Registers(FLOATS, group), Registers(FLOATS, 2 * group)

    def score_code(b: Builder, sig: Any, args: Any) -> Any:
        """(acc, at, q): acc[g] += columns 0..3 of 16 positions times those of query g."""
        acc, at, q = args
        v = b.load(pointer(b, at), align=1, typ=ir.VectorType(I32, 16))
        for j in range(4):
            x = _column(b, v, j)
            acc = multiply_add(b, acc, group, [x], b.add(q, I64(4 * j)), QUERY_STRIDE)
        return acc

    def scale_code(b: Builder, sig: Any, args: Any) -> Any:
        """(total, acc, at): total[g] += acc[g] * (16 float16 at `at`)."""
        total, acc, at = args
        s = b.load(pointer(b, at), align=1, typ=ir.VectorType(F16, 16))
        s = widen_code(b, s)
        for g in range(group):
            value = fma_code(b, b.extract_value(acc, g), s, b.extract_value(total, g))
            total = b.insert_value(total, value, g)
        return total

    def value_code(b: Builder, sig: Any, args: Any) -> Any:
        """(acc, at, weights): acc[g] += (32 bytes at `at`) * (head g's weight)."""
        acc, at, weights = args
        xs = []
        for i in (0, 16):
            v = b.load(pointer(b, b.add(at, I64(i))), align=1, typ=ir.VectorType(I8, 16))
            xs.append(b.sitofp(b.sext(v, ir.VectorType(I32, 16)), FLOATS.llvm))
        return multiply_add(b, acc, group, xs, weights, _SPARE)

    add_score = make("add_score", 3, lambda a: one(one, _int, _int), score_code)
    add_scaled = make("add_scaled", 3, lambda a: one(one, one, _int), scale_code)
    add_value = make("add_value", 3, lambda a: two(two, _int, _int), value_code)
    start, write_scores = zeros(group), put(group, 1)
    read, write = get(group, 2), put(group, 2)

    @inline
    def score(head, q, dim, scores, soon):
        values, half = _values(head, dim), dim // 2
        for s in range(0, PAGE, 16):
            total = start()
            for i in range(0, half, 16):
                acc = start()
                for k in range(i, dim, half):
                    for j in range(k, k + 16, 4):
                        # The values are read when all scores of a split are there.
                        prefetch(values + j * PAGE + s * 4)
                        prefetch(soon + j * PAGE + s * 4)
                        acc = add_score(acc, head + j * PAGE + s * 4, q + 4 * j)
                total = add_scaled(total, acc, head + PAGE * dim + (i // 16 * PAGE + s) * 2)
            write_scores(total, scores + 4 * s, WEIGHT_STRIDE)

    @inline
    def accumulate(values, dim, column, first, last, weights, out, out_stride, spare):
        scales = values + PAGE * dim + column * PAGE // 16
        a, b = widen_f16x16(load_f16x16(scales)), widen_f16x16(load_f16x16(scales + 32))
        for g in range(group):
            w, s = weights + g * WEIGHT_STRIDE, spare + g * _SPARE
            store_f32x16(s, load_f32x16(w) * a)
            store_f32x16(s + 64, load_f32x16(w + 64) * b)
        acc = read(out, out_stride)
        for j in range(first, last):
            acc = add_value(acc, values + j * dim + column, spare + 4 * j)
        write(acc, out, out_stride)

    return score, accumulate


Q8_0_TYPE = KvType(
    _values, _store_key, _store_keys, _store_value, _widen_keys, _widen_values, _decode
)
