"""Q6_K on the CPU: 4 low bits in `ql`, 2 high bits in `qh`, sixteen signed scales, offset 32."""

from typing import Any

import numpy as np

from .bits import bit_field
from .blocks32 import NATURAL, CpuFormat
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
    load_i8x16,
    load_i8x64,
    make,
    shuffle,
    store_f32x16,
    store_i8x32,
    to_f32x16,
    vec,
    zero_f32x16,
    zero_i32x16,
)
from .totals import summed
from .vector import I64, Builder, Value, constant, lanes, pointer

_BYTES = 210
_ahead = prefetch_ahead(_BYTES)
_lower, _upper = (shuffle("i8", 64, list(range(i, i + 32))) for i in (0, 32))


def _part(chunk: int, which: int) -> Any:
    """Elements 128 * chunk + 64 * which + (0..63) as bytes of six bits."""
    kind = vec("i8", 64)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        def at(offset: int) -> Any:
            return pointer(b, b.add(args[0], I64(offset)))

        x = b.load(at(64 * chunk), align=1, typ=kind.llvm)
        if which:
            x = b.lshr(x, constant("i8", [4] * 64))
        else:
            x = b.and_(x, constant("i8", [15] * 64))
        h = b.load(at(128 + 32 * chunk), align=1, typ=vec("i8", 32).llvm)
        h = lanes(b, h, h, list(range(32)) * 2)
        h = bit_field(b, h, [0] * 4 + [2] * 4 if which else [-4] * 4 + [-2] * 4, 0x30)
        return b.or_(x, h)

    return make(f"six_bits_{chunk}{which}", 1, lambda a: kind(address), code)


_p0, _p1, _p2, _p3 = (_part(c, w) for c in range(2) for w in range(2))
_to_i32x16 = convert("sext", vec("i8", 16), vec("i32", 16))
_s0, _s1, _s2, _s3 = (shuffle("f32", 16, [4 * i + j // 4 for j in range(16)]) for i in range(4))


@inline
def dot_lanes(w, groups, q, scale, sums):
    """See CpuFormat."""
    acc, more, accm = zero_f32x16(), zero_f32x16(), zero_f32x16()
    for _ in range(groups >> 3):
        _ahead(w)
        s = to_f32x16(_to_i32x16(load_i8x16(w + 192))) * fill_f32x16(load_f16(w + 208))
        accm = fma_f32x16(s, load_f32x16(sums), accm)
        s = s * load_f32x16(scale)
        d = dot4_x16(zero_i32x16(), _p0(w), load_i8x64(q))
        acc = fma_f32x16(to_f32x16(d), _s0(s, s), acc)
        d = dot4_x16(zero_i32x16(), _p1(w), load_i8x64(q + 64))
        more = fma_f32x16(to_f32x16(d), _s1(s, s), more)
        d = dot4_x16(zero_i32x16(), _p2(w), load_i8x64(q + 128))
        acc = fma_f32x16(to_f32x16(d), _s2(s, s), acc)
        d = dot4_x16(zero_i32x16(), _p3(w), load_i8x64(q + 192))
        more = fma_f32x16(to_f32x16(d), _s3(s, s), more)
        w += _BYTES
        q += 256
        scale += 64
        sums += 64
    return fma_f32x16(accm, fill_f32x16(np.float32(-32)), acc + more)


@inline
def _put(u, stride, values):
    store_i8x32(u, _lower(values, values))
    store_i8x32(u + stride, _upper(values, values))


@inline
def unpack_row(w, groups, u, stride, scale, minima):
    """See CpuFormat."""
    for _ in range(groups >> 3):
        s = to_f32x16(_to_i32x16(load_i8x16(w + 192))) * fill_f32x16(load_f16(w + 208))
        store_f32x16(scale, s)
        _put(u, stride, _p0(w))
        _put(u + 2 * stride, stride, _p1(w))
        _put(u + 4 * stride, stride, _p2(w))
        _put(u + 6 * stride, stride, _p3(w))
        w += _BYTES
        u += 8 * stride
        scale += 64


FORMAT = CpuFormat(summed(dot_lanes), unpack_row, NATURAL, 32, 16, False, _BYTES, dot_lanes)
