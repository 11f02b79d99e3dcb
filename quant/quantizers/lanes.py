"""Sixteen blocks side by side, one a lane: how they get into the scratch memory and out of it.

What needs sums in a given order is computed so: each lane adds up its own block, one value after
the other. Blocks of 32 become 32 vectors; of less than 16 blocks the last one fills the rest.
"""

from typing import Any

import numpy as np

from ..cpu.simd import (
    fill_f32x16,
    inline,
    literal,
    load_f32x16,
    narrow_f32x16,
    shift_left,
    shift_right,
    store_f16x16,
    store_f32x16,
    store_i64,
    zero,
)
from .block_words import copy_i16, copy_i32
from .words import ROUND, gather_tile, load_i32x16, sqrt_f32x16, store_i32x16

# Where things lie in the scratch memory: values, weights, weights times values, and quants as
# [32][16]; the addresses of the lanes' blocks; what is written of each block.
X, WEIGHTS, WEIGHTED, QUANTS = 0, 2048, 4096, 6144
ADDRESSES, SUMS, LANE_SUMS = 8192, 8320, 8384
HEADS, HIGH_BITS, NIBBLES = 8448, 8512, 8576

_zero_i32x16 = zero("i32", 16)
_fifteen = literal("i32", [15] * 16)
_up1, _up4, _up8, _up16, _up24 = (shift_left("i32", 16, n) for n in (1, 4, 8, 16, 24))
_down4 = shift_right("i32", 16, 4)


@inline
def nearest(x):
    """The nearest integer, ties to even, of |x| < 2^22."""
    magic = fill_f32x16(ROUND)
    return (x + magic) - magic


@inline
def gather_blocks(addresses, out):
    """Blocks of 32 float32 at 16 addresses to out, [32][16]."""
    gather_tile(addresses, 0, out)
    gather_tile(addresses, 64, out + 1024)


@inline
def load_blocks(values, first, count, scratch):
    """Blocks from `first` on of `count` contiguous ones to X; the last one fills up the lanes."""
    for lane in range(16):
        at = values + 128 * min(first + lane, count - 1)
        store_i64(scratch + ADDRESSES + 8 * lane, at)
    gather_blocks(scratch + ADDRESSES, scratch + X)


@inline
def sum_squares(values, rows, columns, scratch):
    """The sum of x * x of up to 16 rows, each in its order, to SUMS."""
    for row in range(16):
        at = values + 4 * columns * min(row, rows - 1)
        store_i64(scratch + ADDRESSES + 8 * row, at)
    acc = fill_f32x16(np.float32(0))
    for column in range(0, columns, 16):
        gather_tile(scratch + ADDRESSES, 4 * column, scratch + X)
        for i in range(16):
            x = load_f32x16(scratch + X + 64 * i)
            acc = acc + x * x
    store_f32x16(scratch + SUMS, acc)


@inline
def weigh(scratch, sigma):
    """Importances [32][16] in WEIGHTS become weights, by the mean square `sigma` of the lanes."""
    for i in range(0, 2048, 64):
        x = load_f32x16(scratch + X + i)
        w = load_f32x16(scratch + WEIGHTS + i) * sqrt_f32x16(sigma + x * x)
        store_f32x16(scratch + WEIGHTS + i, w)


@inline
def _nibble_pair(at):
    """Bytes of quants i and i + 16."""
    low, high = load_i32x16(at) & _fifteen(), load_i32x16(at + 1024) & _fifteen()
    return low | _up4(high)


@inline
def pack_nibbles(quants, nibbles):
    """Quants [32][16] to their low 4 bits, 4 bytes a lane: [4][16] int32."""
    for i in range(4):
        at = quants + 256 * i
        word = _nibble_pair(at) | _up8(_nibble_pair(at + 64))
        word = word | _up16(_nibble_pair(at + 128)) | _up24(_nibble_pair(at + 192))
        store_i32x16(nibbles + 64 * i, word)


@inline
def pack_fifth_bits(quants, high_bits):
    """Quants [32][16] to their fifth bits: [16] int32, the first quant's bit lowest."""
    word = _zero_i32x16()
    for i in range(1984, -64, -64):
        word = _up1(word) | _down4(load_i32x16(quants + i))
    store_i32x16(high_bits, word)


@inline
def put_halves(scratch, d, m):
    """Scales and minima to HEADS, [2][16] float16."""
    store_f16x16(scratch + HEADS, narrow_f32x16(d))
    store_f16x16(scratch + HEADS + 32, narrow_f32x16(m))


def make_put(bits: int, minimum: bool) -> Any:
    """put(scratch, lanes, out): blocks of 32 from HEADS and QUANTS; returns where they end."""
    first = 4 if minimum else 2
    nibbles_at = first + (4 if bits == 5 else 0)

    @inline
    def put(scratch, lanes, out):
        pack_nibbles(scratch + QUANTS, scratch + NIBBLES)
        if bits == 5:
            pack_fifth_bits(scratch + QUANTS, scratch + HIGH_BITS)
        for lane in range(lanes):
            copy_i16(scratch + HEADS + 2 * lane, out)
            if minimum:
                copy_i16(scratch + HEADS + 32 + 2 * lane, out + 2)
            if bits == 5:
                copy_i32(scratch + HIGH_BITS + 4 * lane, out + first)
            for i in range(4):
                copy_i32(scratch + NIBBLES + 64 * i + 4 * lane, out + nibbles_at + 4 * i)
            out += nibbles_at + 16
        return out

    return put
