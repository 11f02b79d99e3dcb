"""IQ1_M as llama.cpp quantizes it; the block's layout is in quant/iq1_m.py."""

from typing import Any

import numpy as np

from ..cpu.simd import (
    fill_f32x16,
    inline,
    kernel,
    literal,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    max_f32x16,
    max_f32x16_all,
    store_f16,
    store_f32,
    store_f32x16,
    store_i32,
    zero_f32x16,
    zero_i32x16,
)
from .codebook_blocks import BLOCK, clear, energies, make_number_of
from .codebook_words import load_byte, put_byte
from .ternary import (
    CANDIDATES,
    CHOICE_BYTES,
    CHOICES,
    CHOSEN,
    ENERGIES,
    LEVELS,
    ORDER,
    PLACES,
    SCALES,
    SORTED_WEIGHTED,
    SORTED_WEIGHTS,
    SUM_BYTES,
    SUMS,
    VALUES,
    WEIGHTS,
    WORDS,
    add_fit,
    best_of,
    choose_point,
    places,
    put_choices,
    scores_of,
    sort,
    start_of,
    weigh,
)
from .words import fill_i32x16, larger, nearest_int, smaller, store_i32x16

_GROUP, _NUM_BYTES = 16, 56
_EVERY = 3  # first border is tried beforehand, to know what is good
# Candidates are pairs of borders, each with a choice for either half of the group: four lanes for
# each second border, and in these the second half's choice changes first.
_CHOICES = ([0, 0, 1, 1] * 4, [0, 1, 0, 1] * 4)


def _by_lane(values: list[float]) -> list[Any]:
    """For either half, literals of the values that the lanes' choices have."""
    return [literal("f32", [values[choice] for choice in half]) for half in _CHOICES]


_most_0, _most_1 = _by_lane([c[2] for c in CHOICES])
# What the weights before the first and before the second border add to the sum of squares.
_first_0, _first_1 = _by_lane([c[0] ** 2 - c[1] ** 2 for c in CHOICES])
_second_0, _second_1 = _by_lane([c[1] ** 2 - c[2] ** 2 for c in CHOICES])
# Sums before each border, of either half: weight * value, and weight.
_X_0, _X_1, _W_0, _W_1 = (SUMS + SUM_BYTES * k for k in range(4))
_number_of, _places = make_number_of(8), places(_GROUP)


@inline
def _put_sums(at):
    """Sums before each border, four times each. Returns those of all, of either half."""
    x_0 = x_1 = w_0 = w_1 = np.float32(0)
    for i in range(_GROUP + 1):
        for k in range(16 * i, 16 * i + 16, 4):
            store_f32(at + _X_0 + k, x_0)
            store_f32(at + _X_1 + k, x_1)
            store_f32(at + _W_0 + k, w_0)
            store_f32(at + _W_1 + k, w_1)
        if i < _GROUP:
            x, w = load_f32(at + SORTED_WEIGHTED + 4 * i), load_f32(at + SORTED_WEIGHTS + 4 * i)
            # Without a branch, which would be foreseen half the time: x + 0 is x.
            first, none = load_i32(at + ORDER + 4 * i) < _GROUP // 2, np.float32(0)
            x_0, w_0 = x_0 + (x if first else none), w_0 + (w if first else none)
            x_1, w_1 = x_1 + (none if first else x), w_1 + (none if first else w)
    # No candidates behind the last: their sums of squares are not above 0.
    store_f32x16(at + _W_0 + 16 * _GROUP + 16, fill_f32x16(np.float32(np.inf)))
    return x_0, x_1, w_0, w_1


@inline
def _first_border(at, i, totals):
    """What all candidates with this first border share, of either half."""
    all_w0, all_w1 = totals[2:]
    low_w0 = all_w0 + fill_f32x16(load_f32(at + _W_0 + 16 * i)) * _first_0()
    low_w1 = all_w1 + fill_f32x16(load_f32(at + _W_1 + 16 * i)) * _first_1()
    low_0, low_1 = load_f32(at + _X_0 + 16 * i), load_f32(at + _X_1 + 16 * i)
    return fill_f32x16(low_0), fill_f32x16(low_1), low_w0, low_w1


@inline
def _candidates(at, k, first, totals):
    """The sums of weight * q * value and weight * q * q of 16 candidates."""
    low_0, low_1, low_w0, low_w1 = first
    x = totals[0] - (low_0 + load_f32x16(at + _X_0 + k))
    x = x + (totals[1] - (low_1 + load_f32x16(at + _X_1 + k)))
    w = low_w0 + load_f32x16(at + _W_0 + k) * _second_0()
    return x, w + (low_w1 + load_f32x16(at + _W_1 + k) * _second_1())


