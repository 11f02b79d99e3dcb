"""Decode attention: one query position of a sequence against its pages, a KV head a piece of work.

Long contexts are split into pieces of SPLIT positions, whose partial results (maximum, sum,
weighted values) the combine op merges as the online softmax does (Milakov & Gimelshein, 2018, arXiv
1805.02867). What is added in which order depends on a sequence's length alone: not on the thread
count, and not on who else is in the step.
"""

from typing import Any

import numpy as np

from ....quant.cpu.simd import (
    abs_f32x16,
    exp_f32x16,
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
    store_f32,
    store_f32x16,
    sum_f32x16,
    zero_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ..records import ATTENTION, MAX_GROUP, PAGE, SPLIT, STEP
from .kv_type import QUERY_STRIDE, WEIGHT_STRIDE, KvType
from .kv_types import KV_TYPES

_LOW = np.float32(-1e30)
_ramp = literal("f32", [float(i) for i in range(16)])
assert 4 * SPLIT < WEIGHT_STRIDE


@inline
def _cap_scores(v, cap):
    """cap * tanh(v / cap) of 16 scores."""
    two, one = fill_f32x16(np.float32(2)), fill_f32x16(np.float32(1))
    e = exp_f32x16(v * fill_f32x16(np.float32(2) / cap))
    return (one - two / (e + one)) * fill_f32x16(cap)


@inline
def _slope_scores(scores, count, slope, distance):
    """ALiBi (Press et al., 2021, arXiv 2108.12409): less by slope times the distance.

    `distance`: of the first score's position from the query's.
    """
    for i in range(0, count, 16):
        d = abs_f32x16(_ramp() + fill_f32x16(np.float32(distance + i)))
        s = load_f32x16(scores + 4 * i) - d * fill_f32x16(slope)
        store_f32x16(scores + 4 * i, s)


@inline
def _softmax(scores, count, first, last, out):
    """Scores of whole pages -> weights, in place; slots outside first..last-1 get 0.

    Their maximum and the sum of the weights go to `out`.
    """
    for i in range(first):
        store_f32(scores + 4 * i, _LOW)
    for i in range(last, count):
        store_f32(scores + 4 * i, _LOW)
    top = fill_f32x16(_LOW)
    for i in range(0, count, 16):
        top = max_f32x16(top, load_f32x16(scores + 4 * i))
    largest = max_f32x16_all(top)
    top, total = fill_f32x16(largest), zero_f32x16()
    for i in range(0, count, 16):
        e = exp_f32x16(load_f32x16(scores + 4 * i) - top)
        store_f32x16(scores + 4 * i, e)
        total = total + e
    store_f32(out, largest)
    store_f32(out + 4, sum_f32x16(total))


@inline
def seen_by(op, step, t):
    """(first, last) position that a token sees."""
    position = load_i64(load_i64(step + STEP.positions) + 8 * t)
    last = load_i64(load_i64(step + STEP.ends) + 8 * t)
    window, ahead = load_i64(op + ATTENTION.window), load_i64(op + ATTENTION.ahead)
    first = max(0, position - window + 1) if window > 0 else 0
    return first, min(last, position + ahead) if ahead > 0 else last


def _make(group: int, kv: KvType) -> Any:
    """Attention for `group` query heads that share a KV head."""
    score, accumulate = kv.decode(group)
    values_of = kv.values

    @kernel
    def attention_rows(op, step, thread):
        tokens = load_i64(load_i64(op + ATTENTION.count_at))
        kv_heads = load_i64(op + ATTENTION.num_kv_heads)
        heads_each = load_i64(op + ATTENTION.group)  # of one KV head, a multiple of `group`
        pieces = heads_each // group
        key_dim, value_dim = load_i64(op + ATTENTION.key_dim), load_i64(op + ATTENTION.value_dim)
        key_room, value_room = (key_dim + 31) // 32 * 32, (value_dim + 31) // 32 * 32
        cap, slopes = load_f32(op + ATTENTION.softcap), load_i64(op + ATTENTION.slopes)
        stride, page_bytes = load_i64(op + ATTENTION.stride), load_i64(op + ATTENTION.page_bytes)
        out_stride = (value_room + 16) * 4
        split_stride = load_i64(op + ATTENTION.split_stride)
        queries = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        weights = queries + group * QUERY_STRIDE
        spare = weights + group * WEIGHT_STRIDE
        longest = 0
        for t in range(tokens):
            _, last = seen_by(op, step, t)
            longest = max(longest, last)
        used = longest // SPLIT + 1
        # A split of a token is `each` pieces of work. Item numbers only grow, so a thread finds its
        # next one by going on from its last, past the splits that shorter sequences don't have.
        # Split by split: the full ones come first.
        each = kv_heads * pieces
        found, split, t, low, high = -1, 0, -1, 0, 0
        while True:
            item = atomic_add(load_i64(op + ATTENTION.counter), 1)
            while found < item // each:
                t += 1
                if t >= tokens:
                    t = 0
                    split += 1
                    if split == used:
                        return 0
                first, last = seen_by(op, step, t)
                low = max(first, split * SPLIT)
                high = min(last + 1, (split + 1) * SPLIT)
                if low < high:
                    found += 1
            rest = item % each
            head, piece = rest // pieces, rest % pieces
            first_head = head * heads_each + piece * group
            q = load_i64(op + ATTENTION.q) + t * stride + first_head * key_dim * 4
            # Partial results: [split][token][head][m, l, values].
            out = load_i64(op + ATTENTION.out) + split * split_stride
            out += (t * kv_heads * heads_each + first_head) * out_stride
            for g in range(group):
                for i in range(0, key_dim, 16):
                    store_f32x16(queries + g * QUERY_STRIDE + 4 * i, load_f32x16(q + 4 * i))
                for i in range(key_dim, key_room, 16):
                    store_f32x16(queries + g * QUERY_STRIDE + 4 * i, zero_f32x16())
                for i in range(0, value_room, 16):
                    store_f32x16(out + g * out_stride + 64 + 4 * i, zero_f32x16())
                q += key_dim * 4
            tables = load_i64(load_i64(step + STEP.tables) + 8 * t)
            pages = load_i64(op + ATTENTION.kv) + head * load_i64(op + ATTENTION.head_bytes)
            begin, end = low // PAGE, (high + PAGE - 1) // PAGE
            for page in range(begin, end):
                at = pages + load_i32(tables + 4 * page) * page_bytes
                soon = pages + load_i32(tables + 4 * min(page + 1, end - 1)) * page_bytes
                score(at, queries, key_room, weights + (page - begin) * PAGE * 4, soon)
            first, last, count = low - begin * PAGE, high - begin * PAGE, (end - begin) * PAGE
            for g in range(group):
                w = weights + g * WEIGHT_STRIDE
                if cap != np.float32(0):
                    for i in range(0, count, 16):
                        store_f32x16(w + 4 * i, _cap_scores(load_f32x16(w + 4 * i), cap))
                if slopes != 0:
                    position = load_i64(load_i64(step + STEP.positions) + 8 * t)
                    slope = load_f32(slopes + 4 * (first_head + g))
                    _slope_scores(w, count, slope, begin * PAGE - position)
                _softmax(w, count, first, last, out + g * out_stride)
            for page in range(begin, end):
                at = values_of(pages + load_i32(tables + 4 * page) * page_bytes, key_room)
                w = weights + (page - begin) * PAGE * 4
                a, b = max(0, low - page * PAGE), min(PAGE, high - page * PAGE)
                for i in range(0, value_room, 32):
                    accumulate(at, value_room, i, a, b, w, out + 64 + 4 * i, out_stride, spare)

    return attention_rows


for _name, _type in KV_TYPES.items():
    for _group in range(1, MAX_GROUP + 1):
        globals()[f"attention_rows_{_group}_{_name}"] = _make(_group, _type)
