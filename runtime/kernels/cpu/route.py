"""Which experts a token goes to, and the pairs of tokens and experts sorted by expert.

A tie goes to the expert with the lower number.
"""

import numpy as np

from ....quant.cpu.simd import (
    LANES,
    exp_f32,
    exp_f32x16,
    fill_f32x16,
    inline,
    kernel,
    load_f32,
    load_f32x16,
    load_i64,
    store_f32,
    store_f32x16,
    store_i64,
)
from ....quant.cpu.threads import atomic_add
from ..records import ROUTE, STEP

_SOFTMAX, _SIGMOID = 1, 2  # models/architecture.py's Gating; 3: softmax over the chosen ones
_LOWEST = np.float32(-3.0e38)
# The smallest normal float16: what a sum that is divided by has at least.
_SMALLEST = np.float32(6.103515625e-5)


@inline
def _best(scores, taken, first, end):
    """The number of the highest score in first..end that isn't taken; `first` if all are."""
    found, top = first, _LOWEST
    for e in range(first, end):
        if load_i64(taken + 8 * e) == 0:
            s = load_f32(scores + 4 * e)
            if s > top or (found == first and load_i64(taken + 8 * first) != 0):
                found, top = e, s
    return found


@inline
def _keep_groups(op, scores, taken, sums, num_experts):
    """Take all experts but those of the groups whose two best scores have the highest sums."""
    groups = load_i64(op + ROUTE.groups)
    size = num_experts // groups
    done = sums + 4 * groups + 4 * (groups % 2)
    for g in range(groups):
        store_i64(done + 8 * g, 0)
        first = _best(scores, taken, g * size, (g + 1) * size)
        total = load_f32(scores + 4 * first)
        if size > 1:
            store_i64(taken + 8 * first, 1)
            total += load_f32(scores + 4 * _best(scores, taken, g * size, (g + 1) * size))
        store_f32(sums + 4 * g, total)
        for e in range(g * size, (g + 1) * size):
            store_i64(taken + 8 * e, 1)
    for _ in range(load_i64(op + ROUTE.groups_used)):
        g = _best(sums, done, 0, groups)
        store_i64(done + 8 * g, 1)
        for e in range(g * size, (g + 1) * size):
            store_i64(taken + 8 * e, 0)


@inline
def _choose(op, at, step_bytes, token, scratch):
    """The experts and weights of one token, whose logits lie `step_bytes` apart."""
    num_experts, used = load_i64(op + ROUTE.num_experts), load_i64(op + ROUTE.used)
    gating, bias = load_i64(op + ROUTE.gating), load_i64(op + ROUTE.select_bias)
    whole = (num_experts + 15) // 16 * 16
    probabilities = scratch
    scores = probabilities + 4 * whole
    taken = scores + 4 * whole
    sums = taken + 8 * whole
    largest = _LOWEST
    for e in range(num_experts):
        v = load_f32(at + e * step_bytes)
        store_f32(probabilities + 4 * e, v)
        if v > largest:
            largest = v
        store_i64(taken + 8 * e, 0)
    for e in range(num_experts, whole):
        store_f32(probabilities + 4 * e, _LOWEST)
    if gating == _SOFTMAX:
        total, shift = np.float32(0), fill_f32x16(largest)
        for e in range(0, whole, 16):
            p = probabilities + 4 * e
            store_f32x16(p, exp_f32x16(load_f32x16(p) - shift))
        for e in range(num_experts):
            total += load_f32(probabilities + 4 * e)
        by = fill_f32x16(np.float32(1) / total)
        for e in range(0, whole, 16):
            p = probabilities + 4 * e
            store_f32x16(p, load_f32x16(p) * by)
    elif gating == _SIGMOID:
        one = fill_f32x16(np.float32(1))
        for e in range(0, whole, 16):
            p = probabilities + 4 * e
            power = exp_f32x16(load_f32x16(p) * fill_f32x16(np.float32(-1)))
            store_f32x16(p, one / (one + power))
    for e in range(num_experts):
        s = load_f32(probabilities + 4 * e)
        store_f32(scores + 4 * e, s + load_f32(bias + 4 * e) if bias != 0 else s)
    if load_i64(op + ROUTE.groups) > 1:
        _keep_groups(op, scores, taken, sums, num_experts)
    experts = load_i64(op + ROUTE.out_experts) + 8 * token * used
    weights = load_i64(op + ROUTE.out_weights) + 4 * token * used
    total = np.float32(0)
    for r in range(used):
        e = _best(scores, taken, 0, num_experts)
        store_i64(taken + 8 * e, 1)
        w = load_f32(probabilities + 4 * e)
        store_i64(experts + 8 * r, e)
        store_f32(weights + 4 * r, w)
        total += w
    if gating != _SOFTMAX and gating != _SIGMOID:
        largest, total = load_f32(weights), np.float32(0)  # the best one's, but for a bias
        for r in range(used):
            largest = max(largest, load_f32(weights + 4 * r))
        for r in range(used):
            w = exp_f32(load_f32(weights + 4 * r) - largest)
            store_f32(weights + 4 * r, w)
            total += w
        for r in range(used):
            store_f32(weights + 4 * r, load_f32(weights + 4 * r) / total)
        total = np.float32(1)
    scale, expert_scale = load_f32(op + ROUTE.scale), load_i64(op + ROUTE.expert_scale)
    if load_i64(op + ROUTE.normalize) != 0:
        scale = scale / max(total, _SMALLEST)
    for r in range(used):
        w = load_f32(weights + 4 * r) * scale
        if expert_scale != 0:
            w *= load_f32(expert_scale + 4 * load_i64(experts + 8 * r))
        store_f32(weights + 4 * r, w)


