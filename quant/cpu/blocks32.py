"""What the 32-value formats share: rows of blocks as a dot product and as unpacked bytes.

Weights become unsigned bytes u with w = scale * u - minimum, where the minimum is the block's own
(Q4_1, Q5_1) or offset * scale (Q4_0, Q5_0, Q8_0). So a row's dot product with activations
a = a_scale * q is the sum over blocks of scale * a_scale * (u . q) - minimum * a_scale * sum(q).

The 4 and 5 bit formats keep elements 0-15 in the low and 16-31 in the high nibbles. Four blocks at
once then give one vector of low and one of high parts; the activations lie in the same order
(`PAIR16`, see activations.py), so nothing is shuffled. IQ4_NL and MXFP4 look their 4 bits up in a
table of values.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types

from .floats import widen_code
from .lookup import lookup
from .simd import (
    WIDE_BIAS,
    address,
    dot4,
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
    sum_f32x16,
    to_f32x16,
    vec,
    zero,
    zero_f32x8,
    zero_f32x16,
)
from .vector import F16, F32, I8, I32, I64, Builder, Value, constant, declare, lanes, pointer

# The orders of int8 activations within a row; see activations.py.
NATURAL, PAIR32, PAIR16, FLOAT = 1, 2, 4, 8


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


def _gather(b: Builder, at: Any, stride: int, count: int, kind: ir.Type, n: int) -> Value:
    """`count` little vectors <n x kind>, `stride` bytes apart, side by side."""
    parts = [
        b.load(
            pointer(b, b.add(at, ir.Constant(I64, i * stride))), align=1, typ=ir.VectorType(kind, n)
        )
        for i in range(count)
    ]
    while len(parts) > 1:
        both = list(range(2 * parts[0].type.count))
        parts = [lanes(b, parts[i], parts[i + 1], both) for i in range(0, len(parts), 2)]
    return parts[0]


def nibbles(
    block_bytes: int,
    first: int,
    blocks: int,
    high_bits: int | None,
    table: Sequence[int] | None = None,
) -> tuple[Any, Any]:
    """Intrinsics (low(at), high(at)): <16 * blocks x i8> of the two halves of `blocks` blocks.

    `high_bits` is the offset of the 32 fifth bits in a block, or None; `table` what 4 bits mean.
    """
    kind = vec("i8", 16 * blocks)

    def half(which: int) -> Any:
        def code(b: Builder, sig: Any, args: Any) -> Value:
            i8 = kind.llvm.element
            at = args[0]
            x = _gather(b, b.add(at, ir.Constant(I64, first)), block_bytes, blocks, i8, 16)
            if which:
                x = b.lshr(x, constant("i8", [4] * 16 * blocks))
            else:
                x = b.and_(x, constant("i8", [15] * 16 * blocks))
            if table is not None:
                return lookup(b, x, table)
            if high_bits is None:
                return x
            bits = _gather(b, b.add(at, ir.Constant(I64, high_bits)), block_bytes, blocks, i8, 4)
            order = [4 * k + 2 * which + j // 8 for k in range(blocks) for j in range(16)]
            spread = lanes(b, bits, bits, order)
            single = constant("i8", [1 << (j % 8) for j in range(16)] * blocks)
            on = b.icmp_unsigned("!=", b.and_(spread, single), ir.Constant(kind.llvm, None))
            return b.select(on, b.or_(x, constant("i8", [16] * 16 * blocks)), x)

        return make(f"nibbles_{which}", 1, lambda a: kind(address), code)

    return half(0), half(1)


def headers(block_bytes: int, blocks: int) -> Any:
    """headers(at) -> the two halves at each block's start as <2 * blocks x f32>."""
    kind = vec("f32", 2 * blocks)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        words = (
            _gather(b, args[0], block_bytes, blocks, I32, 1)
            if blocks > 1
            else b.load(pointer(b, args[0]), align=1, typ=ir.VectorType(I32, 1))
        )
        return widen_code(b, b.bitcast(words, ir.VectorType(F16, 2 * blocks)))

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
    """powers(at) -> the power of two of each block's first byte, twice, as <2 * blocks x f32>."""
    kind = vec("f32", 2 * blocks)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        if blocks > 1:
            e = _gather(b, args[0], block_bytes, blocks, I8, 1)
        else:
            e = b.load(pointer(b, args[0]), align=1, typ=ir.VectorType(I8, 1))
        power = _powers(b, e)
        return lanes(b, power, power, [k for k in range(blocks) for _ in range(2)])

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
    low4, high4 = nibbles(block_bytes, first, 4, high_bits, shifted)
    low2, high2 = nibbles(block_bytes, first, 2, high_bits, shifted)
    low1, high1 = nibbles(block_bytes, first, 1, high_bits, shifted)
    head4, head2, head1 = ((powers if exponent else headers)(block_bytes, n) for n in (4, 2, 1))
    dot_x16, dot_x8, dot_x4 = (dot4(n, wide=wide) for n in (16, 8, 4))
    zero_i32x16, zero_i32x8, zero_i32x4 = zero("i32", 16), zero("i32", 8), zero("i32", 4)

    # Activation scales of 8 groups of 16, to the lanes of the low and the high halves.
    even4 = shuffle("f32", 8, [2 * (j // 4) for j in range(16)])
    odd4 = shuffle("f32", 8, [2 * (j // 4) + 1 for j in range(16)])
    # A header is a scale and a minimum: either of them for both halves of a block.
    pairs_scale4 = shuffle("f32", 8, [2 * (j // 2) for j in range(8)])
    pairs_minimum4 = shuffle("f32", 8, [2 * (j // 2) + 1 for j in range(8)])
    widen2 = shuffle("f32", 4, list(range(4)) + [4] * 4)
    widen1 = shuffle("f32", 2, [0, 1, 2, 2, 2, 2, 2, 2])
    low_half = shuffle("i32", 8, list(range(8)) + [8] * 8)
    low_quarter = shuffle("i32", 4, list(range(4)) + [4] * 12)
    load2, load4 = load("f32", 2), load("f32", 4)
    load_i8x16 = load("i8", 16)
    zero4, zero2 = zero("f32", 4), zero("f32", 2)
    pick = pairs_minimum4 if minimum else pairs_scale4
    # Powers are twice the scale.
    left = offset - WIDE_BIAS if wide else offset
    factor, half = np.float32(left / 2 if exponent else left), np.float32(0.5)

    @inline
    def step(h, low, high, q_scale, sums, acc, more, accm):
        s = pairs_scale4(h, h) * q_scale
        acc = fma_f32x16(to_f32x16(low), even4(s, s), acc)
        more = fma_f32x16(to_f32x16(high), odd4(s, s), more)
        return acc, more, fma_f32x8(pick(h, h), sums, accm)

    @inline
    def dot_row(w, groups, q, scale, sums):
        acc, more, accm = zero_f32x16(), zero_f32x16(), zero_f32x8()
        for _ in range(groups >> 2):
            low = dot_x16(zero_i32x16(), low4(w), load_i8x64(q))
            high = dot_x16(zero_i32x16(), high4(w), load_i8x64(q + 64))
            qs, su = load_f32x8(scale), load_f32x8(sums)
            acc, more, accm = step(head4(w), low, high, qs, su, acc, more, accm)
            w += 4 * block_bytes
            q += 128
            scale += 32
            sums += 32
        if groups & 2:
            low = low_half(dot_x8(zero_i32x8(), low2(w), load_i8x32(q)), zero_i32x8())
            high = low_half(dot_x8(zero_i32x8(), high2(w), load_i8x32(q + 32)), zero_i32x8())
            h = widen2(head2(w), zero4())
            qs, su = widen2(load4(scale), zero4()), widen2(load4(sums), zero4())
            acc, more, accm = step(h, low, high, qs, su, acc, more, accm)
            w += 2 * block_bytes
            q += 64
            scale += 16
            sums += 16
        if groups & 1:
            low = low_quarter(dot_x4(zero_i32x4(), low1(w), load_i8x16(q)), zero_i32x4())
            high = low_quarter(dot_x4(zero_i32x4(), high1(w), load_i8x16(q + 16)), zero_i32x4())
            h = widen1(head1(w), zero2())
            qs, su = widen1(load2(scale), zero2()), widen1(load2(sums), zero2())
            acc, more, accm = step(h, low, high, qs, su, acc, more, accm)
        total = sum_f32x16(acc + more)
        if exponent:
            total = half * total
        if minimum:
            return total + sum_f32x8(accm)
        return total - factor * sum_f32x8(accm)

    natural = shuffle("i8", 16, list(range(32)))

    @inline
    def unpack_row(w, groups, u, stride, scale, minima):
        for _ in range(groups):
            store_i8x32(u, natural(low1(w), high1(w)))
            store_f32(scale, half * load_power(w) if exponent else load_f16(w))
            if minimum:
                store_f32(minima, -load_f16(w + 2))
            w += block_bytes
            u += stride
            scale += 4
            minima += 4

    return CpuFormat(dot_row, unpack_row, PAIR16, offset, 32, wide, 8 * block_bytes)
