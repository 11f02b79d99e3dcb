"""The highest logits of each row, best first, and the sum of all exponentials (launches/top.py).

`scan` makes of each group of logits its highest and its sum. The best COUNT logits lie in the COUNT
groups with the highest ones, if the lower group goes first where these are equal; so `merge` looks
at no others. Logits are compared as whole numbers of the same order.
"""

import numpy as np

from ....quant.cuda.memory import (
    load_f32,
    load_f32x4,
    load_shared_f32x2,
    load_shared_i32,
    load_shared_i32x2,
    load_shared_i32x4,
    shared,
    store_f32,
    store_f32x2,
    store_i32,
    store_shared_f32x2,
    store_shared_i32,
    store_shared_i32x2,
    store_shared_i32x4,
)
from ....quant.cuda.simt import (
    add32,
    and32,
    atomic_add_shared32,
    barrier,
    block_x,
    block_y,
    exp2,
    f32_of,
    i32,
    i64,
    inline,
    kernel,
    let_next_start,
    log2,
    make_f32x2,
    make_f32x4,
    make_i32x2,
    make_i32x4,
    maximum,
    of_order,
    order_of,
    put,
    shr32,
    shuffle_xor_f32,
    shuffle_xor_i32,
    thread,
    wait_for_inputs,
    warp_add32,
    warp_max,
    warp_sum,
)
from .launches.top import COUNT, GROUP, MAX_GROUPS, MERGING, SCANNING

_NOTHING, _LOG2E = np.float32(-np.inf), np.float32(1.4426950408889634)
_LN2 = np.float32(0.6931471805599453)
_ABSENT = -(1 << 31)  # below all keys
_WARPS = MERGING // 32
_MOST = 2 * COUNT  # candidates that are sorted at once
_put_key = put("i32x4")
_keys = shared(4 * max(MAX_GROUPS, COUNT * GROUP))
_found, _found_keys, _sorted = shared(4 * _MOST), shared(4 * _MOST), shared(4 * COUNT)
_counts, _sums, _number = shared(2 * 8 * _WARPS), shared(8 * _WARPS), shared(16)


@inline
def _four(row, column, vocab):
    """Four logits from `column` on; -inf beyond the last."""
    v = make_f32x4(_NOTHING, _NOTHING, _NOTHING, _NOTHING)
    if column + 4 <= vocab and row & 15 == 0:
        v = load_f32x4(row + 4 * column)
    elif column < vocab:
        a, b, c, d = load_f32(row + 4 * column), _NOTHING, _NOTHING, _NOTHING
        if column + 1 < vocab:
            b = load_f32(row + 4 * column + 4)
        if column + 2 < vocab:
            c = load_f32(row + 4 * column + 8)
        if column + 3 < vocab:
            d = load_f32(row + 4 * column + 12)
        v = make_f32x4(a, b, c, d)
    return v


