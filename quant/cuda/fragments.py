"""What a layout of tiles (tiles.py) is to kernels: how a warp reads it, and what tensor cores get.

A thread keeps a step of `tiles` tiles as words: Layout.words of each, pieces of four as they lie in
memory. `fetch(words, r, at, lane, when)` reads into them what tile r's step at address `at` has in
place of what unit `when` was the last (or a late one) to need; all of it, for all `when`.
`unit(words, r, u)` gives the 16 x 32 bytes of a unit as mma_s8 takes them (for `halves`, where
scales are one a 16, as mma_s8_half does twice, the first half's two words first), and four factors:
the scales of rows g and g + 8, then, for `halves`, those of the second half, or, for `minima`, what
the sum of the activations is multiplied by.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .memory import stream_i32, stream_i32x2, stream_i32x4
from .simt import (
    and32,
    bits_f32,
    f32_of,
    fma,
    half,
    half_high,
    i32,
    inline,
    make_f32x4,
    make_i32x4,
    or32,
    permute_bytes,
    put,
    put_part,
    shl32,
    shr32,
    take,
    zero,
)
from .tiles import LAYOUTS

_2_23 = np.float32(8388608.0)
_MINUS_2_23 = np.float32(-8388608.0)
_SIGNED = np.float32(-8388608.0 - 128.0)
_QUARTER, _EIGHTH, _SIXTEENTH = np.float32(0.25), np.float32(0.125), np.float32(0.0625)


@dataclass(frozen=True)
class Fragments:
    """See above. units: of a step; empty(): words that nothing is in yet."""

    units: int
    halves: bool
    minima: bool
    empty: Callable[[], Any]
    fetch: Callable[..., Any]
    unit: Callable[..., Any]


@inline
def _number(word, k):
    """2^23 + byte k of a word, unsigned: one instruction."""
    return bits_f32(permute_bytes(word, i32(0x4B000000), i32(0x7440 + k)))


def _words(layout: str, tiles: int) -> tuple[int, Any, Any, Any]:
    """Pieces of a tile's step; words of pieces; a piece of them; another piece in its place."""
    kind = f"i32x{LAYOUTS[layout].words * tiles}"
    return LAYOUTS[layout].words // 4, zero(kind), take(kind, 4), put_part(kind, 4)


def _k_with_minima(tiles: int, layout: str) -> Fragments:
    """Q4_K, Q5_K."""
    pieces, empty, piece_of, put_piece = _words(layout, tiles)
    has_upper = layout == "q5_k"
    head = 5 if has_upper else 4  # the first of the pieces with scales

    @inline
    def fetch(words, r, at, lane, when):
        if when & 1:
            j = when >> 1
            words = put_piece(words, r * pieces + j, stream_i32x4(at + 512 * j + 16 * lane))
        if has_upper and when == 7:
            words = put_piece(words, r * pieces + 4, stream_i32x4(at + 2048 + 16 * lane))
        if when == 4:
            row = at + 512 * head + (lane >> 2) * 16
            words = put_piece(words, r * pieces + head, stream_i32x4(row))
            words = put_piece(words, r * pieces + head + 1, stream_i32x4(row + 128))
        return words

    @inline
    def nibbles(q, upper, u):
        found = and32(shr32(q, i32(4 * (u & 1))), i32(0x0F0F0F0F))
        if has_upper:
            moved = upper
            if u < 4:
                moved = shl32(upper, i32(4 - u))
            else:
                moved = shr32(upper, i32(u - 4))
            found = or32(found, and32(moved, i32(0x10101010)))
        return found

    @inline
    def factors(row, u):
        scale, minimum = row[1], row[2]
        if u < 4:
            scale, minimum = and32(scale, i32(0x3F3F3F3F)), and32(minimum, i32(0x3F3F3F3F))
        else:
            low = and32(row[3], i32(0x0F0F0F0F))
            high = and32(shr32(row[3], i32(4)), i32(0x0F0F0F0F))
            scale = or32(low, and32(shr32(scale, i32(2)), i32(0x30303030)))
            minimum = or32(high, and32(shr32(minimum, i32(2)), i32(0x30303030)))
        d, minus = half(row[0]), f32_of(0) - half_high(row[0])
        return (
            fma(d, _number(scale, u & 3), d * _MINUS_2_23),
            fma(minus, _number(minimum, u & 3), minus * _MINUS_2_23),
        )

    @inline
    def unit(words, r, u):
        q = piece_of(words, r * pieces + (u >> 1))
        upper = piece_of(words, r * pieces + 4)
        a = make_i32x4(
            nibbles(q[0], upper[0], u),
            nibbles(q[1], upper[1], u),
            nibbles(q[2], upper[2], u),
            nibbles(q[3], upper[3], u),
        )
        scale0, minimum0 = factors(piece_of(words, r * pieces + head), u)
        scale1, minimum1 = factors(piece_of(words, r * pieces + head + 1), u)
        return a, make_f32x4(scale0, scale1, minimum0, minimum1)

    return Fragments(8, False, True, empty, fetch, unit)


