"""Q2_K on the CPU; the block's layout is in quant/q2_k.py."""

from .blocks32 import NATURAL, CpuFormat
from .crumbs import PIECES, SPREAD, crumbs
from .prefetch import prefetch_ahead
from .simd import (
    dot4_x16,
    fill_f32x16,
    fma_f32x16,
    inline,
    literal,
    load_f16,
    load_f32x16,
    load_i8x16,
    shift_right,
    shuffle,
    store_f32x16,
    store_i8x32,
    sum_f32x16,
    to_f32x16,
    u8_to_i32x16,
    zero_f32x16,
    zero_i32x16,
)

_BYTES, _QS, _D, _DMIN = 84, 16, 80, 82
_ahead = prefetch_ahead(_BYTES)
_p0, _p1, _p2, _p3 = crumbs(_QS)
_q0, _q1, _q2, _q3 = PIECES
_s0, _s1, _s2, _s3 = SPREAD
_lower, _upper = (shuffle("i8", 64, list(range(i, i + 32))) for i in (0, 32))
_low_bits, _by_4 = literal("i32", [15] * 16), shift_right("i32", 16, 4)


@inline
def _scales(w):
    """16 scales and 16 minima of the block."""
    both = u8_to_i32x16(load_i8x16(w))
    s = to_f32x16(both & _low_bits()) * fill_f32x16(load_f16(w + _D))
    return s, to_f32x16(_by_4(both)) * fill_f32x16(load_f16(w + _DMIN))


@inline
def dot_row(w, groups, q, scale, sums):
    """See CpuFormat."""
    acc, more, accm = zero_f32x16(), zero_f32x16(), zero_f32x16()
    for _ in range(groups >> 3):
        _ahead(w)
        s, m = _scales(w)
        accm = fma_f32x16(m, load_f32x16(sums), accm)
        s = s * load_f32x16(scale)
        d = dot4_x16(zero_i32x16(), _p0(w), _q0(q))
        acc = fma_f32x16(to_f32x16(d), _s0(s, s), acc)
        d = dot4_x16(zero_i32x16(), _p1(w), _q1(q))
        more = fma_f32x16(to_f32x16(d), _s1(s, s), more)
        d = dot4_x16(zero_i32x16(), _p2(w), _q2(q))
        acc = fma_f32x16(to_f32x16(d), _s2(s, s), acc)
        d = dot4_x16(zero_i32x16(), _p3(w), _q3(q))
        more = fma_f32x16(to_f32x16(d), _s3(s, s), more)
        w += _BYTES
        q += 256
        scale += 64
        sums += 64
    return sum_f32x16(acc + more) - sum_f32x16(accm)


@inline
def _put(u, stride, values):
    store_i8x32(u, _lower(values, values))
    store_i8x32(u + 4 * stride, _upper(values, values))


@inline
def unpack_row(w, groups, u, stride, scale, minima):
    """See CpuFormat."""
    for _ in range(groups >> 3):
        s, m = _scales(w)
        store_f32x16(scale, s)
        store_f32x16(minima, m)
        _put(u, stride, _p0(w))
        _put(u + stride, stride, _p1(w))
        _put(u + 2 * stride, stride, _p2(w))
        _put(u + 3 * stride, stride, _p3(w))
        w += _BYTES
        u += 8 * stride
        scale += 64
        minima += 64


FORMAT = CpuFormat(dot_row, unpack_row, NATURAL, 0, 16, False, _BYTES)
