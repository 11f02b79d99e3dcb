"""The next token of a row from its best candidates, as runtime/sampler.py draws it.

Filters by top-k, top-p and min-p in this order each leave the first so many candidates; then the
first is taken whose running sum of weights is above the share `point` of them all. It is a guess:
sums are float32, and candidates beyond launches/top.py's COUNT are never seen.
"""

import numpy as np

from ....quant.cuda.memory import load_f32, load_f32x2, load_i32, load_i32x2, store_i32
from ....quant.cuda.simt import (
    add32,
    block_x,
    exp2,
    f32_of,
    i32,
    i64,
    inline,
    kernel,
    let_next_start,
    log2,
    maximum,
    shuffle_f32,
    shuffle_i32,
    thread,
    wait_for_inputs,
    warp_add32,
)
from .launches.choose import CHOICE_BYTES
from .launches.top import COUNT, TOP_BYTES

_LOG2E, _LN2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
_TINY = np.float32(1.1754943508222875e-38)


@inline
def _running(a, b):
    """(sum up to a, sum up to b, total) of two values a thread, in order over the warp."""
    up_to = a + b
    for k in range(5):
        more = shuffle_f32(up_to, max(thread() - (1 << k), 0))
        if thread() >= 1 << k:
            up_to = up_to + more
    before = shuffle_f32(up_to, max(thread() - 1, 0))
    if thread() == 0:
        before = f32_of(0)
    return before + a, up_to, shuffle_f32(up_to, 31)


@inline
def _weights(a, b, highest, scale, count):
    """exp((logit - highest) * scale) of a thread's two candidates; 0 from number `count` on."""
    first, second = f32_of(0), f32_of(0)
    if 2 * thread() < count:
        first = exp2((a - highest) * scale * _LOG2E)
    if 2 * thread() + 1 < count:
        second = exp2((b - highest) * scale * _LOG2E)
    return first, second


@inline
def _count(first, second):
    """How many of the warp's two conditions a thread hold."""
    found = i32(0)
    if first:
        found = add32(found, i32(1))
    if second:
        found = add32(found, i32(1))
    return i64(warp_add32(found))


@inline
def _drawn(a, b, count, temperature, top_p, min_p, min_keep, point):
    """The number of the candidate that is drawn of the first `count`."""
    highest, one = shuffle_f32(a, 0), f32_of(1)
    if top_p < one:
        first, second = _weights(a, b, highest, one, count)
        first, second, total = _running(first, second)
        bound = top_p * total
        kept = _count(first < bound, second < bound) + 1
        count = min(count, max(kept, min_keep))
    if min_p > f32_of(0):
        bound, at = highest + log2(min_p) * _LN2, 2 * thread()
        kept = _count(at < count and a >= bound, at + 1 < count and b >= bound)
        count = min(count, max(kept, max(min_keep, 1)))
    first, second = _weights(a, b, highest, one / maximum(temperature, _TINY), count)
    first, second, total = _running(first, second)
    target = point * total
    number = _count(first <= target, second <= target)
    if number >= count:  # rounded up to the whole: the last one that adds something
        number = _count(first < total, second < total)
    return number


@kernel(block=32)
def choose(top, choices, out, kept, positions, ends):
    """A row a block, two candidates a thread. Without a candidate it is token 0."""
    let_next_start()
    wait_for_inputs()
    row, choice = top + block_x() * TOP_BYTES, choices + block_x() * CHOICE_BYTES
    count, top_k = i64(load_i32(row)), i64(load_i32(choice + 4))
    pair = load_f32x2(row + 32 + 8 * thread())
    ids = load_i32x2(row + 32 + 4 * COUNT + 8 * thread())
    if top_k > 0:
        count = min(count, top_k)
    temperature, number = load_f32(choice), 0
    if temperature > f32_of(0) and count > 0:
        top_p, min_p = load_f32(choice + 8), load_f32(choice + 12)
        min_keep, point = i64(load_i32(choice + 16)), load_f32(choice + 20)
        number = _drawn(pair[0], pair[1], count, temperature, top_p, min_p, min_keep, point)
    first, second = shuffle_i32(ids[0], number >> 1), shuffle_i32(ids[1], number >> 1)
    if number & 1:
        first = second
    if count == 0:
        first = i32(0)
    target = i64(load_i32(choice + 24))
    if thread() == 0 and target >= 0:
        store_i32(out + 4 * target, first)
        store_i32(kept + 4 * target, first)
        if positions != 0:
            at = 4 * target
            store_i32(positions + at, add32(load_i32(positions + at), i32(1)))
            store_i32(ends + at, add32(load_i32(ends + at), i32(1)))