def _q6_k(tiles: int, layout: str) -> Fragments:
    """The six bits as the upper ones of a byte: four times the number."""
    pieces, empty, piece_of, put_piece = _words(layout, tiles)
    put_word = put(f"i32x{LAYOUTS[layout].words * tiles}")

    @inline
    def fetch(words, r, at, lane, when):
        if when & 3 == 2 or when & 3 == 3:  # 2, 3, 6, 7: pieces 0 to 3
            j = (when >> 2) * 2 + (when & 1)
            words = put_piece(words, r * pieces + j, stream_i32x4(at + 512 * j + 16 * lane))
        if when & 3 == 3:
            j = 4 + (when >> 2)
            words = put_piece(words, r * pieces + j, stream_i32x4(at + 512 * j + 16 * lane))
        if when == 4:
            row = at + 3072 + (lane >> 2) * 16
            words = put_piece(words, r * pieces + 6, stream_i32x4(row))
            words = put_piece(words, r * pieces + 7, stream_i32x4(row + 128))
            words = put_word(words, r * pieces * 4 + 32, stream_i32(at + 3328 + (lane >> 2) * 4))
        return words

    @inline
    def four_times(q, upper, u):
        low = shr32(q, i32(2))
        if u & 3 < 2:
            low = shl32(q, i32(2))
        high = and32(shl32(upper, i32(6 - 2 * (u & 3))), i32(0xC0C0C0C0))
        return or32(and32(low, i32(0x3C3C3C3C)), high)

    @inline
    def unit(words, r, u):
        q = piece_of(words, r * pieces + (u >> 2) * 2 + (u & 1))
        upper = piece_of(words, r * pieces + 4 + (u >> 2))
        a = make_i32x4(
            four_times(q[0], upper[0], u),
            four_times(q[1], upper[1], u),
            four_times(q[2], upper[2], u),
            four_times(q[3], upper[3], u),
        )
        d = words[r * pieces * 4 + 32]
        d0, d1 = half(d) * _QUARTER, half_high(d) * _QUARTER
        first = piece_of(words, r * pieces + 6)[u >> 1]
        second = piece_of(words, r * pieces + 7)[u >> 1]
        k = 2 * (u & 1)
        return a, make_f32x4(
            d0 * (_number(first, k) + _SIGNED),
            d1 * (_number(second, k) + _SIGNED),
            d0 * (_number(first, k + 1) + _SIGNED),
            d1 * (_number(second, k + 1) + _SIGNED),
        )

    return Fragments(8, True, False, empty, fetch, unit)


