"""What the formats share whose blocks of 256 are expanded in registers before they are multiplied.

A format says how its block becomes four vectors of 64 unsigned bytes u and sixteen scales, one a
16 weights (two alike where a scale is one a 32), with w = scale * (u - offset).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from .blocks32 import NATURAL, CpuFormat
from .floats import widen_code
from .prefetch import prefetch_ahead
from .simd import (
    address,
    dot4_x16,
    fill_f32x16,
    fma_f32x16,
    inline,
    load_f32x16,
    load_i8x64,
    make,
    shuffle,
    store_f32x8,
    store_f32x16,
    store_i8x32,
    sum_f32x16,
    to_f32x16,
    vec,
    zero_f32x16,
    zero_i32x16,
)
from .vector import F16, F32, I64, Builder, Registers, Value, constant, pointer, splat

_BYTES = vec("i8", 64)
_BLOCK = Registers(_BYTES, 4)


def read(b: Builder, at: Value, offset: int, kind: ir.Type) -> Value:
    """The value of a type that lies `offset` bytes after an address."""
    return b.load(pointer(b, b.add(at, I64(offset))), align=1, typ=kind)


def half(b: Builder, at: Value, offset: int) -> Value:
    """The float16 there, as float32."""
    return widen_code(b, read(b, at, offset, F16))


def scaled(b: Builder, steps: Value, d: Value, times: float, plus: float) -> Value:
    """<16 x i32> steps s -> d * (s * times + plus), exact as long as that has some 10 bits."""
    kind = ir.VectorType(F32, 16)
    s = b.fmul(b.sitofp(steps, kind), constant("f32", [times] * 16))
    return b.fmul(b.fadd(s, constant("f32", [plus] * 16)), splat(b, d, 16))


def _part(index: int) -> Any:
    return make(
        f"part_{index}", 1, lambda a: _BYTES(_BLOCK), lambda b, s, a: b.extract_value(*a, index)
    )


_part0, _part1, _part2, _part3 = (_part(i) for i in range(4))
_lower, _upper = (shuffle("i8", 64, list(range(i, i + 32))) for i in (0, 32))
_evens = shuffle("f32", 16, list(range(0, 16, 2)))
_s0, _s1, _s2, _s3 = (shuffle("f32", 16, [4 * i + j // 4 for j in range(16)]) for i in range(4))


@inline
def _put(u, stride, values):
    store_i8x32(u, _lower(values, values))
    store_i8x32(u + stride, _upper(values, values))


def make_expanded(
    block_bytes: int,
    expand: Callable[[Builder, Value], Sequence[Value]],
    scales: Callable[[Builder, Value], Value],
    *,
    offset: int,
    group: int,
) -> CpuFormat:
    """A format from (builder, block's address) -> its bytes, 4 x <64 x i8>; its scales, <16 x f32>.

    Bytes are below 128; `offset` is not 0.
    """

    def expand_code(b: Builder, sig: Any, args: Any) -> Value:
        value: Any = ir.Constant(_BLOCK.llvm, ir.Undefined)
        for i, part in enumerate(expand(b, args[0])):
            value = b.insert_value(value, part, i)
        return value

    expanded = make("expanded", 1, lambda a: _BLOCK(address), expand_code)
    scales_of = make(
        "scales_of", 1, lambda a: vec("f32", 16)(address), lambda b, sig, a: scales(b, a[0])
    )
    ahead = prefetch_ahead(block_bytes)
    negative = np.float32(-offset)
    halves = group == 16

    @inline
    def dot_row(w, groups, q, scale, sums):
        acc, more, accm = zero_f32x16(), zero_f32x16(), zero_f32x16()
        for _ in range(groups >> 3):
            ahead(w)
            x, s = expanded(w), scales_of(w)
            accm = fma_f32x16(s, load_f32x16(sums), accm)
            s = s * load_f32x16(scale)
            d = dot4_x16(zero_i32x16(), _part0(x), load_i8x64(q))
            acc = fma_f32x16(to_f32x16(d), _s0(s, s), acc)
            d = dot4_x16(zero_i32x16(), _part1(x), load_i8x64(q + 64))
            more = fma_f32x16(to_f32x16(d), _s1(s, s), more)
            d = dot4_x16(zero_i32x16(), _part2(x), load_i8x64(q + 128))
            acc = fma_f32x16(to_f32x16(d), _s2(s, s), acc)
            d = dot4_x16(zero_i32x16(), _part3(x), load_i8x64(q + 192))
            more = fma_f32x16(to_f32x16(d), _s3(s, s), more)
            w += block_bytes
            q += 256
            scale += 64
            sums += 64
        return sum_f32x16(fma_f32x16(accm, fill_f32x16(negative), acc + more))

    @inline
    def unpack_row(w, groups, u, stride, scale, minima):
        for _ in range(groups >> 3):
            x, s = expanded(w), scales_of(w)
            if halves:
                store_f32x16(scale, s)
                scale += 64
            else:
                store_f32x8(scale, _evens(s, s))
                scale += 32
            _put(u, stride, _part0(x))
            _put(u + 2 * stride, stride, _part1(x))
            _put(u + 4 * stride, stride, _part2(x))
            _put(u + 6 * stride, stride, _part3(x))
            w += block_bytes
            u += 8 * stride

    return CpuFormat(dot_row, unpack_row, NATURAL, offset, group, False, block_bytes)