@kernel(block=SCANNING)
def scan(logits, stride, vocab, groups, out):
    """Of each group the highest and the sum of exp(logit - highest); NaN if one is NaN or +inf."""
    let_next_start()
    wait_for_inputs()
    column = (block_x() * SCANNING + thread()) * 4
    v = _four(logits + block_y() * stride, column, vocab)
    highest = maximum(maximum(v[0], v[1]), maximum(v[2], v[3]))
    for k in range(4):
        highest = maximum(highest, shuffle_xor_f32(highest, 1 << k))
    shift = f32_of(0)
    if highest > _NOTHING:
        shift = highest
    total = f32_of(0)
    for k in range(4):
        total += exp2((v[k] - shift) * _LOG2E)
    for k in range(4):
        total += shuffle_xor_f32(total, 1 << k)
    if column < vocab and column % GROUP == 0:
        at = out + (block_y() * ((groups + 3) & -4) + column // GROUP) * 8
        store_f32x2(at, make_f32x2(highest, total))


@inline
def _key(v):
    """A logit's place in the order; nothing for -inf and NaN."""
    key = i32(_ABSENT)
    if v > _NOTHING:
        key = order_of(v)
    return key


@inline
def _block_counts(a, b, turn):
    """The sums of two counts over the block; `turn` alternates between 0 and 1."""
    a, b = warp_add32(a), warp_add32(b)
    at, lane = _counts() + turn * (8 * _WARPS), thread() & 31
    if lane == 0:
        store_shared_i32x2(at + (thread() >> 5) * 8, make_i32x2(a, b))
    barrier()
    pair = make_i32x2(i32(0), i32(0))
    if lane < _WARPS:
        pair = load_shared_i32x2(at + lane * 8)
    return warp_add32(pair[0]), warp_add32(pair[1])


@inline
def _count_from(size, bound):
    """How many of the first `size` keys are at least `bound`."""
    count = i32(0)
    for i in range(4 * thread(), size, 4 * MERGING):
        keys = load_shared_i32x4(_keys() + 4 * i)
        for k in range(4):
            if i64(keys[k]) >= bound:
                count = add32(count, i32(1))
    count, _ = _block_counts(count, i32(0), 1)
    barrier()
    return i64(count)


@inline
def _bound(size, wanted, turns):
    """(key, number): the highest key that so many reach; how many do if not too many, else -1.

    Two bits of the key a turn, the upper ones first, counting what reaches each of three values.
    """
    low, reached = 0, -1  # as if keys were counted from 0
    for turn in range(turns):
        if reached != wanted:
            step = 1 << (30 - 2 * turn)
            first, a, b = low + _ABSENT, i32(0), i32(0)
            key1, key2 = i64(i32(first + step)), i64(i32(first + 2 * step))
            key3 = i64(i32(first + 3 * step))
            for i in range(4 * thread(), size, 4 * MERGING):
                keys = load_shared_i32x4(_keys() + 4 * i)
                for k in range(4):
                    key = i64(keys[k])
                    if key >= key1:
                        a = add32(a, i32(1))
                    if key >= key2:
                        a = add32(a, i32(1 << 16))
                    if key >= key3:
                        b = add32(b, i32(1))
            a, b = _block_counts(a, b, turn & 1)
            one, two, three = i64(and32(a, i32(0xFFFF))), i64(shr32(a, i32(16))), i64(b)
            if three >= wanted:
                low, reached = low + 3 * step, three
            elif two >= wanted:
                low, reached = low + 2 * step, two
            elif one >= wanted:
                low, reached = low + step, one
    barrier()
    return low + _ABSENT, reached


@inline
def _first_equal(size, bound, wanted, turns):
    """The end of the keys of which those above `bound` and equal to it are `wanted`, in order."""
    end = 0
    for turn in range(turns):
        step, count = (1 << turns) >> (turn + 1), i32(0)
        for i in range(4 * thread(), size, 4 * MERGING):
            keys = load_shared_i32x4(_keys() + 4 * i)
            for k in range(4):
                key = i64(keys[k])
                if key > bound or (key == bound and i + k < end + step):
                    count = add32(count, i32(1))
        count, _ = _block_counts(count, i32(0), turn & 1)
        if i64(count) <= wanted:
            end += step
    barrier()
    return end


@inline
def _collect(size, bound, end):
    """Put the keys above `bound`, or equal to it and before `end`, and their numbers to _found.

    Behind them are numbers and keys that come after all others.
    """
    if thread() < _MOST:
        store_shared_i32(_found() + 4 * thread(), i32(1 << 30))
        store_shared_i32(_found_keys() + 4 * thread(), i32(_ABSENT))
    if thread() == 0:
        store_shared_i32(_number(), i32(0))
    barrier()
    for i in range(4 * thread(), size, 4 * MERGING):
        keys = load_shared_i32x4(_keys() + 4 * i)
        for k in range(4):
            key = i64(keys[k])
            if key > bound or (key == bound and i + k < end):
                slot = i64(atomic_add_shared32(_number(), i32(1)))
                store_shared_i32(_found() + 4 * slot, i32(i + k))
                store_shared_i32(_found_keys() + 4 * slot, keys[k])
    barrier()
    return i64(load_shared_i32(_number()))


@inline
def _best(size, bound, most, turns, tie_turns):
    """Collect the highest COUNT keys from `bound` on, or all if they are `most` at most."""
    end, there = size, _count_from(size, bound)
    if there > most:
        bound, reached = _bound(size, COUNT, turns)
        if reached != COUNT:
            end = _first_equal(size, bound, COUNT, tie_turns)
    return _collect(size, bound, end), bound


@inline
def _scale(from_highest, to_highest):
    """What a sum of exp(logit - from_highest) is multiplied by for another one."""
    shift = f32_of(0)
    if to_highest > _NOTHING:
        shift = to_highest
    return exp2((from_highest - shift) * _LOG2E)


@inline
def _read_groups(pairs, groups):
    """The groups' keys to shared memory. Returns the highest of all, and the sum of the row."""
    highest, total = _NOTHING, f32_of(0)
    for g in range(4 * thread(), groups, 4 * MERGING):
        a, b = load_f32x4(pairs + 8 * g), load_f32x4(pairs + 8 * g + 16)
        values = make_f32x4(a[0], a[2], b[0], b[2])
        sums = make_f32x4(a[1], a[3], b[1], b[3])
        before, keys = highest, make_i32x4(i32(0), i32(0), i32(0), i32(0))
        for k in range(4):
            keys = _put_key(keys, k, i32(_ABSENT))
            if g + k < groups:
                keys = _put_key(keys, k, _key(values[k]))
                highest = maximum(highest, values[k])
        total = total * _scale(before, highest)
        for k in range(4):
            if g + k < groups:
                total += sums[k] * _scale(values[k], highest)
        store_shared_i32x4(_keys() + 4 * g, keys)
    of_warp = warp_max(highest)
    total = warp_sum(total * _scale(highest, of_warp))
    if thread() & 31 == 0:
        store_shared_f32x2(_sums() + (thread() >> 5) * 8, make_f32x2(of_warp, total))
    barrier()
    mine = load_shared_f32x2(_sums() + (thread() & (_WARPS - 1)) * 8)
    highest = warp_max(mine[0])
    total = f32_of(0)
    if thread() & 31 < _WARPS:
        total = mine[1] * _scale(mine[0], highest)
    return highest, warp_sum(total)


@inline
def _sort_groups():
    """Their numbers in order, so that what they hold is in the order of ids."""
    mine, part, rank = thread() >> 3, thread() & 7, i32(0)  # eight threads rank a group
    group = load_shared_i32(_found() + 4 * mine)
    for half in range(2):
        others = load_shared_i32x4(_found() + 32 * part + 16 * half)
        for k in range(4):
            if i64(others[k]) < i64(group):
                rank = add32(rank, i32(1))
    for k in range(3):
        rank = add32(rank, shuffle_xor_i32(rank, 1 << k))
    if part == 0 and i64(group) < 1 << 30:
        store_shared_i32(_sorted() + 4 * i64(rank), group)


@inline
def _rank(key, number, part, count):
    """How many of the candidates are better; four threads, `part`, count a quarter each."""
    rank = i32(0)
    for first in range(0, count, 16):
        at = 4 * (first + 4 * part)
        keys, numbers = load_shared_i32x4(_found_keys() + at), load_shared_i32x4(_found() + at)
        for k in range(4):
            its = i64(keys[k])
            if its > i64(key) or (its == i64(key) and i64(numbers[k]) < i64(number)):
                rank = add32(rank, i32(1))
    rank = add32(rank, shuffle_xor_i32(rank, 1))
    return i64(add32(rank, shuffle_xor_i32(rank, 2)))


@inline
def _keys_of(v):
    """Of four logits."""
    return make_i32x4(_key(v[0]), _key(v[1]), _key(v[2]), _key(v[3]))


@kernel(block=MERGING)
def merge(logits, stride, vocab, groups, pairs, out, turns, tie_turns):
    """A row a block. turns, tie_turns: the bits of keys by two, and of their numbers."""
    let_next_start()
    wait_for_inputs()
    row, to = logits + block_x() * stride, out + block_x() * (32 + 8 * COUNT)
    highest, total = _read_groups(pairs + block_x() * ((groups + 3) & -4) * 8, groups)
    number, bound = _best((groups + 3) & -4, _ABSENT + 1, COUNT, turns, tie_turns)
    _sort_groups()
    barrier()
    at, size = thread() * 4, number * GROUP
    for _ in range(COUNT * GROUP // (8 * MERGING)):
        later = at + 4 * MERGING
        group, other = i32(0), i32(0)
        if at < size:
            group = load_shared_i32(_sorted() + 4 * (at // GROUP))
        if later < size:
            other = load_shared_i32(_sorted() + 4 * (later // GROUP))
        a = _four(row, i64(group) * GROUP + at % GROUP, vocab)
        b = _four(row, i64(other) * GROUP + later % GROUP, vocab)
        if at < size:
            store_shared_i32x4(_keys() + 4 * at, _keys_of(a))
        if later < size:
            store_shared_i32x4(_keys() + 4 * later, _keys_of(b))
        at = later + 4 * MERGING
    barrier()
    count, _ = _best(size, bound, _MOST, turns, tie_turns)
    mine, part = thread() >> 2, thread() & 3
    if thread() & -32 < 4 * count:  # the warps that have candidates
        which, key = load_shared_i32(_found() + 4 * mine), load_shared_i32(_found_keys() + 4 * mine)
        rank = _rank(key, which, part, count)
        if mine < count and part == 0 and rank < COUNT:
            at, place = i64(which), to + 32 + 4 * rank
            group = load_shared_i32(_sorted() + 4 * (at // GROUP))
            store_f32(place, of_order(key))
            store_i32(place + 4 * COUNT, i32(i64(group) * GROUP + at % GROUP))
    if thread() == 0:
        broken = i32(0)
        if total != total:
            broken = i32(1)
        store_i32(to, i32(min(count, COUNT)))
        store_i32(to + 4, broken)
        store_f32(to + 8, highest)
        store_f32(to + 12, total)
        store_f32(to + 16, highest + log2(total) * _LN2)
