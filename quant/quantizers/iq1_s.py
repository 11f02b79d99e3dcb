"""IQ1_S as llama.cpp quantizes it; the block's layout is in quant/iq1_s.py."""

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
    CHOICE_BYTES,
    CHOICES,
    CHOSEN,
    ENERGIES,
    LEVELS,
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

_GROUP, _NUM_BYTES = 32, 50
_EVERY = 4  # first border is tried beforehand, to know what is good
# Candidates are pairs of borders, each with both choices: two lanes for each second border.
_LEAST, _MIDDLE, _MOST = (literal("f32", [c[i] for c in CHOICES] * 8) for i in range(3))
_SUM_X, _REST_X, _SUM_W, _REST_W = (SUMS + SUM_BYTES * k for k in range(4))
_number_of, _places = make_number_of(8), places(_GROUP)


@inline
def _put_sums(at):
    """Sums before each border, twice each, and what follows from those behind it."""
    sum_x = sum_w = np.float32(0)
    for i in range(_GROUP + 1):
        for k in range(0, 8, 4):
            store_f32(at + _SUM_X + 8 * i + k, sum_x)
            store_f32(at + _SUM_W + 8 * i + k, sum_w)
        if i < _GROUP:
            sum_x += load_f32(at + SORTED_WEIGHTED + 4 * i)
            sum_w += load_f32(at + SORTED_WEIGHTS + 4 * i)
    all_x, all_w = fill_f32x16(sum_x), fill_f32x16(sum_w)
    for i in range(0, 8 * _GROUP + 8, 64):
        store_f32x16(at + _REST_X + i, (all_x - load_f32x16(at + _SUM_X + i)) * _MOST())
        rest = (all_w - load_f32x16(at + _SUM_W + i)) * _MOST() * _MOST()
        store_f32x16(at + _REST_W + i, rest)
    # No candidates behind the last: their sums of weights are not above 0.
    store_f32x16(at + _REST_W + 8 * _GROUP + 8, fill_f32x16(np.float32(-np.inf)))


@inline
def _first_border(at, i):
    """What all candidates with this first border share: the sums before it, and their part."""
    sum_x = fill_f32x16(load_f32(at + _SUM_X + 8 * i))
    sum_w = fill_f32x16(load_f32(at + _SUM_W + 8 * i))
    return sum_x, sum_w, sum_x * _LEAST(), sum_w * _LEAST() * _LEAST()


@inline
def _candidates(at, k, first):
    """The sums of weight * q * value and weight * q * q of 16 candidates."""
    sum_x, sum_w, low_x, low_w = first
    x = low_x + (load_f32x16(at + _SUM_X + k) - sum_x) * _MIDDLE()
    w = low_w + (load_f32x16(at + _SUM_W + k) - sum_w) * _MIDDLE() * _MIDDLE()
    return x + load_f32x16(at + _REST_X + k), w + load_f32x16(at + _REST_W + k)


@inline
def _find_borders(at, scale):
    """The best candidate: its scale and number, 128 a first border; -1 if there is none."""
    end = 8 * _GROUP + 8
    scores = zero_f32x16()
    for i in range(_EVERY // 2, _GROUP + 1, _EVERY):
        first = _first_border(at, i)
        for k in range(8 * i, end, 64):
            x, w = _candidates(at, k, first)
            scores = max_f32x16(scores, scores_of(x, w))
    best, found = start_of(scores, load_f32(at + _SUM_W + 8 * _GROUP)), -1
    for i in range(_GROUP + 1):
        first = _first_border(at, i)
        for k in range(8 * i, end, 64):
            x, w = _candidates(at, k, first)
            best, scale, found = best_of(x, w, best, scale, found, 128 * i + k // 4, at)
    return scale, found


@inline
def _fit_group(x, most, by_cell, lists, at):
    """A group's scale and choice, and whether there are any: below 0 if not. Words to WORDS."""
    _places(x, at + PLACES)
    sort(_GROUP, at)
    _put_sums(at)
    scale, found = _find_borders(at, most)
    if found < 0:
        return np.float32(0), 0, found
    borders, choice, flipped = (found // 128, found % 128 // 2), found % 2, False
    if scale < np.float32(0):
        scale, choice, flipped = -scale, 1 - choice, True
    values = at + VALUES + CHOICE_BYTES * choice
    off = 0
    for i in range(4):
        word, is_off = choose_point(x, 8 * i, borders, flipped, values, scale, by_cell, lists, at)
        store_i32(at + WORDS + 4 * i, word)
        off |= is_off
    if off != 0:
        sum_x = sum_2 = np.float32(0)
        for i in range(4):
            word = load_i32(at + WORDS + 4 * i)
            here, weights = x + 32 * i, at + WEIGHTS + 32 * i
            sum_x, sum_2 = add_fit(sum_x, sum_2, word, values, np.float32(1), here, weights)
        if sum_x > np.float32(0) and sum_2 > np.float32(0):
            scale = sum_x / sum_2
    return scale, choice, found


@inline
def _put_points(numbers, out, group, at):
    """Four points of 11 bits."""
    high = 0
    for i in range(4):
        number = _number_of(load_i32(at + WORDS + 4 * i), numbers)
        put_byte(out + 2 + 4 * group + i, number)
        high |= number >> 8 << 3 * i
    put_byte(out + 34 + 2 * group, high)
    put_byte(out + 35 + 2 * group, high >> 8)


@inline
def _finish(out, at):
    """The block's scale; levels and choices above the high bits of the points."""
    scales = load_f32x16(at + SCALES)
    most = max_f32x16_all(scales)
    if most == np.float32(0):
        return
    scale = most / np.float32(15)
    store_f16(out, scale * np.float32(1.125))
    v = fill_f32x16(np.float32(1) / scale) * scales - fill_f32x16(np.float32(1))
    levels = nearest_int(fill_f32x16(np.float32(0.5)) * v)
    levels = larger(smaller(levels, fill_i32x16(7)), zero_i32x16())
    store_i32x16(at + LEVELS, levels)
    for i in range(8):
        level = load_i32(at + LEVELS + 4 * i) | load_i32(at + CHOSEN + 4 * i) << 3
        to = out + 35 + 2 * i
        put_byte(to, load_byte(to) | level << 4)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch, tables):
    """float32 rows to IQ1_S; see quant/quantizers/__init__.py."""
    by_cell, lists, numbers = load_i64(tables), load_i64(tables + 8), load_i64(tables + 16)
    blocks, at = num_rows * (columns // BLOCK), scratch
    put_choices(at)
    store_i32x16(at + SCALES, zero_i32x16())
    for block in range(blocks):
        x = values + 4 * BLOCK * block
        if block % 4 == 0:
            energies(x, blocks - block, at + ENERGIES)
        energy = np.float32(2) * load_f32(at + ENERGIES + 4 * (block % 4)) / np.float32(BLOCK)
        to, weights = out + _NUM_BYTES * block, importance
        if importance != 0:
            weights += 4 * BLOCK * (block % (columns // BLOCK))
        clear(to, _NUM_BYTES)
        for i in range(BLOCK // _GROUP):
            here = x + 4 * _GROUP * i
            behind = weights + 4 * _GROUP * i if importance != 0 else 0
            most = weigh(here, behind, energy, _GROUP, at)
            scale, choice = np.float32(0), 0
            if most >= np.float32(1e-12):
                scale, choice, found = _fit_group(here, most, by_cell, lists, at)
                if found >= 0:
                    _put_points(numbers, to, i, at)
            store_f32(at + SCALES + 4 * i, scale)
            store_i32(at + CHOSEN + 4 * i, choice)
        _finish(to, at)
    return 0
