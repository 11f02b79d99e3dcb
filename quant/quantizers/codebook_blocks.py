"""The kernel of an IQ2 or IQ3 format: blocks of 256 values, whose groups codebook_search.py fits.

A format adds how a block holds the points, the signs and the scales.
"""

from typing import Any

import numpy as np

from ..cpu.simd import (
    abs_f32x16,
    fill_f32x16,
    inline,
    kernel,
    load_f32,
    load_f32x8,
    load_f32x16,
    load_i32,
    load_i64,
    max_f32x16,
    max_f32x16_all,
    store_f16,
    store_f32,
    store_f32x16,
    store_i8x16,
    store_i32,
    zero,
    zero_i32x16,
)
from .codebook_search import (
    FOUND,
    MOST,
    RECORD,
    ROOTS,
    SEARCH_BYTES,
    SIGNS,
    START,
    WEIGHTED,
    WEIGHTS,
    Rules,
    X,
    make_group,
)
from .codebook_words import bit_count, least_lane, negative_lanes, put_byte
from .words import fill_i32x16, larger, nearest_int, smaller, sqrt_f32x16, store_i32x16

BLOCK = 256
# Offsets in the scratch memory, after what the search takes: of a block the groups' scales and
# their levels; the sums of squares of four blocks; the groups' records.
SCALES, LEVELS, ENERGIES = SEARCH_BYTES, SEARCH_BYTES + 64, SEARCH_BYTES + 128
RECORDS = SEARCH_BYTES + 192
FREE = RECORDS + 16 * RECORD

_no_bytes = zero("i8", 16)


@inline
def energies(values, count, at):
    """sums of squares of 4 blocks, of which `count` are there, to float32 at an address."""
    second, third, fourth = (
        values + (1024 if count > 1 else 0),
        values + (2048 if count > 2 else 0),
        values + (3072 if count > 3 else 0),
    )
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    for i in range(0, 4 * BLOCK, 4):
        p, q = load_f32(values + i), load_f32(second + i)
        r, s = load_f32(third + i), load_f32(fourth + i)
        a, b, c, d = a + p * p, b + q * q, c + r * r, d + s * s
    store_f32(at, a)
    store_f32(at + 4, b)
    store_f32(at + 8, c)
    store_f32(at + 12, d)


