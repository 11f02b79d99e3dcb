"""What IQ1_S and IQ1_M share: of three values, each one in a group is given the nearest.

As llama.cpp does it, the group is sorted, and every pair of borders between the three tried with
each choice of the three; the scale follows from the sums of weight and weight * value between the
borders. The best in order stays, by a comparison that rounds: so a pair counts only if it beats
the best one before it. 16 candidates are looked at at once, and one by one only where some do.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from ..cpu.simd import (
    abs_f32x16,
    address,
    fill_f32x16,
    inline,
    load_f32,
    load_f32x8,
    load_f32x16,
    load_i32,
    make,
    max_f32x16,
    max_f32x16_all,
    store_f32,
    store_f32x16,
    store_i32,
    zero_f32x16,
)
from ..cpu.vector import F32, I64, Builder, Value, constant, pointer, splat, vec
from .codebook_search import make_nearest_point
from .codebook_words import first_bit
from .words import greater, select, sqrt_f32x16

# The values for each choice; a choice's address is its number of these.
CHOICES = ((-0.875, 0.125, 1.125), (-1.125, -0.125, 0.875))
CHOICE_BYTES = 16
LOWEST = np.float32(-np.finfo(np.float32).max)

# Offsets in the scratch memory: of a group the weights, weight times value, the place of each value
# in order and the two in this order; sums before each border, for each lane; some candidates.
WEIGHTS, WEIGHTED, PLACES, SORTED_WEIGHTED, SORTED_WEIGHTS = 0, 128, 256, 384, 512
ORDER, SUMS, SUM_BYTES = 640, 768, 384
CANDIDATES = SUMS + 4 * SUM_BYTES
VALUES = CANDIDATES + 128
# Of a block: the groups' scales, levels, choices and words; sums of squares of four blocks.
SCALES, LEVELS, CHOSEN, WORDS = VALUES + 64, VALUES + 128, VALUES + 192, VALUES + 256
ENERGIES = WORDS + 128

_nearest_point = make_nearest_point(8, given=True)


def _places_code(count: int) -> Any:
    def code(b: Builder, sig: Any, args: Any) -> Value:
        x, out = args
        for first in range(0, count, 16):
            at = pointer(b, b.add(x, I64(4 * first)))
            own = b.load(at, align=1, typ=vec("f32", 16).llvm)
            total: Value = constant("i32", [0] * 16)
            for j in range(count):
                other = b.load(pointer(b, b.add(x, I64(4 * j))), align=1, typ=F32)
                other = splat(b, other, 16)
                before = b.fcmp_ordered("<", other, own)
                if earlier := [int(j < first + i) for i in range(16)]:
                    mask = ir.Constant(ir.VectorType(ir.IntType(1), 16), earlier)
                    equal = b.fcmp_ordered("==", other, own)
                    before = b.or_(before, b.and_(equal, mask))
                total = b.sub(total, b.sext(before, vec("i32", 16).llvm))
            b.store(total, pointer(b, b.add(out, I64(4 * first))), align=1)
        return I64(0)

    return code


def places(count: int) -> Any:
    """places(x, out): for each of 16 or 32 float32 its place in order, int32; equal ones stay."""
    return make("places", 2, lambda a: types.int64(address, address), _places_code(count))


def _beating_code(b: Builder, sig: Any, args: Any) -> Value:
    sum_x, sum_2, best = args
    none = ir.Constant(sum_2.type, None)
    more = b.fcmp_ordered(">", b.fmul(sum_x, sum_x), b.fmul(splat(b, best, 16), sum_2))
    hits = b.and_(b.fcmp_ordered(">", sum_2, none), more)
    return b.zext(b.bitcast(hits, ir.IntType(16)), I64)


def _above_code(b: Builder, sig: Any, args: Any) -> Value:
    above = b.fcmp_ordered(">", args[0], splat(b, args[1], 16))
    return b.zext(b.bitcast(above, ir.IntType(16)), I64)


_F32X16 = vec("f32", 16)
# beating(sum_x, sum_2, best): a bit for each lane with sum_2 > 0 and sum_x^2 > best * sum_2.
beating = make("beating", 3, lambda a: types.int64(_F32X16, _F32X16, types.float32), _beating_code)
# lanes_above(v, limit): a bit for each lane above a scalar.
lanes_above = make("lanes_above", 2, lambda a: types.int64(_F32X16, types.float32), _above_code)


@inline
def put_choices(at):
    """The values of both choices, for what takes their address."""
    for k in range(2):
        least = np.float32(-0.875) if k == 0 else np.float32(-1.125)
        for i in range(3):
            store_f32(at + VALUES + CHOICE_BYTES * k + 4 * i, least + np.float32(i))


@inline
def weigh(x, importance, energy, count, at):
    """A group's weights, and those times its values -> its largest magnitude."""
    most = zero_f32x16()
    for i in range(0, 4 * count, 64):
        v = load_f32x16(x + i)
        weights = v * v
        if importance != 0:
            root = sqrt_f32x16(fill_f32x16(energy) + weights)
            weights = load_f32x16(importance + i) * root
        store_f32x16(at + WEIGHTS + i, weights)
        store_f32x16(at + WEIGHTED + i, weights * v)
        most = max_f32x16(most, abs_f32x16(v))
    return max_f32x16_all(most)