def _nibbles_32(tiles: int, layout: str) -> Fragments:
    """Q4_0 and Q5_0: as the upper bits of a byte, 16 and 8 times the number."""
    pieces, empty, piece_of, put_piece = _words(layout, tiles)
    has_upper = layout == "q5_0"
    factors_at = 1280 if has_upper else 1024
    put_word = put(f"i32x{LAYOUTS[layout].words * tiles}")
    times = _EIGHTH if has_upper else _SIXTEENTH

    @inline
    def fetch(words, r, at, lane, when):
        if when & 1:
            j = when >> 1
            words = put_piece(words, r * pieces + j, stream_i32x4(at + 512 * j + 16 * lane))
        if when == 3:
            factors = stream_i32x4(at + factors_at + (lane >> 2) * 16)
            words = put_piece(words, r * pieces + 2, factors)
            if has_upper:
                upper = stream_i32x2(at + 1024 + lane * 8)
                words = put_word(words, r * pieces * 4 + 12, upper[0])
                words = put_word(words, r * pieces * 4 + 13, upper[1])
        return words

    @inline
    def signed(q, upper, u, k):
        if has_upper:
            found = shr32(q, i32(1))
            if k == 0:
                found = shl32(q, i32(3))
            high = and32(shl32(upper, i32(7 - 2 * u - k)), i32(0x80808080))
            return or32(and32(found, i32(0x78787878)), high)
        found = q
        if k == 0:
            found = shl32(q, i32(4))
        return and32(found, i32(0xF0F0F0F0))

    @inline
    def unit(words, r, u):
        q = piece_of(words, r * pieces + (u >> 1))
        q0, q1 = q[2 * (u & 1)], q[2 * (u & 1) + 1]
        upper = piece_of(words, r * pieces + pieces - 1)
        a = make_i32x4(
            signed(q0, upper[0], u, 0),
            signed(q1, upper[1], u, 0),
            signed(q0, upper[0], u, 1),
            signed(q1, upper[1], u, 1),
        )
        d = piece_of(words, r * pieces + 2)[u]
        nothing = f32_of(0)
        return a, make_f32x4(half(d) * times, half_high(d) * times, nothing, nothing)

    return Fragments(4, False, False, empty, fetch, unit)


def _bytes(tiles: int, layout: str) -> Fragments:
    """Q8_0 and what is kept as bytes."""
    pieces, empty, piece_of, put_piece = _words(layout, tiles)
    is_half = layout == "q8_0"
    halves, minima = layout == "bytes_16", layout == "bytes_minima"
    more = pieces - 4  # with factors

    @inline
    def fetch(words, r, at, lane, when):
        words = put_piece(words, r * pieces + when, stream_i32x4(at + 512 * when + 16 * lane))
        if when == 3:
            for i in range(more):
                place = at + 2048 + (lane >> 2) * 32 + 16 * i
                if is_half:
                    place = at + 2048 + (lane >> 2) * 16
                if minima and i >= 2:  # those of all rows after the scales of all
                    place += 256 - 32
                if halves:
                    place = at + 2048 + (lane >> 2) * 64 + 16 * i
                words = put_piece(words, r * pieces + 4 + i, stream_i32x4(place))
        return words

    @inline
    def unit(words, r, u):
        a = piece_of(words, r * pieces + u)
        nothing = f32_of(0)
        if is_half:
            d = piece_of(words, r * pieces + 4)[u]
            return a, make_f32x4(half(d), half_high(d), nothing, nothing)
        if halves:  # row g's two, then row g + 8's
            s = piece_of(words, r * pieces + 4 + u)
            return a, make_f32x4(bits_f32(s[0]), bits_f32(s[2]), bits_f32(s[1]), bits_f32(s[3]))
        s = piece_of(words, r * pieces + 4 + (u >> 1))
        k = 2 * (u & 1)
        minimum0, minimum1 = nothing, nothing
        if minima:
            m = piece_of(words, r * pieces + 6 + (u >> 1))
            minimum0, minimum1 = nothing - bits_f32(m[k]), nothing - bits_f32(m[k + 1])
        return a, make_f32x4(bits_f32(s[k]), bits_f32(s[k + 1]), minimum0, minimum1)

    return Fragments(4, halves, minima, empty, fetch, unit)


_MAKERS = {
    "q4_k": _k_with_minima,
    "q5_k": _k_with_minima,
    "q6_k": _q6_k,
    "q8_0": _bytes,
    "q4_0": _nibbles_32,
    "q5_0": _nibbles_32,
    "bytes": _bytes,
    "bytes_minima": _bytes,
    "bytes_16": _bytes,
}


def fragments(layout: str, tiles: int) -> Fragments:
    """Those of a layout, for warps that multiply so many tiles at once."""
    return _MAKERS[layout](tiles, layout)