def make_prepare(rules: Rules) -> Any:
    """prepare(x, importance, energy, record): a group's values, their signs taken away."""
    group, flat, even = rules.group, np.float32(rules.flat), rules.even

    @inline
    def prepare(x, importance, energy, record):
        for i in range(0, 4 * group, 64):
            v = load_f32x16(x + i)
            square = v * v
            weights = square
            if importance != 0:
                weights = load_f32x16(importance + i) * sqrt_f32x16(fill_f32x16(energy) + square)
            elif flat != np.float32(0):
                weights = fill_f32x16(flat * energy) + square
            store_f32x16(record + WEIGHTS + i, weights)
            store_f32x16(record + ROOTS + i, sqrt_f32x16(weights))
            store_f32x16(record + X + i, abs_f32x16(v))
            negative = negative_lanes(v)
            store_i32(record + SIGNS + i // 8, negative & 255)
            store_i32(record + SIGNS + i // 8 + 4, negative >> 8)
            if even:
                store_f32x16(record + WEIGHTED + i, weights * v * v)
        if even:
            for i in range(group // 8):
                signs = load_i32(record + SIGNS + 4 * i)
                if bit_count(signs) & 1:
                    lane = least_lane(load_f32x8(record + WEIGHTED + 32 * i))
                    signs ^= 1 << lane
                    place = record + X + 32 * i + 4 * lane
                    store_f32(place, -load_f32(place))
                store_i32(record + SIGNS + 4 * i, signs & 127)
        most = load_f32x16(record + X)
        for i in range(0, 4 * group, 64):
            v = load_f32x16(record + X + i)
            most = max_f32x16(most, v)
            store_f32x16(record + WEIGHTED + i, load_f32x16(record + WEIGHTS + i) * v)
        store_f32(record + MOST, max_f32x16_all(most))

    return prepare


def make_number_of(dimensions: int) -> Any:
    """number_of(word, numbers) -> the number of a point."""
    base, low_bits = (8, 7) if dimensions == 4 else (3, 3)

    @inline
    def number_of(word, numbers):
        cell = 0
        for i in range(dimensions):
            cell = cell * base + (word >> 4 * (dimensions - 1 - i) & low_bits)
        return load_i32(numbers + 4 * cell)

    return number_of


@inline
def no_starts(scratch):
    """A search that begins with the largest value needs no other."""


@inline
def clear(at, count):
    """Zeros to `count` bytes, 16 or more."""
    for i in range(0, count - 15, 16):
        store_i8x16(at + i, _no_bytes())
    store_i8x16(at + count - 16, _no_bytes())


@inline
def put_nibbles(levels, to, count):
    """Scale levels to 4 bits each, two in each of `count` bytes, the first one low."""
    for i in range(count):
        low, high = load_i32(levels + 8 * i), load_i32(levels + 8 * i + 4)
        put_byte(to + i, low | high << 4)


def make_quantize(
    rules: Rules, num_bytes: int, put_group: Any, put_scales: Any, find_starts: Any = no_starts
) -> Any:
    """The kernel of a format.

    Args:
        num_bytes: of a block, which begins with its scale.
        put_group: (words, record, numbers, out, group): writes a group's points and signs.
        put_scales: (levels, out): writes the scales' levels, int32.
        find_starts: (scratch): scales for 16 records at once, to which the inverse scales refer
            instead of the largest value.
    """
    prepare, fit_group = make_prepare(rules), make_group(rules)
    num_groups, group_bytes, even = BLOCK // rules.group, 4 * rules.group, rules.even
    factor, energy_factor = np.float32(rules.factor), np.float32(rules.energy)
    least, top = np.float32(rules.least), np.float32(7.5 if rules.dimensions == 4 else 2.5)
    sign_bits, started = 127 if even else 255, find_starts is not no_starts
    ahead = 16 // num_groups if started else 1  # blocks prepared together
    largest_start, largest_code = np.float32(3), np.float32(2) * top

    @inline
    def finish(at, out):
        """The block's scale and the levels of its groups."""
        scales = load_f32x16(at + SCALES)
        most = max_f32x16_all(scales)
        if most == np.float32(0):
            if even:
                clear(out, num_bytes)
            return
        scale = most / np.float32(31)
        store_f16(out, scale * factor)
        one = fill_f32x16(np.float32(1))
        v = fill_f32x16(np.float32(1) / scale) * scales - one
        levels = nearest_int(fill_f32x16(np.float32(0.5)) * v)
        levels = larger(smaller(levels, fill_i32x16(15)), zero_i32x16())
        store_i32x16(at + LEVELS, levels)
        put_scales(at + LEVELS, out)

    @inline
    def prepare_block(values, importance, columns, block, blocks, records, at):
        if block % 4 == 0:
            energies(values + 4 * BLOCK * block, blocks - block, at + ENERGIES)
        energy = energy_factor * load_f32(at + ENERGIES + 4 * (block % 4))
        energy = energy / np.float32(BLOCK)
        x, weights = values + 4 * BLOCK * block, importance
        if importance != 0:
            weights += 4 * BLOCK * (block % (columns // BLOCK))
        for i in range(num_groups):
            prepare(
                x + group_bytes * i,
                weights + group_bytes * i if importance != 0 else 0,
                energy,
                records + RECORD * i,
            )

    @kernel
    def quantize(values, importance, out, num_rows, columns, scratch, tables):
        by_cell, lists, numbers = load_i64(tables), load_i64(tables + 8), load_i64(tables + 16)
        blocks = num_rows * (columns // BLOCK)
        clear(scratch + RECORDS, 16 * RECORD)
        store_i32x16(scratch + SCALES, zero_i32x16())
        for block in range(blocks):
            if block % ahead == 0:
                for i in range(min(ahead, blocks - block)):
                    records = scratch + RECORDS + RECORD * num_groups * i
                    prepare_block(values, importance, columns, block + i, blocks, records, scratch)
                find_starts(scratch)
            to = out + num_bytes * block
            clear(to, num_bytes)
            for i in range(num_groups):
                record = scratch + RECORDS + RECORD * (i + block % ahead * num_groups)
                most, scale = load_f32(record + MOST), np.float32(0)
                start, by = most / largest_code, most
                if started:
                    start = load_f32(record + START)
                    by = start * largest_start
                if most >= least and by > np.float32(0):
                    scale = fit_group(record, scratch, by_cell, lists, by, start)
                    if scale < np.float32(0):
                        scale = -scale
                        for k in range(group_bytes // 32):
                            signs = load_i32(record + SIGNS + 4 * k)
                            store_i32(record + SIGNS + 4 * k, signs ^ sign_bits)
                    put_group(scratch + FOUND, record + SIGNS, numbers, to, i)
                store_f32(scratch + SCALES + 4 * i, scale)
            finish(scratch, to)
        return 0

    return quantize
