"""What the 32-value formats share: rows of blocks as a dot product and as unpacked bytes.

Weights become unsigned bytes u with w = scale * u - minimum, where the minimum is the block's own
(Q4_1, Q5_1) or offset * scale (Q4_0, Q5_0, Q8_0). So a row's dot product with activations
a = a_scale * q is the sum over blocks of scale * a_scale * (u . q) - minimum * a_scale * sum(q).

The 4 and 5 bit formats keep elements 0-15 in the low and 16-31 in the high nibbles. 16 bytes twice,
the second ones shifted, are a block in natural order, and so are its 32 fifth bits where a CPU has
masks of a bit a byte (bits.py). IQ4_NL and MXFP4 look their 4 bits up in a table of values.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types

from .bits import add_where, gather, load_at, nibbles_of_twice, pairs, twice
from .lookup import lookup
from .simd import (
    address,
    dot4,
    fill,
    fma_f32x8,
    fma_f32x16,
    inline,
    load,
    load_f16,
    load_f32x8,
    load_i8x32,
    load_i8x64,
    make,
    shuffle,
    store_f32,
    store_i8x32,
    sum_f32x8,
    to_f32x16,
    vec,
    zero,
    zero_f32x8,
    zero_f32x16,
)
from .vector import F16, F32, I8, I16, I32, Builder, Value, constant, declare, pointer

# The orders of int8 activations within a row; see activations.py.
NATURAL, PAIR32, PAIR16, FLOAT = 1, 2, 4, 8

fill_f32x8 = fill("f32", 8)


class CpuFormat(NamedTuple):
    """One format's compiled meaning: functions to call from kernels, and what they need.

    dot_row(w, groups, q, scale, sums) -> float32 of a row of `groups` * 32 weights;
    unpack_row(w, groups, u, stride, scale, minimum): bytes in natural order, each 32 of them
    `stride` bytes after those before; one scale a `group`, one minimum a group (written only when
    offset is 0).
    """

    dot_row: Any
    unpack_row: Any
    order: int
    offset: int  # w = scale * (u - offset); 0: minima instead
    group: int  # weights a scale
    wide: bool  # u may exceed 127
    bytes_of_256: int  # weights


def halves(
    block_bytes: int,
    first: int,
    block: int,
    blocks: int,
    of: int,
    high_bits: int | None,
    table: Sequence[int] | None = None,
) -> Any:
    """values(at): <32 * blocks x i8>, the unsigned values of 1 or 2 blocks in natural order.

    They are those from `block` on of `of` blocks at the address. `high_bits` is the offset of the
    32 fifth bits in a block, or None; `table` what 4 bits mean.
    """
    kind = vec("i8", 32 * blocks)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        at, end = args[0], of * block_bytes
        x = twice(b, at, first + block * block_bytes, block_bytes, blocks, end)
        x = nibbles_of_twice(b, x)
        if table is not None:
            return lookup(b, x, table)
        if high_bits is None:
            return x
        words = [load_at(b, at, high_bits + block_bytes * (block + k), I32) for k in range(blocks)]
        return add_where(b, x, words, 16)

    return make("values", 1, lambda a: kind(address), code)


def halves_at(block_bytes: int, offset: int, blocks: int) -> Any:
    """halves_at(at): a float16 of each of 4, 2 or 1 blocks, twice: <8 x f32>, zeros behind."""
    kind = vec("f32", 8)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        words = pairs(b, args[0], block_bytes, blocks, offset, I16)
        return b.fpext(b.bitcast(words, ir.VectorType(F16, 8)), kind.llvm)

    return make("halves", 1, lambda a: kind(address), code)


def headers(block_bytes: int, blocks: int) -> Any:
    """headers(at) -> the two halves at each block's start as <2 * blocks x f32>."""
    kind = vec("f32", 2 * blocks)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        words = gather(b, args[0], block_bytes, blocks, I32, 1)
        return b.fpext(b.bitcast(words, ir.VectorType(F16, 2 * blocks)), kind.llvm)

    return make("headers", 1, lambda a: kind(address), code)


def _powers(b: Builder, exponents: Value) -> Value:
    """2^(e - 127) of <n x i8> as <n x f32>, twice the scale that is meant.

    e = 0 is a subnormal; 255, for which others take 2^128, is infinity.
    """
    count = exponents.type.count
    words = ir.VectorType(I32, count)
    bits = b.shl(b.zext(exponents, words), constant("i32", [23] * count))
    larger = declare(b, f"llvm.umax.v{count}i32", words, [words] * 2)
    bits = b.call(larger, [bits, constant("i32", [1 << 22] * count)])
    return b.bitcast(bits, ir.VectorType(F32, count))


def powers(block_bytes: int, blocks: int) -> Any:
    """powers(at): twice each block's scale, 2^(its first byte - 127), for both its halves.

    What is behind is next to nothing.
    """
    kind = vec("f32", 8)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        return _powers(b, pairs(b, args[0], block_bytes, blocks, 0, I8))

    return make("powers", 1, lambda a: kind(address), code)


def _load_power_code(b: Builder, sig: Any, args: Any) -> Value:
    e = b.load(pointer(b, args[0]), align=1, typ=ir.VectorType(I8, 1))
    return b.extract_element(_powers(b, e), ir.Constant(I32, 0))


