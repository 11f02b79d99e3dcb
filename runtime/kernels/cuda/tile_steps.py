"""What a warp does with a step of tiles (matmul_tiles.py): multiply it, as bytes or as float16.

As bytes, 32 columns are multiplied and summed exactly, and each sum is scaled in float32. As
float16, weights are scaled before (and so rounded to 11 bits), and summed in float32 throughout;
from about 16 tokens on that is less work, as the scaling is the same for any number of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....quant.cuda.fragments import Fragments, fragments
from ....quant.cuda.matrices import mma_f16, mma_s8, mma_s8_half
from ....quant.cuda.memory import load_f32x4, load_i32, load_i32x2, load_i32x4
from ....quant.cuda.simt import (
    add_half2,
    bits_f32,
    fill,
    fma,
    fma_half2,
    i32,
    inline,
    make_i32x2,
    make_i32x4,
    pack_half2,
    permute_bytes,
    put,
    put_part,
    take,
    xor32,
    zero,
)
from ....quant.cuda.tiles import LAYOUTS
from .launches.matmul_tiles import Variant

# Counts begin at the bits of 1.5 * 2^23, where float32 numbers are whole: read as one and less
# that, they are float32 numbers.
_COUNT_FROM = np.float32(12582912.0)

_four = fill("i32x4")
_pair_of = take("i32x4", 2)


@dataclass(frozen=True)
class Steps:
    """units: of 32 columns in a step; x_unit, scales_unit: bytes of activations to the next one.

    none(): sums of zero. empty, fetch: of the fragments. x_place, scales_place(address, stride,
    first block of eight tokens, lane): where a thread begins to read. step(sums, words, ahead, at,
    apart, lane, x, scales, stride, last) multiplies `words`, fetches those of the step at `at` and
    returns both; tiles are `apart` bytes apart; `last` is the last unit that has columns.
    """

    units: int
    x_unit: int
    scales_unit: int
    none: Callable[[], Any]
    empty: Callable[[], Any]
    fetch: Callable[..., Any]
    x_place: Callable[..., Any]
    scales_place: Callable[..., Any]
    step: Callable[..., Any]


def steps(variant: Variant) -> Steps:
    """Those of a variant."""
    parts = fragments(variant.layout, variant.tiles)
    whole = LAYOUTS[variant.layout].columns == 256  # no step has missing columns
    made = _half_steps if variant.half else _byte_steps
    return made(parts, variant.blocks, variant.tiles, whole)


def _byte_steps(parts: Fragments, blocks: int, tiles: int, whole: bool) -> Steps:
    """stride: units from one block of eight tokens to the next."""
    units, halves, minima = parts.units, parts.halves, parts.minima
    fetch, unit = parts.fetch, parts.unit
    lane_bytes = 4 if halves else 8
    none, put_sum = zero(f"f32x{4 * tiles * blocks}"), put(f"f32x{4 * tiles * blocks}")
    no_bytes, put_bytes = zero(f"i32x{4 * tiles}"), put_part(f"i32x{4 * tiles}", 4)
    bytes_of = take(f"i32x{4 * tiles}", 4)
    no_factors, put_factors = zero(f"f32x{4 * tiles}"), put_part(f"f32x{4 * tiles}", 4)
    factors_of = take(f"f32x{4 * tiles}", 4)

    @inline
    def x_place(at, stride, block, lane):
        return at + block * stride * 256 + (lane >> 2) * 32 + (lane & 3) * lane_bytes

    @inline
    def scales_place(at, stride, block, lane):
        return at + block * stride * 64 + (lane & 3) * 16

    @inline
    def multiply(total, at, a, s, x0, x1, pair):
        """A unit of a tile by eight tokens, into elements 4 * at... of the sums."""
        start = _four(i32(0x4B400000))
        if halves:
            c = mma_s8_half(_pair_of(a, 0), x0, start)
            more = mma_s8_half(_pair_of(a, 1), x1, start)
            for k in range(4):
                v = (bits_f32(c[k]) - _COUNT_FROM) * s[k >> 1]
                v = fma(bits_f32(more[k]) - _COUNT_FROM, s[2 + (k >> 1)], v)
                total = put_sum(total, 4 * at + k, fma(v, pair[2 * (k & 1)], total[4 * at + k]))
        else:
            c = mma_s8(a, make_i32x2(x0, x1), start)
            for k in range(4):
                scale = s[k >> 1] * pair[2 * (k & 1)]
                v = fma(bits_f32(c[k]) - _COUNT_FROM, scale, total[4 * at + k])
                if minima:
                    v = fma(s[2 + (k >> 1)], pair[2 * (k & 1) + 1], v)
                total = put_sum(total, 4 * at + k, v)
        return total

    @inline
    def step(total, words, ahead, at, apart, lane, x, scales, stride, last):
        for u in range(units):
            a, s = no_bytes(), no_factors()
            for r in range(tiles):
                found, factors = unit(words, r, u)
                a, s = put_bytes(a, r, found), put_factors(s, r, factors)
            place = u
            if not whole and last < u:
                place = last  # of missing columns, which are multiplied by zero
            for n in range(blocks):
                from_x = x + (n * stride + place) * 256
                if halves:
                    x0, x1 = load_i32(from_x), load_i32(from_x + 16)
                else:
                    both = load_i32x2(from_x)
                    x0, x1 = both[0], both[1]
                pair = load_f32x4(scales + (n * stride + place) * 64)
                for r in range(tiles):
                    i = r * blocks + n
                    total = multiply(total, i, bytes_of(a, r), factors_of(s, r), x0, x1, pair)
            for r in range(tiles):
                ahead = fetch(ahead, r, at + r * apart, lane, u)
        return total, ahead

    return Steps(units, 256, 64, none, parts.empty, fetch, x_place, scales_place, step)


def _half_steps(parts: Fragments, blocks: int, tiles: int, whole: bool) -> Steps:
    """stride: bytes from one token to the next."""
    units, halves, minima = parts.units, parts.halves, parts.minima
    fetch, unit = parts.fetch, parts.unit
    lane_bytes = 8 if halves else 16
    kind = f"f32x{4 * tiles * blocks}"
    none, put_sums, sums_of = zero(kind), put_part(kind, 4), take(kind, 4)
    kind = f"i32x{8 * tiles}"
    no_numbers, put_numbers, numbers_of = zero(kind), put_part(kind, 4), take(kind, 4)

    @inline
    def x_place(at, stride, block, lane):
        return at + (block * 8 + (lane >> 2)) * stride + (lane & 3) * lane_bytes

    @inline
    def scales_place(at, stride, block, lane):
        return at

    @inline
    def numbers(word, order, scale, base):
        """Two bytes as numbers: those after 0x64 are 1024 and more as float16."""
        both = permute_bytes(word, i32(0x64646464), order)
        if minima:
            return fma_half2(add_half2(both, i32(0xE400E400)), scale, base)
        return fma_half2(add_half2(both, i32(0xE480E480)), scale, base)

    @inline
    def numbers_of_half(a, s, k):
        """Half a unit of a tile, as mma_f16 takes it."""
        first, second = a[2 * k], a[2 * k + 1]
        scale0, scale1 = s[0], s[1]
        base0, base1 = i32(0), i32(0)
        if minima:
            base0, base1 = pack_half2(s[2], s[2]), pack_half2(s[3], s[3])
        else:
            first, second = xor32(first, i32(0x80808080)), xor32(second, i32(0x80808080))
        if halves and k == 1:
            scale0, scale1 = s[2], s[3]
        factor0, factor1 = pack_half2(scale0, scale0), pack_half2(scale1, scale1)
        low, high = i32(0x4140), i32(0x4342)
        return make_i32x4(
            numbers(first, low, factor0, base0),
            numbers(second, low, factor1, base1),
            numbers(first, high, factor0, base0),
            numbers(second, high, factor1, base1),
        )

    @inline
    def step(total, words, ahead, at, apart, lane, x, scales, stride, last):
        for u in range(units):
            a = no_numbers()
            for r in range(tiles):
                found, factors = unit(words, r, u)
                a = put_numbers(a, 2 * r, numbers_of_half(found, factors, 0))
                a = put_numbers(a, 2 * r + 1, numbers_of_half(found, factors, 1))
            place = u
            if not whole and last < u:
                place = last  # of missing columns, which are multiplied by zero
            for n in range(blocks):
                from_x = x + n * 8 * stride + place * 64
                if halves:
                    first, second = load_i32x2(from_x), load_i32x2(from_x + 32)
                else:
                    both = load_i32x4(from_x)
                    first, second = _pair_of(both, 0), _pair_of(both, 1)
                for r in range(tiles):
                    i = r * blocks + n
                    c = mma_f16(numbers_of(a, 2 * r), first, sums_of(total, i))
                    c = mma_f16(numbers_of(a, 2 * r + 1), second, c)
                    total = put_sums(total, i, c)
            for r in range(tiles):
                ahead = fetch(ahead, r, at + r * apart, lane, u)
        return total, ahead

    return Steps(units, 64, 0, none, parts.empty, fetch, x_place, scales_place, step)
