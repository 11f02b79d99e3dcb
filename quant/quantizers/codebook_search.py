"""Quantizing to IQ2 and IQ3: for each group of values the scale and the points that fit them best.

llama.cpp's search, step by step: each of some scales rounds the group to a cell a part (4 or 8
values), and off the codebook the nearest of the cell's neighbours is taken, the error weighted. Of
the scales the one that explains most stays; parts that were off the codebook are then rounded once
more by the scale that fits the points found, and it is fitted once more. Here all scales are
rounded and summed up side by side, in lanes; neighbours are compared eight at a time.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cpu.simd import (
    LANES,
    fill,
    inline,
    literal,
    load,
    load_f32,
    load_f32x4,
    load_f32x8,
    load_i32,
    store,
    store_i32,
    store_i64,
    zero,
)
from .codebook_words import (
    add_products,
    add_squares,
    distances,
    least_lane,
    least_place,
    rounded_cells,
)
from .codebooks import COUNT_BITS, LIST_STEP
from .words import less, select

LOST, ALL, ALL_IF_ONE = range(3)  # parts rounded once more: those off the codebook, or all

# Offsets in a group's record: its values' magnitudes, the weights, roots of these, weight times
# value; the signs of each eight; the largest value, and what to take for it in the search.
X, WEIGHTS, ROOTS, WEIGHTED, SIGNS, MOST, START = 0, 128, 256, 384, 512, 528, 532
RECORD = 576
# Offsets in the scratch memory: of the scales tried their inverses, themselves, the cells and both
# sums, and which of them were off the codebook, by parts; the words of each part by all scales.
INVERSES, SCALES, CELLS, PRODUCTS, SQUARES, OFF, FOUND = 0, 128, 256, 384, 512, 640, 768
COLUMN = 128  # bytes of a part's words: 32 scales
SEARCH_BYTES = FOUND + 8 * COLUMN

_load_lanes, _store_lanes = load("f32", LANES), store("f32", LANES)
_load_words, _store_words = load("i32", LANES), store("i32", LANES)
_fill_lanes, _zero_lanes = fill("f32", LANES), zero("f32", LANES)
load_i32x8 = load("i32", 8)
_first_places = literal("i32", list(range(LIST_STEP)))
_one_turn = literal("i32", [LIST_STEP] * LIST_STEP)


def make_nearest_point(dimensions: int, given: bool = False) -> Any:
    """nearest_point(reference, lists, scale, values, x, weights) -> the word of the nearest.

    The first of them, should several be equally near. `reference`: codebooks.py's, not inverted.
    """
    measure = distances(dimensions, given)

    @inline
    def nearest_point(reference, lists, scale, values, x, weights):
        turns = reference & ((1 << COUNT_BITS) - 1)
        at = lists + (reference >> COUNT_BITS) * (4 * LIST_STEP)
        best = measure(scale, values, x, weights, load_i32x8(at))
        if turns == 1:
            return load_i32(at + 4 * least_lane(best))
        places = _first_places()
        best_places = places
        for turn in range(1, turns):
            places = places + _one_turn()
            far = measure(scale, values, x, weights, load_i32x8(at + 4 * LIST_STEP * turn))
            nearer = less(far, best)
            best, best_places = select(nearer, far, best), select(nearer, places, best_places)
        place = least_place(best, best_places)
        return load_i32(at + 4 * (place if place < LIST_STEP * turns else 0))

    return nearest_point


class Rules(NamedTuple):
    """How a format is searched.

    dimensions: of a point. group: values a scale. inverses: of the scales tried, but for the
    largest value, which divides them. energy: what the block's mean square is multiplied by in the
    weights. flat: how much of that the weights without importance have, beside the squares. even:
    whether the number of negative signs of eight values is. least: groups of values below it are
    zeros. again: which parts are rounded once more. factor: of the block's scale, in the end.
    """

    dimensions: int
    group: int
    inverses: Sequence[np.float32]
    energy: float
    flat: float
    even: bool
    least: float
    again: int
    factor: float


def spaced(largest: int, steps: int, step: float) -> list[np.float32]:
    """largest + i * step for i from -steps to steps, rounded as float32 does it."""
    return [
        np.float32(largest) + np.float32(i) * np.float32(step) for i in range(-steps, steps + 1)
    ]


def make_group(rules: Rules) -> Any:
    """fit_group(group, at, by_cell, lists, largest, scale) -> scale; words are left in column 0.

    group: its record. largest: the value that the inverse scales refer to. scale: what stays if
    none of them fits.
    """
    dimensions, parts = rules.dimensions, rules.group // rules.dimensions
    trials, again = len(rules.inverses), rules.again
    vectors = -(-trials // LANES)
    padded = [*rules.inverses, *[rules.inverses[-1]] * (vectors * LANES - trials)]
    inverse_lists = [literal("f32", padded[k : k + LANES]) for k in range(0, len(padded), LANES)]
    first, second, third, fourth = (inverse_lists * 4)[:4]
    nearest_point, cells_of = make_nearest_point(dimensions), rounded_cells(dimensions)
    products, squares = add_products(dimensions), add_squares(dimensions)
    load_part = load_f32x4 if dimensions == 4 else load_f32x8

    @inline
    def round_part(group, at, part, count, by_cell, lists):
        """Words of a part for the first scales; a bit for each that was off the codebook."""
        x, column = group + X + part * (4 * dimensions), at + FOUND + part * COLUMN
        for i in range(0, 4 * count, 4 * LANES):
            _store_words(at + CELLS + i, cells_of(_load_lanes(at + INVERSES + i), x))
        values, roots = load_part(x), load_part(x - X + ROOTS)
        off = 0
        for i in range(count):
            word = load_i32(by_cell + 4 * load_i32(at + CELLS + 4 * i))
            if word < 0:
                scale = load_f32(at + SCALES + 4 * i)
                word = nearest_point(~word, lists, scale, 0, values, roots)
                off |= 1 << i
            store_i32(column + 4 * i, word)
        return off

    @inline
    def sum_up(group, at, count):
        """The sums of weight * value * q and weight * q * q, for the first scales' words."""
        for i in range(0, 4 * count, 4 * LANES):
            sum_x, sum_2 = _zero_lanes(), _zero_lanes()
            for part in range(parts):
                found = _load_words(at + FOUND + part * COLUMN + i)
                sum_x = products(sum_x, found, group + WEIGHTED + part * (4 * dimensions))
                sum_2 = squares(sum_2, found, group + WEIGHTS + part * (4 * dimensions))
            _store_lanes(at + PRODUCTS + i, sum_x)
            _store_lanes(at + SQUARES + i, sum_2)

    @inline
    def fit_group(group, at, by_cell, lists, largest, scale):
        one, by = _fill_lanes(np.float32(1)), _fill_lanes(largest)
        for i in range(vectors):
            inverse = first() if i == 0 else second() if i == 1 else third() if i == 2 else fourth()
            inverse = inverse / by
            _store_lanes(at + INVERSES + 4 * LANES * i, inverse)
            _store_lanes(at + SCALES + 4 * LANES * i, one / inverse)
        for part in range(parts):
            store_i64(at + OFF + 8 * part, round_part(group, at, part, trials, by_cell, lists))
        sum_up(group, at, trials)
        best, found = np.float32(0), -1
        for i in range(trials):
            sum_x, sum_2 = load_f32(at + PRODUCTS + 4 * i), load_f32(at + SQUARES + 4 * i)
            if sum_2 > np.float32(0) and sum_x * sum_x > best * sum_2:
                scale = sum_x / sum_2
                best, found = scale * sum_x, i
        lost = 0
        for part in range(parts):
            column = at + FOUND + part * COLUMN
            if found < 0:
                store_i32(column, load_i32(by_cell))
            else:
                store_i32(column, load_i32(column + 4 * found))
                lost |= (load_i32(at + OFF + 8 * part) >> found & 1) << part
        if again == LOST:
            redo = lost
        elif again == ALL:
            redo = (1 << parts) - 1
        else:
            redo = (1 << parts) - 1 if lost != 0 or found < 0 else 0
        if redo != 0 and scale > np.float32(0):
            _store_lanes(at + INVERSES, one / _fill_lanes(scale))
            _store_lanes(at + SCALES, _fill_lanes(scale))
            for part in range(parts):
                if redo >> part & 1:
                    round_part(group, at, part, 1, by_cell, lists)
            sum_up(group, at, 1)
            sum_2 = load_f32(at + SQUARES)
            if sum_2 > np.float32(0):
                scale = load_f32(at + PRODUCTS) / sum_2
        return scale

    return fit_group
