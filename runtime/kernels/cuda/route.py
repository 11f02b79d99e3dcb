"""Which experts a token goes to; a tie goes to the one with the lower number.

A warp does a token: thread t has experts t, t + 32...; their scores are compared as whole numbers
of the same order.
"""

from typing import Any

import numpy as np

from ....quant.cuda.memory import (
    load_f32,
    load_i64,
    load_shared_f32,
    load_shared_i32,
    shared,
    store_f32,
    store_i64,
    store_shared_f32,
    store_shared_i32,
)
from ....quant.cuda.simt import (
    add32,
    atomic_add_shared32,
    barrier,
    block_x,
    exp2,
    f32_of,
    i32,
    i64,
    inline,
    kernel,
    let_next_start,
    maximum,
    minimum,
    order_of,
    put,
    reciprocal,
    shuffle_i32,
    sub32,
    sync_warp,
    thread,
    wait_for_inputs,
    warp_max,
    warp_max32,
    warp_min32,
    warp_sum,
    zero,
)
from .launches.route import MAX_EXPERTS, SORTING, WIDTHS

_SOFTMAX, _SIGMOID = 1, 2  # models/architecture.py's Gating; 3: softmax over the chosen ones
_TAKEN, _OUTSIDE = -(1 << 31), -(1 << 31) + 2  # below all scores, as is a NaN between them
_LOG2E, _LOWEST = np.float32(1.4426950408889634), np.float32(-3.0e38)
# The smallest normal float16: what a sum that is divided by has at least.
_SMALLEST = np.float32(6.103515625e-5)
_scores = shared(4 * MAX_EXPERTS)  # of experts; then what the chosen ones are
_marks = shared(4 * MAX_EXPERTS)  # 1: a group that may be chosen from; then who is chosen