@inline
def _sort(op, step, tokens, counts):
    """The pairs by expert (a counting sort, so in the order of tokens): slots, active, cells."""
    num_experts, used = load_i64(op + ROUTE.num_experts), load_i64(op + ROUTE.used)
    size = LANES if load_i64(op + ROUTE.lanes) != 0 else 1
    experts, slots = load_i64(op + ROUTE.out_experts), load_i64(op + ROUTE.slots)
    active, cells = load_i64(op + ROUTE.active), load_i64(op + ROUTE.cells)
    valid = load_i64(step + STEP.valid)
    for e in range(num_experts):
        store_i64(counts + 8 * e, 0)
    for t in range(tokens):
        if size > 1 and t % size >= load_i64(valid + 8 * (t // size)):
            continue  # an empty lane
        for p in range(t * used, (t + 1) * used):
            at = counts + 8 * load_i64(experts + 8 * p)
            store_i64(at, load_i64(at) + 1)
    first, number = 0, 0
    for e in range(num_experts):
        count = (load_i64(counts + 8 * e) + size - 1) // size
        store_i64(counts + 8 * e, first * size)
        if count > 0:
            at = active + 24 * number
            store_i64(at, e)
            store_i64(at + 8, first)
            store_i64(at + 16, count)
            first += count
            number += 1
    store_i64(cells, number)
    store_i64(cells + 8, first * size)
    for t in range(tokens):
        if size > 1 and t % size >= load_i64(valid + 8 * (t // size)):
            continue
        for p in range(t * used, (t + 1) * used):
            at = counts + 8 * load_i64(experts + 8 * p)
            slot = load_i64(at)
            store_i64(at, slot + 1)
            store_i64(slots + 8 * slot, p)
    for n in range(number if size > 1 else 0):
        at = active + 24 * n
        end = (load_i64(at + 8) + load_i64(at + 16)) * size
        for slot in range(load_i64(counts + 8 * load_i64(at)), end):
            store_i64(slots + 8 * slot, load_i64(slots + 8 * slot - 8))


@kernel
def route(op, step, thread):
    """A token a piece of work; who does the last one sorts."""
    tokens = load_i64(load_i64(op + ROUTE.count_at))
    logits, stride = load_i64(op + ROUTE.logits), load_i64(op + ROUTE.stride)
    counter, lanes = load_i64(op + ROUTE.counter), load_i64(op + ROUTE.lanes)
    scratch = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        t = atomic_add(counter, 1)
        if t >= tokens:
            return 0
        if lanes != 0:
            at = logits + (t // LANES * stride * LANES + t % LANES) * 4
            _choose(op, at, LANES * 4, t, scratch)
        else:
            _choose(op, logits + t * stride, 4, t, scratch)
        if atomic_add(counter + 8, 1) == tokens - 1:
            _sort(op, step, tokens, scratch)