load_power = make("load_power", 1, lambda a: types.float32(address), _load_power_code)


def make_nibble_format(
    block_bytes: int,
    first: int,
    high_bits: int | None,
    minimum: bool,
    offset: int,
    table: Sequence[int] | None = None,
    exponent: bool = False,
) -> CpuFormat:
    """Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4 from where their parts lie in a block.

    `table`: the values of 4 bits. `exponent`: a block's scale is a power of two in a byte.
    """
    shifted = None if table is None else [v + offset for v in table]
    wide = shifted is not None and max(shifted) > 127
    values1, first_of_4, last_of_4 = (
        halves(block_bytes, first, *which, high_bits, shifted)
        for which in ((0, 1, 1), (0, 2, 4), (2, 2, 4))
    )
    if exponent:
        scales4, scales1 = (powers(block_bytes, n) for n in (4, 1))
    else:
        scales4, scales1 = (halves_at(block_bytes, 0, n) for n in (4, 1))
    if minimum:
        minima4, minima1 = (halves_at(block_bytes, 2, n) for n in (4, 1))
    else:
        minima4, minima1 = scales4, scales1
    dot_x16, dot_x8 = (dot4(n, wide=wide) for n in (16, 8))
    zero_i32x16, zero_i32x8 = zero("i32", 16), zero("i32", 8)
    load2, zero2 = load("f32", 2), zero("f32", 2)

    # Scales of four 16-groups to the four lanes of each.
    first_four = shuffle("f32", 8, [j // 4 for j in range(16)])
    last_four = shuffle("f32", 8, [4 + j // 4 for j in range(16)])
    without_4 = shuffle("f32", 8, [8] * 4 + [4, 5, 6, 7])
    without_6 = shuffle("f32", 8, [8] * 6 + [6, 7])
    widen1 = shuffle("f32", 2, [0, 1, 2, 2, 2, 2, 2, 2])
    low_half = shuffle("i32", 8, list(range(8)) + [8] * 8)
    first_lanes = shuffle("f32", 16, list(range(8)))
    last_lanes = shuffle("f32", 16, list(range(8, 16)))
    negative, half = np.float32(-offset), np.float32(0.5)  # powers are twice the scale

    @inline
    def total(acc, accm):
        eight = first_lanes(acc, acc) + last_lanes(acc, acc)
        if minimum:
            return sum_f32x8(eight + accm)
        both = sum_f32x8(fma_f32x8(accm, fill_f32x8(negative), eight))
        return half * both if exponent else both

    @inline
    def dot_row(w, groups, q, scale, sums):
        acc, more, accm = zero_f32x16(), zero_f32x16(), zero_f32x8()
        for _ in range(groups >> 2):
            s = scales4(w) * load_f32x8(scale)
            d = dot_x16(zero_i32x16(), first_of_4(w), load_i8x64(q))
            e = dot_x16(zero_i32x16(), last_of_4(w), load_i8x64(q + 64))
            acc = fma_f32x16(to_f32x16(d), first_four(s, s), acc)
            more = fma_f32x16(to_f32x16(e), last_four(s, s), more)
            accm = fma_f32x8(minima4(w), load_f32x8(sums), accm)
            w += 4 * block_bytes
            q += 128
            scale += 32
            sums += 32
        if groups < 4:
            for _ in range(groups):
                s = scales1(w) * widen1(load2(scale), zero2())
                d = low_half(dot_x8(zero_i32x8(), values1(w), load_i8x32(q)), zero_i32x8())
                more = fma_f32x16(to_f32x16(d), first_four(s, s), more)
                accm = fma_f32x8(minima1(w), widen1(load2(sums), zero2()), accm)
                w += block_bytes
                q += 32
                scale += 8
                sums += 8
            return total(acc + more, accm)
        # What is left are the last of four blocks that begin before it.
        if groups & 2:
            s = scales4(w - 2 * block_bytes) * load_f32x8(scale - 16)
            d = dot_x16(zero_i32x16(), last_of_4(w - 2 * block_bytes), load_i8x64(q))
            acc = fma_f32x16(to_f32x16(d), last_four(s, s), acc)
            m = without_4(load_f32x8(sums - 16), zero_f32x8())
            accm = fma_f32x8(minima4(w - 2 * block_bytes), m, accm)
            w += 2 * block_bytes
            q += 64
            scale += 16
            sums += 16
        if groups & 1:
            s = scales4(w - 3 * block_bytes)
            s = s * without_6(load_f32x8(scale - 24), zero_f32x8())
            d = dot_x16(zero_i32x16(), last_of_4(w - 3 * block_bytes), load_i8x64(q - 32))
            more = fma_f32x16(to_f32x16(d), last_four(s, s), more)
            m = without_6(load_f32x8(sums - 24), zero_f32x8())
            accm = fma_f32x8(minima4(w - 3 * block_bytes), m, accm)
        return total(acc + more, accm)

    @inline
    def unpack_row(w, groups, u, stride, scale, minima):
        for _ in range(groups):
            store_i8x32(u, values1(w))
            store_f32(scale, half * load_power(w) if exponent else load_f16(w))
            if minimum:
                store_f32(minima, -load_f16(w + 2))
            w += block_bytes
            u += stride
            scale += 4
            minima += 4

    return CpuFormat(dot_row, unpack_row, NATURAL, offset, 32, wide, 8 * block_bytes)
