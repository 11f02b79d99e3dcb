"""Q8_0 on the CPU: signed bytes; flipping the top bit makes them unsigned with an offset of 128."""

import numpy as np

from .blocks32 import NATURAL, CpuFormat, headers
from .prefetch import prefetch_ahead
from .simd import (
    WIDE_BIAS,
    address,
    dot4_wide_x8,
    dot4_wide_x16,
    fma_f32x4,
    fma_f32x16,
    inline,
    load,
    load_f16,
    load_f32x4,
    load_i8x32,
    load_i8x64,
    make,
    shuffle,
    store_f32,
    store_i8x32,
    sum_f32x4,
    sum_f32x16,
    to_f32x16,
    vec,
    zero,
    zero_f32x4,
    zero_f32x16,
)
from .vector import I64, constant, lanes, pointer

_BYTES = 34
_ahead = prefetch_ahead(64)


def _flipped(blocks: int):
    kind = vec("i8", 32 * blocks)

    def code(b, sig, args):
        parts = [
            b.load(pointer(b, b.add(args[0], I64(2 + _BYTES * i))), align=1, typ=vec("i8", 32).llvm)
            for i in range(blocks)
        ]
        x = parts[0] if blocks == 1 else lanes(b, parts[0], parts[1], list(range(64)))
        return b.xor(x, constant("i8", [0x80] * 32 * blocks))

    return make("flipped", 1, lambda a: kind(address), code)


_flipped2, _flipped1 = _flipped(2), _flipped(1)
_heads2, _heads1 = headers(_BYTES, 2), headers(_BYTES, 1)
# Lanes 0-7 belong to the first block, 8-15 to the second; their second halves are quants.
_scales = shuffle("f32", 4, [2 * (j // 8) for j in range(16)])
_scales4 = shuffle("f32", 4, [0, 0, 2, 2])
_spread = shuffle("f32", 4, [j // 4 for j in range(16)])
_only_first = shuffle("f32", 2, [0, 1, 2, 2])
_low_half = shuffle("i32", 8, list(range(8)) + [8] * 8)
_zero_i32x16, _zero_i32x8, _zero_f32x2 = zero("i32", 16), zero("i32", 8), zero("f32", 2)
_load_f32x2 = load("f32", 2)


@inline
def dot_row(w, groups, q, scale, sums):
    """See CpuFormat."""
    acc, accm = zero_f32x16(), zero_f32x4()
    for _ in range(groups >> 1):
        _ahead(w)
        h, qs = _heads2(w), load_f32x4(scale)
        d = dot4_wide_x16(_zero_i32x16(), _flipped2(w), load_i8x64(q))
        acc = fma_f32x16(to_f32x16(d), _scales(h, h) * _spread(qs, qs), acc)
        accm = fma_f32x4(_scales4(h, h), load_f32x4(sums), accm)
        w += 2 * _BYTES
        q += 64
        scale += 16
        sums += 16
    if groups & 1:
        h = _only_first(_heads1(w), _zero_f32x2())
        qs = _only_first(_load_f32x2(scale), _zero_f32x2())
        d = dot4_wide_x8(_zero_i32x8(), _flipped1(w), load_i8x32(q))
        s = _scales(h, h) * _spread(qs, qs)
        acc = fma_f32x16(to_f32x16(_low_half(d, _zero_i32x8())), s, acc)
        accm = fma_f32x4(_scales4(h, h), _only_first(_load_f32x2(sums), _zero_f32x2()), accm)
    if WIDE_BIAS == 128:  # nothing is left of the offset
        return sum_f32x16(acc)
    return sum_f32x16(acc) - np.float32(128) * sum_f32x4(accm)


@inline
def unpack_row(w, groups, u, stride, scale, minima):
    """See CpuFormat."""
    for _ in range(groups):
        store_i8x32(u, _flipped1(w))
        store_f32(scale, load_f16(w))
        w += _BYTES
        u += stride
        scale += 4


FORMAT = CpuFormat(dot_row, unpack_row, NATURAL, 128, 32, True, 8 * _BYTES)