@inline
def sort(count, at):
    """Weights, and those times values, in the order of the values' places."""
    for i in range(0, 4 * count, 4):
        place = 4 * load_i32(at + PLACES + i)
        store_i32(at + SORTED_WEIGHTED + place, load_i32(at + WEIGHTED + i))
        store_i32(at + SORTED_WEIGHTS + place, load_i32(at + WEIGHTS + i))


@inline
def _is_plain(v):
    """Whether a product is far from where float32 overflows or loses bits."""
    return np.float32(1e-30) < v < np.float32(1e30)


@inline
def scores_of(sum_x, sum_2):
    """What candidates would be chosen by if nothing were rounded; 0 where there is none."""
    zero = zero_f32x16()
    return select(greater(sum_2, zero), sum_x * sum_x / sum_2, zero)


@inline
def start_of(scores, sum_w):
    """What the best one must beat, by scores that were found.

    The search may begin with it: those below are not chosen in the end. Whatever they would have
    been better than, one that is clearly better than them follows, and from there on all is the
    same: each step is off by a few roundings, and a thousandth is more than those of all steps.
    """
    most = max_f32x16_all(scores)
    if _is_plain(most) and _is_plain(most * sum_w):
        return most * np.float32(0.999)
    return LOWEST


@inline
def best_of(sum_x, sum_2, best, scale, found, number, at):
    """The last of 16 candidates in turn to beat the best -> best, its scale, its number.

    `number` is the first one's; where there is none, the arguments come back.
    """
    hits = beating(sum_x, sum_2, best)
    if hits != 0:
        store_f32x16(at + CANDIDATES, sum_x)
        store_f32x16(at + CANDIDATES + 64, sum_2)
        scores = scores_of(sum_x, sum_2)
        most = max_f32x16_all(scores)
        near = lanes_above(scores, most * np.float32(0.99999))
        lane = first_bit(near)
        value = load_f32(at + CANDIDATES + 4 * lane)
        if near & (near - 1) == 0 and _is_plain(most) and _is_plain(value * value):
            hits &= 1 << lane  # beats all before it by far, and none behind it beats it
        while hits != 0:
            lane = first_bit(hits)
            value = load_f32(at + CANDIDATES + 4 * lane)
            scale = value / load_f32(at + CANDIDATES + 64 + 4 * lane)
            best, found = scale * value, number + lane
            hits = beating(sum_x, sum_2, best) & (-2 << lane)
    return best, scale, found


@inline
def choose_point(x, first, borders, flipped, values, scale, by_cell, lists, at):
    """The word for eight values from `first` on, and whether the codebook has not their cell."""
    low, high = borders
    cell = 0
    for i in range(7, -1, -1):
        place = load_i32(at + PLACES + 4 * (first + i))
        code = (1 if place >= low else 0) + (1 if place >= high else 0)
        cell = 3 * cell + (2 - code if flipped else code)
    word = load_i32(by_cell + 4 * cell)
    if word >= 0:
        return word, 0
    values_here, weights = load_f32x8(x + 4 * first), load_f32x8(at + WEIGHTS + 4 * first)
    return _nearest_point(~word, lists, scale, values, values_here, weights), 1


@inline
def add_fit(sum_x, sum_2, word, values, step, x, weights):
    """Both sums, + weight * q * x and weight * q * q of eight values; q: step times the value."""
    for i in range(8):
        q = load_f32(values + 4 * (word >> 4 * i & 3)) * step
        wq = load_f32(weights + 4 * i) * q
        sum_x += wq * load_f32(x + 4 * i)
        sum_2 += wq * q
    return sum_x, sum_2
