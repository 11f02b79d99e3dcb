"""Decode attention of a float32 cache: exact rather than fast. attention.py has the usual one.

Warps take positions of a split in turn, their threads columns of K and V; head after head.
"""

from ....quant.cuda.memory import (
    load_f32,
    load_f32x4,
    load_i32,
    load_i64,
    store_shared_f32x2,
    store_shared_f32x4,
)
from ....quant.cuda.simt import (
    Kernel,
    barrier,
    block_x,
    block_y,
    block_z,
    exp2,
    f32_of,
    i64,
    inline,
    kernel,
    let_next_start,
    make_f32x2,
    maximum,
    put,
    put_part,
    take,
    thread,
    wait_for_inputs,
    warp_sum,
    zero,
)
from ..records import PAGE
from .attention_ending import make_ending, part_of, put_empty
from .launches.attention import QUERIES
from .scores import LOW, bend, seen_by

_zero4 = zero("f32x4")


def make_exact(key_room: int, value_room: int, warps: int) -> Kernel:
    """For heads of so many columns, and so many warps."""
    threads, key_parts, value_parts = 32 * warps, -(-key_room // 128), -(-value_room // 128)
    o_kind, q_kind = f"f32x{4 * value_parts}", f"f32x{4 * key_parts}"
    zero_o, take_o, put_o = zero(o_kind), take(o_kind, 4), put(o_kind)
    zero_q, put_q = zero(q_kind), put_part(q_kind, 4)
    outputs, states, put_parts, put_whole = make_ending(warps, value_room, threads)

    @inline
    def load_query(q, key_dim):
        """A thread's columns."""
        a = zero_q()
        for j in range(key_parts):
            column = 128 * j + thread() % 32 * 4
            if column < key_dim:
                a = put_q(a, j, load_f32x4(q + 4 * column))
        return a

    @inline
    def score(keys, a, key_dim):
        total = f32_of(0)
        for j in range(key_parts):
            column = 128 * j + thread() % 32 * 4
            if column < key_dim:
                k = load_f32x4(keys + 4 * column)
                for c in range(4):
                    total += a[4 * j + c] * k[c]
        return warp_sum(total)

    @inline
    def add_values(o, values, factor, weight):
        """o * factor + weight * V."""
        for j in range(value_parts):
            column = 128 * j + thread() % 32 * 4
            v = load_f32x4(values + 4 * column) if column < value_room else _zero4()
            for c in range(4):
                o = put_o(o, 4 * j + c, o[4 * j + c] * factor + weight * v[c])
        return o

    @inline
    def store_outputs(o, m, total, head):
        """A warp's results to shared memory."""
        lane, row = thread() % 32, thread() // 32 * QUERIES + head
        if lane == 0:
            store_shared_f32x2(states() + row * 8, make_f32x2(m, total))
        for j in range(value_parts):
            column = 128 * j + lane * 4
            if column < value_room:
                store_shared_f32x4(outputs() + (row * value_room + column) * 4, take_o(o, j))

    @kernel(block=threads)
    def decode(
        q, stride, kv_heads, group, key_dim, value_dim, kv, page_bytes, head_bytes, positions,
        ends, tables, window, ahead, cap: float, slopes, first_token, pieces,
        sinks, splits, out, attended, act_q, act_scales, act_half, act_plain, act_width,
    ):  # fmt: skip
        let_next_start()
        token, split, kv_head = first_token + block_z(), block_y(), block_x() // pieces
        piece = block_x() - kv_head * pieces
        heads, first_head = group - piece * QUERIES, kv_head * group + piece * QUERIES
        if heads > QUERIES:
            heads = QUERIES
        row = token * kv_heads * group + first_head
        wait_for_inputs()
        position, first, last = seen_by(positions, ends, token, window, ahead)
        begin, end = part_of(first, last + 1, split, splits)
        if begin < end:
            table, pages = load_i64(tables + 8 * token), kv + kv_head * head_bytes
            for head in range(heads):
                a = load_query(q + token * stride + (first_head + head) * key_dim * 4, key_dim)
                slope = f32_of(0)
                if slopes != 0:
                    slope = load_f32(slopes + 4 * (first_head + head))
                o, m, total = zero_o(), LOW, f32_of(0)
                for at in range(begin + thread() // 32, end, warps):
                    keys = pages + i64(load_i32(table + at // PAGE * 4)) * page_bytes
                    values = keys + (PAGE * key_room + at % PAGE * value_room) * 4
                    s = score(keys + at % PAGE * key_room * 4, a, key_dim)
                    s = bend(s, cap, slope, f32_of(at - position))
                    most = maximum(m, s)
                    factor, weight, m = exp2(m - most), exp2(s - most), most
                    total = total * factor + weight
                    o = add_values(o, values, factor, weight)
                store_outputs(o, m, total, head)
            barrier()
            if out != 0:
                put_parts(out, row, heads, value_dim, split, splits)
            else:
                put_whole(
                    token, first_head, heads, value_dim, kv_heads * group * value_dim, sinks,
                    attended, act_q, act_scales, act_half, act_plain, act_width,
                )  # fmt: skip
        elif out != 0 and thread() < heads:
            put_empty(out, row + thread(), split, splits, value_dim)

    return decode
