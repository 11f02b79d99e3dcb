"""IQ4_XS on the CPU: 64 bytes hold four 32-groups, whose halves are low and high nibbles.

So 128 activations in the order `PAIR16` meet them as they are.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from ..iq4_nl import VALUES
from .blocks32 import PAIR16, CpuFormat
from .floats import widen_code
from .lookup import lookup
from .prefetch import prefetch_ahead
from .simd import (
    WIDE_BIAS,
    address,
    dot4_wide_x16,
    fill_f32x16,
    fma_f32x16,
    inline,
    load_f32x16,
    load_i8x64,
    make,
    shuffle,
    store_f32x8,
    store_i8x32,
    sum_f32x16,
    to_f32x16,
    vec,
    zero_f32x16,
    zero_i32x16,
)
from .vector import F16, F32, I16, I32, I64, Builder, Value, constant, lanes, pointer, splat

_BYTES, _QS = 136, 8
_OFFSET = -min(VALUES)
_ahead = prefetch_ahead(_BYTES)


def _part(chunk: int, which: int) -> Any:
    """The first (which = 0) or last 16 values of the 32-groups 4 * chunk + (0..3)."""
    kind = vec("i8", 64)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        at = pointer(b, b.add(args[0], I64(_QS + 64 * chunk)))
        x = b.load(at, align=1, typ=kind.llvm)
        if which:
            x = b.lshr(x, constant("i8", [4] * 64))
        else:
            x = b.and_(x, constant("i8", [15] * 64))
        return lookup(b, x, [v + _OFFSET for v in VALUES])

    return make(f"values_{chunk}{which}", 1, lambda a: kind(address), code)


def _scales_code(b: Builder, sig: Any, args: Any) -> Value:
    """The eight scales of a block, d included."""
    head = b.load(pointer(b, args[0]), align=1, typ=ir.VectorType(I16, 4))
    words = b.bitcast(head, ir.VectorType(I32, 2))
    low = lanes(b, words, words, [1] * 8)
    low = b.lshr(low, constant("i32", [4 * i for i in range(8)]))
    high = lanes(b, words, words, [0] * 8)  # the upper two bits are in its high half
    high = b.lshr(high, constant("i32", [max(0, 12 + 2 * i) for i in range(8)]))
    both = b.or_(b.and_(low, constant("i32", [15] * 8)), b.and_(high, constant("i32", [48] * 8)))
    floats = b.sitofp(b.sub(both, constant("i32", [32] * 8)), ir.VectorType(F32, 8))
    d = b.extract_element(b.bitcast(head, ir.VectorType(F16, 4)), ir.Constant(I32, 0))
    return b.fmul(floats, splat(b, widen_code(b, d), 8))


_e0, _o0, _e1, _o1 = (_part(c, w) for c in range(2) for w in range(2))
_scales = make("scales", 1, lambda a: vec("f32", 8)(address), _scales_code)
_twice = shuffle("f32", 8, [j // 2 for j in range(16)])
_s0, _t0, _s1, _t1 = (
    shuffle("f32", 16, [8 * c + 2 * (j // 4) + w for j in range(16)])
    for c in range(2)
    for w in range(2)
)


@inline
def dot_row(w, groups, q, scale, sums):
    """See CpuFormat."""
    acc, more, accm = zero_f32x16(), zero_f32x16(), zero_f32x16()
    for _ in range(groups >> 3):
        _ahead(w)
        s = _scales(w)
        s = _twice(s, s)
        accm = fma_f32x16(s, load_f32x16(sums), accm)
        s = s * load_f32x16(scale)
        d = dot4_wide_x16(zero_i32x16(), _e0(w), load_i8x64(q))
        acc = fma_f32x16(to_f32x16(d), _s0(s, s), acc)
        d = dot4_wide_x16(zero_i32x16(), _o0(w), load_i8x64(q + 64))
        more = fma_f32x16(to_f32x16(d), _t0(s, s), more)
        d = dot4_wide_x16(zero_i32x16(), _e1(w), load_i8x64(q + 128))
        acc = fma_f32x16(to_f32x16(d), _s1(s, s), acc)
        d = dot4_wide_x16(zero_i32x16(), _o1(w), load_i8x64(q + 192))
        more = fma_f32x16(to_f32x16(d), _t1(s, s), more)
        w += _BYTES
        q += 256
        scale += 64
        sums += 64
    return sum_f32x16(fma_f32x16(accm, fill_f32x16(np.float32(WIDE_BIAS - _OFFSET)), acc + more))


_g0, _g1, _g2, _g3 = (
    shuffle("i8", 64, [16 * g + 64 * w + j for w in range(2) for j in range(16)]) for g in range(4)
)


@inline
def _put(u, stride, even, odd):
    store_i8x32(u, _g0(even, odd))
    store_i8x32(u + stride, _g1(even, odd))
    store_i8x32(u + 2 * stride, _g2(even, odd))
    store_i8x32(u + 3 * stride, _g3(even, odd))


@inline
def unpack_row(w, groups, u, stride, scale, minima):
    """See CpuFormat."""
    for _ in range(groups >> 3):
        store_f32x8(scale, _scales(w))
        _put(u, stride, _e0(w), _o0(w))
        _put(u + 4 * stride, stride, _e1(w), _o1(w))
        w += _BYTES
        u += 8 * stride
        scale += 32


FORMAT = CpuFormat(dot_row, unpack_row, PAIR16, _OFFSET, 32, True, _BYTES)