def _make(width: int) -> Any:
    """The kernel of `width` experts a thread."""
    zeros, words = zero(f"f32x{width}"), zero(f"i32x{width}")
    put_float, put_word = put(f"f32x{width}"), put(f"i32x{width}")

    @inline
    def best(keys):
        """The number of the first of the highest keys of all threads."""
        highest = keys[0]
        for k in range(1, width):
            if i64(keys[k]) > i64(highest):
                highest = keys[k]
        top = warp_max32(highest)
        number = i32(1 << 30)
        for k in range(width - 1, -1, -1):
            if i64(keys[k]) == i64(top):
                number = i32(thread() + 32 * k)
        return i64(warp_min32(number))

    @inline
    def without(keys, number):
        """The keys with one taken."""
        for k in range(width):
            if thread() + 32 * k == number:
                keys = put_word(keys, k, i32(_TAKEN))
        return keys

    @inline
    def mark_groups(num_experts, groups, groups_used):
        """Mark the groups whose two best scores have the highest sums."""
        size = num_experts // groups
        keys = words()
        for k in range(width):
            group = thread() + 32 * k
            key = i32(_TAKEN)
            if group < groups:
                store_shared_i32(_marks() + 4 * group, i32(0))
                first, second = _LOWEST, _LOWEST
                for e in range(group * size, (group + 1) * size):
                    s = load_shared_f32(_scores() + 4 * e)
                    second = maximum(second, minimum(s, first))
                    first = maximum(s, first)
                if size > 1:
                    first = first + second
                key = order_of(first)
            keys = put_word(keys, k, key)
        for _ in range(groups_used):
            group = best(keys)
            keys = without(keys, group)
            if thread() == 0:
                store_shared_i32(_marks() + 4 * group, i32(1))
        sync_warp()

    @inline
    def probabilities_of(v, num_experts, gating):
        """What logits become before the choice."""
        if gating == _SIGMOID:
            for k in range(width):
                v = put_float(v, k, reciprocal(f32_of(1) + exp2(v[k] * -_LOG2E)))
        if gating == _SOFTMAX:
            highest = _LOWEST
            for k in range(width):
                highest = maximum(highest, v[k])
            highest, total = warp_max(highest), f32_of(0)
            for k in range(width):
                p = f32_of(0)
                if thread() + 32 * k < num_experts:
                    p = exp2((v[k] - highest) * _LOG2E)
                v = put_float(v, k, p)
                total += p
            by = f32_of(1) / warp_sum(total)
            for k in range(width):
                v = put_float(v, k, v[k] * by)
        return v

    @inline
    def put_weights(
        token, used, gating, normalize, scale, expert_scale, out_experts, out_weights, slots
    ):
        """From the chosen ones' numbers and probabilities in shared memory to the results."""
        highest, total = _LOWEST, f32_of(0)
        for r in range(thread(), used, 32):
            w = load_shared_f32(_scores() + 4 * r)
            highest = maximum(highest, w)
            total += w
        if gating != _SOFTMAX and gating != _SIGMOID:
            highest, total = warp_max(highest), f32_of(0)
            for r in range(thread(), used, 32):
                w = exp2((load_shared_f32(_scores() + 4 * r) - highest) * _LOG2E)
                store_shared_f32(_scores() + 4 * r, w)
                total += w
            scale = scale / warp_sum(total)
        elif normalize != 0:
            scale = scale / maximum(warp_sum(total), _SMALLEST)
        for r in range(thread(), used, 32):
            e = i64(load_shared_i32(_marks() + 4 * r))
            w = load_shared_f32(_scores() + 4 * r) * scale
            if expert_scale != 0:
                w = w * load_f32(expert_scale + 4 * e)
            store_i64(out_experts + 8 * (token * used + r), e)
            store_f32(out_weights + 4 * (token * used + r), w)
            if slots != 0:
                store_i64(slots + 8 * (token * used + r), (e << 32) | (token * used + r))

    @kernel(block=32)
    def route(
        logits, stride, num_experts, used, gating, normalize, groups, groups_used, scale: float,
        select_bias, expert_scale, out_experts, out_weights, slots,
    ):  # fmt: skip
        """A token a block. select_bias: 0, or float32 an expert, for the choice only.

        slots: 0, or where the pairs go as they come, as `sort_pairs` would put them.
        """
        let_next_start()
        wait_for_inputs()
        token = block_x()
        v = zeros()
        for k in range(width):
            e = thread() + 32 * k
            x = _LOWEST
            if e < num_experts:
                x = load_f32(logits + token * stride + 4 * e)
            v = put_float(v, k, x)
        v = probabilities_of(v, num_experts, gating)
        scores = v
        if select_bias != 0:
            for k in range(width):
                e = thread() + 32 * k
                if e < num_experts:
                    scores = put_float(scores, k, v[k] + load_f32(select_bias + 4 * e))
        size = num_experts
        if groups > 1:
            size = num_experts // groups
            for k in range(width):
                store_shared_f32(_scores() + 4 * (thread() + 32 * k), scores[k])
            sync_warp()
            mark_groups(num_experts, groups, groups_used)
        keys = words()
        for k in range(width):
            e = thread() + 32 * k
            key = i32(_TAKEN)
            if e < num_experts:
                key = order_of(scores[k])
                if groups > 1:
                    if i64(load_shared_i32(_marks() + 4 * (e // size))) == 0:
                        key = i32(_OUTSIDE)
            keys = put_word(keys, k, key)
        sync_warp()
        for r in range(used):
            number = best(keys)
            keys = without(keys, number)
            for k in range(width):
                if thread() + 32 * k == number:
                    store_shared_f32(_scores() + 4 * r, v[k])
                    store_shared_i32(_marks() + 4 * r, i32(number))
        sync_warp()
        put_weights(
            token, used, gating, normalize, scale, expert_scale, out_experts, out_weights, slots
        )

    return route


for _width in WIDTHS:
    globals()[f"route_{_width}"] = _make(_width)


@kernel(block=SORTING)
def sort_pairs(experts, num_pairs, slots):
    """Pairs of tokens and experts by expert, in one block: int64 of the expert << 32 | the pair."""
    let_next_start()
    for e in range(thread(), MAX_EXPERTS, SORTING):
        store_shared_i32(_marks() + 4 * e, i32(0))
    wait_for_inputs()
    barrier()
    for pair in range(thread(), num_pairs, SORTING):
        atomic_add_shared32(_marks() + 4 * load_i64(experts + 8 * pair), i32(1))
    barrier()
    if thread() < 32:  # each has a run of experts
        total = i32(0)
        for k in range(MAX_EXPERTS // 32):
            at = 4 * (thread() * (MAX_EXPERTS // 32) + k)
            count = load_shared_i32(_marks() + at)
            store_shared_i32(_marks() + at, total)
            total = add32(total, count)
        before = total
        for k in range(5):
            more = shuffle_i32(before, max(thread() - (1 << k), 0))
            if thread() >= 1 << k:
                before = add32(before, more)
        before = sub32(before, total)
        for k in range(MAX_EXPERTS // 32):
            at = 4 * (thread() * (MAX_EXPERTS // 32) + k)
            store_shared_i32(_marks() + at, add32(load_shared_i32(_marks() + at), before))
    barrier()
    for pair in range(thread(), num_pairs, SORTING):
        e = load_i64(experts + 8 * pair)
        slot = i64(atomic_add_shared32(_marks() + 4 * e, i32(1)))
        store_i64(slots + 8 * slot, (e << 32) | pair)
