"""Q3_K on the CPU; the block's layout is in quant/q3_k.py."""

from typing import Any

import numpy as np
from llvmlite import ir

from .blocks32 import NATURAL, CpuFormat
from .crumbs import PIECES, SPREAD, crumbs_with_high_bits, high_bits
from .prefetch import prefetch_ahead
from .simd import (
    address,
    convert,
    dot4_x16,
    fill_f32x16,
    fma_f32x16,
    inline,
    load_f16,
    load_f32x16,
    make,
    shuffle,
    store_f32x16,
    store_i8x32,
    sum_f32x16,
    to_f32x16,
    vec,
    zero_f32x16,
    zero_i32x16,
)
from .vector import I32, I64, Builder, Value, constant, lanes, pointer

_BYTES, _QS, _SCALES, _D = 110, 32, 96, 108
_ahead = prefetch_ahead(_BYTES)
_p0, _p1, _p2, _p3 = crumbs_with_high_bits(_QS)
_q0, _q1, _q2, _q3 = PIECES
_s0, _s1, _s2, _s3 = SPREAD
_lower, _upper = (shuffle("i8", 64, list(range(i, i + 32))) for i in (0, 32))
_widen = convert("sext", vec("i8", 16), vec("i32", 16))


def _scale_bytes(b: Builder, sig: Any, args: Any) -> Value:
    """The 16 signed scales of a block."""
    # 16 bytes that end with the block: 2 others, 8 + 4 of the scales, d.
    at = pointer(b, b.add(args[0], I64(_BYTES - 16)))
    v = b.load(at, align=1, typ=vec("i8", 16).llvm)
    words = ir.VectorType(I32, 4)
    low = b.bitcast(lanes(b, v, v, list(range(2, 10)) * 2), words)
    low = b.and_(b.lshr(low, constant("i32", [0, 0, 4, 4])), constant("i32", [0x0F0F0F0F] * 4))
    high = b.bitcast(lanes(b, v, v, list(range(10, 14)) * 4), words)
    high = b.lshr(b.shl(high, constant("i32", [4, 2, 0, 0])), constant("i32", [0, 0, 0, 2]))
    high = b.and_(high, constant("i32", [0x30303030] * 4))
    return b.sub(b.bitcast(b.or_(low, high), v.type), constant("i8", [32] * 16))


_scale_i8x16 = make("scale_bytes", 1, lambda a: vec("i8", 16)(address), _scale_bytes)


@inline
def _scales(w):
    return to_f32x16(_widen(_scale_i8x16(w))) * fill_f32x16(load_f16(w + _D))


@inline
def dot_row(w, groups, q, scale, sums):
    """See CpuFormat."""
    acc, more, accm = zero_f32x16(), zero_f32x16(), zero_f32x16()
    for _ in range(groups >> 3):
        _ahead(w)
        s, h = _scales(w), high_bits(w)
        accm = fma_f32x16(s, load_f32x16(sums), accm)
        s = s * load_f32x16(scale)
        d = dot4_x16(zero_i32x16(), _p0(w, h), _q0(q))
        acc = fma_f32x16(to_f32x16(d), _s0(s, s), acc)
        d = dot4_x16(zero_i32x16(), _p1(w, h), _q1(q))
        more = fma_f32x16(to_f32x16(d), _s1(s, s), more)
        d = dot4_x16(zero_i32x16(), _p2(w, h), _q2(q))
        acc = fma_f32x16(to_f32x16(d), _s2(s, s), acc)
        d = dot4_x16(zero_i32x16(), _p3(w, h), _q3(q))
        more = fma_f32x16(to_f32x16(d), _s3(s, s), more)
        w += _BYTES
        q += 256
        scale += 64
        sums += 64
    return sum_f32x16(fma_f32x16(accm, fill_f32x16(np.float32(-4)), acc + more))


@inline
def _put(u, stride, values):
    store_i8x32(u, _lower(values, values))
    store_i8x32(u + 4 * stride, _upper(values, values))


@inline
def unpack_row(w, groups, u, stride, scale, minima):
    """See CpuFormat."""
    for _ in range(groups >> 3):
        store_f32x16(scale, _scales(w))
        h = high_bits(w)
        _put(u, stride, _p0(w, h))
        _put(u + stride, stride, _p1(w, h))
        _put(u + 2 * stride, stride, _p2(w, h))
        _put(u + 3 * stride, stride, _p3(w, h))
        w += _BYTES
        u += 8 * stride
        scale += 64


FORMAT = CpuFormat(dot_row, unpack_row, NATURAL, 4, 16, False, _BYTES)
