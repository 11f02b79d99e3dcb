"""Blocks of 32 without importance: scales from the extremes, quants rounded, in 16 lanes.

A scale of 0 makes all quants those of zero. So small a scale that its inverse is infinite makes
them all 0: what infinity and NaN become as integers on x86, which llama.cpp's files have there.
"""

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    call,
    fill_f32x16,
    inline,
    literal,
    load_f32,
    load_f32x16,
    max_f32x16,
    max_f32x16_all,
    narrow_i32x16,
    shift_left,
    store_f16,
    store_i8x16,
    store_i32,
    to_i32x16,
)
from ..cpu.vector import vec
from .block_words import fifth_bits, first_bit, lanes_equal, min_f32x16_all
from .words import smaller

_LARGEST = np.float32(np.finfo(np.float32).max)
_ZERO, _ONE = np.float32(0), np.float32(1)
_min_f32x16 = call("llvm.minnum.v16f32", vec("f32", 16), 2, ("nnan",))
_fifteen = literal("i32", [15] * 16)
_up4 = shift_left("i32", 16, 4)


@inline
def largest(at):
    """The largest |x| of 32 at an address."""
    low, high = abs_f32x16(load_f32x16(at)), abs_f32x16(load_f32x16(at + 64))
    return max_f32x16_all(max_f32x16(low, high))


@inline
def _first_equal(low, high, value, at):
    """The first of 32 values at an address whose 32 lanes (|x| or x) equal one of them."""
    found = lanes_equal(low, value) | (lanes_equal(high, value) << 16)
    return load_f32(at + 4 * first_bit(found))


@inline
def extreme(at):
    """The first of 32 values that is the largest but for its sign; 0 where all are zeros."""
    low, high = abs_f32x16(load_f32x16(at)), abs_f32x16(load_f32x16(at + 64))
    top = max_f32x16_all(max_f32x16(low, high))
    return _ZERO if top == _ZERO else _first_equal(low, high, top, at)


@inline
def limits(at):
    """The least and the largest of 32 values; a least zero has the sign of the first zero."""
    low, high = load_f32x16(at), load_f32x16(at + 64)
    least = min_f32x16_all(_min_f32x16(low, high))
    if least == _ZERO:
        least = _first_equal(low, high, least, at)
    return least, max_f32x16_all(max_f32x16(low, high))


@inline
def inverse(d):
    """1 / d, or 0 where that is no number."""
    found = _ONE / d
    return found if abs(found) <= _LARGEST else _ZERO


@inline
def half_added(d, inverse_d, half):
    """What is added to x / d before it is cut off: `half`, or 0 where all quants are to be 0."""
    return _ZERO if inverse_d == _ZERO and d != _ZERO else half


@inline
def _quants(x, inverse_d, half, most):
    """x / d + half without its fraction, at most `most`, as integers; NaN is left to become 0."""
    scaled = x * fill_f32x16(inverse_d) + fill_f32x16(half)
    return to_i32x16(smaller(fill_f32x16(most), scaled))


@inline
def _put_quants(low, high, bits, out):
    """Two times 16 quants of 4 or 5 bits: all fifth bits before their nibbles."""
    if bits == 5:
        store_i32(out, np.int32(fifth_bits(low) | (fifth_bits(high) << 16)))
        out += 4
        low, high = low & _fifteen(), high & _fifteen()
    store_i8x16(out, narrow_i32x16(low | _up4(high)))


@inline
def symmetric(values, out, blocks, bits):
    """Blocks of Q4_0 and Q5_0: x = d * (q - offset), the extreme has q = 0."""
    offset = np.float32(1 << (bits - 1))
    most = offset + offset - np.float32(0.5)
    for _ in range(blocks):
        d = extreme(values) / -offset
        by = inverse(d)
        half = half_added(d, by, offset + np.float32(0.5))
        store_f16(out, d)
        low = _quants(load_f32x16(values), by, half, most)
        high = _quants(load_f32x16(values + 64), by, half, most)
        _put_quants(low, high, bits, out + 2)
        values += 128
        out += 4 * bits + 2


@inline
def affine(values, out, blocks, bits):
    """Blocks of Q4_1 and Q5_1: x = d * q + m, the least has q = 0 and the largest the last q."""
    steps = np.float32((1 << bits) - 1)
    for _ in range(blocks):
        least, most = limits(values)
        # Of zeros of both signs, `most` may be any.
        d = _ZERO if most == least else (most - least) / steps
        by = inverse(d)
        half = half_added(d, by, np.float32(0.5))
        store_f16(out, d)
        store_f16(out + 2, least)
        m = fill_f32x16(least)
        low = _quants(load_f32x16(values) - m, by, half, steps + np.float32(0.5))
        high = _quants(load_f32x16(values + 64) - m, by, half, steps + np.float32(0.5))
        _put_quants(low, high, bits, out + 4)
        values += 128
        out += 4 * bits + 4