@inline
def _find_borders(at, scale):
    """The best candidate: its scale and number, 128 a first border; -1 if there is none."""
    x_0, x_1, w_0, w_1 = _put_sums(at)
    totals = (
        fill_f32x16(x_0) * _most_0(),
        fill_f32x16(x_1) * _most_1(),
        fill_f32x16(w_0) * _most_0() * _most_0(),
        fill_f32x16(w_1) * _most_1() * _most_1(),
    )
    end, scores = 16 * _GROUP + 16, zero_f32x16()
    for i in range(_EVERY // 2, _GROUP + 1, _EVERY):
        first = _first_border(at, i, totals)
        for k in range(16 * i, end, 64):
            x, w = _candidates(at, k, first, totals)
            scores = max_f32x16(scores, scores_of(x, w))
    best, found = start_of(scores, w_0 + w_1), -1
    for i in range(_GROUP + 1):
        first = _first_border(at, i, totals)
        for k in range(16 * i, end, 64):
            x, w = _candidates(at, k, first, totals)
            best, scale, found = best_of(x, w, best, scale, found, 128 * i + k // 4, at)
    return scale, found


@inline
def _values_of(choice, half, at):
    """The address of the three values that a choice has for a half of the group."""
    return at + VALUES + CHOICE_BYTES * (choice >> (1 - half) & 1)


@inline
def _fit_group(x, most, by_cell, lists, words, at):
    """A group's scale and choice, and whether there are any: below 0 if not. Two words, too."""
    _places(x, at + PLACES)
    sort(_GROUP, at)
    for i in range(_GROUP):
        store_i32(at + ORDER + 4 * load_i32(at + PLACES + 4 * i), i)
    scale, found = _find_borders(at, most)
    if found < 0:
        return np.float32(0), 0, found
    borders, choice, flipped = (found // 128, found % 128 // 4), found % 4, False
    if scale < np.float32(0):
        scale, choice, flipped = -scale, 3 - choice, True
    off = 0
    for i in range(2):
        values = _values_of(choice, i, at)
        word, is_off = choose_point(x, 8 * i, borders, flipped, values, scale, by_cell, lists, at)
        store_i32(words + 4 * i, word)
        off |= is_off
    if off != 0:
        sum_x = sum_2 = np.float32(0)
        for i in range(2):
            word, values = load_i32(words + 4 * i), _values_of(choice, i, at)
            here, weights = x + 32 * i, at + WEIGHTS + 32 * i
            sum_x, sum_2 = add_fit(sum_x, sum_2, word, values, np.float32(1), here, weights)
        if sum_x > np.float32(0) and sum_2 > np.float32(0):
            scale = sum_x / sum_2
    return scale, choice, found


@inline
def _fit_block(x, scale, importance, energy, at):
    """The block's scale once more, by all points and levels."""
    sum_x = sum_2 = np.float32(0)
    for i in range(BLOCK // _GROUP):
        here = x + 4 * _GROUP * i
        weigh(here, importance + 4 * _GROUP * i if importance != 0 else 0, energy, _GROUP, at)
        step = np.float32(2 * load_i32(at + LEVELS + 4 * i) + 1)
        for k in range(2):
            word = load_i32(at + WORDS + 8 * i + 4 * k)
            values = _values_of(load_i32(at + CHOSEN + 4 * i), k, at)
            weights = at + WEIGHTS + 32 * k
            sum_x, sum_2 = add_fit(sum_x, sum_2, word, values, step, here + 32 * k, weights)
    return sum_x / sum_2 if sum_2 > np.float32(0) else scale


@inline
def _finish(x, out, importance, energy, at):
    """The block's scale, levels and choices."""
    scales = load_f32x16(at + SCALES)
    most = max_f32x16_all(scales)
    if most == np.float32(0):
        return
    scale = most / np.float32(15)
    v = fill_f32x16(np.float32(1) / scale) * scales - fill_f32x16(np.float32(1))
    levels = nearest_int(fill_f32x16(np.float32(0.5)) * v)
    store_i32x16(at + LEVELS, larger(smaller(levels, fill_i32x16(7)), zero_i32x16()))
    scale = _fit_block(x, scale, importance, energy, at)
    # Four words of four levels of 3 bits; above them the scale, 4 bits in each.
    store_f16(at + CANDIDATES, scale * np.float32(1.1125))
    half = load_i32(at + CANDIDATES)
    for i in range(4):
        word = (half >> 4 * i & 15) << 12
        for k in range(4):
            word |= load_i32(at + LEVELS + 16 * i + 4 * k) << 3 * k
        put_byte(out + 48 + 2 * i, word)
        put_byte(out + 49 + 2 * i, word >> 8)
    for i in range(16):
        choice = load_i32(at + CHOSEN + 4 * i)
        byte = load_byte(out + 32 + i) | (choice >> 1) << 3 | (choice & 1) << 7
        put_byte(out + 32 + i, byte)


@inline
def _put_points(words, numbers, out, group):
    """Two points of 11 bits."""
    high = 0
    for i in range(2):
        number = _number_of(load_i32(words + 4 * i), numbers)
        put_byte(out + 2 * group + i, number)
        high |= number >> 8 << 4 * i
    put_byte(out + 32 + group, high)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch, tables):
    """float32 rows to IQ1_M; see quant/quantizers/__init__.py."""
    by_cell, lists, numbers = load_i64(tables), load_i64(tables + 8), load_i64(tables + 16)
    blocks, at = num_rows * (columns // BLOCK), scratch
    put_choices(at)
    for block in range(blocks):
        x, weights = values + 4 * BLOCK * block, importance
        if importance != 0:
            weights += 4 * BLOCK * (block % (columns // BLOCK))
        if block % 4 == 0:
            energies(x, blocks - block, at + ENERGIES)
        energy = np.float32(2) * load_f32(at + ENERGIES + 4 * (block % 4)) / np.float32(BLOCK)
        to = out + _NUM_BYTES * block
        clear(to, _NUM_BYTES)
        for i in range(BLOCK // _GROUP):
            here, words = x + 4 * _GROUP * i, at + WORDS + 8 * i
            behind = weights + 4 * _GROUP * i if importance != 0 else 0
            most = weigh(here, behind, energy, _GROUP, at)
            scale, choice, found = np.float32(0), 0, -1
            if most >= np.float32(1e-7):
                scale, choice, found = _fit_group(here, most, by_cell, lists, words, at)
            if found >= 0:
                _put_points(words, numbers, to, i)
            else:  # counts as the first point
                store_i32(words, load_i32(by_cell))
                store_i32(words + 4, load_i32(by_cell))
            store_f32(at + SCALES + 4 * i, scale)
            store_i32(at + CHOSEN + 4 * i, choice)
        _finish(x, to, weights, energy, at)
    return 0
