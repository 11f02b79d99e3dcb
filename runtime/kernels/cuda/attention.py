"""Decode attention: queries of one position against pages, split so that all of a GPU has work.

Up to eight query heads that share a KV head are one side of a tensor core's product, twice: rows
0-7 are their float16 parts, rows 8-15 what those lose, so that nothing but K and V themselves is
rounded. A warp takes 16 positions at a time (the online softmax: Milakov & Gimelshein, 2018, arXiv
1805.02867) straight from memory into registers: which columns of K meet in a product, and where in
one a column of V goes, is free, so each thread reads 16 bytes in a row. Where V is wide, several
warps work on the same positions, with columns of V each.
"""

from typing import Any

from ....quant.cuda.matrices import mma_f16
from ....quant.cuda.memory import (
    load_f32,
    load_f32x4,
    load_i32,
    load_i64,
    load_shared_i32x4,
    shared,
    store_shared_f32x2,
    store_shared_f32x4,
    store_shared_i32x4,
)
from ....quant.cuda.simt import (
    Kernel,
    and32,
    barrier,
    block_x,
    block_y,
    block_z,
    exp2,
    f32_of,
    i32,
    i64,
    inline,
    kernel,
    let_next_start,
    make_f32x2,
    make_f32x4,
    make_i32x2,
    make_i32x4,
    maximum,
    permute_bytes,
    put,
    put_part,
    shuffle_xor_f32,
    sync_warp,
    take,
    thread,
    wait_for_inputs,
    zero,
)
from .attention_ending import make_ending, part_of, put_empty
from .attention_float import make_exact
from .kv_types import KV_TYPES, KvType, section_bytes
from .launches.attention import CHUNK, QUERIES, slices_of
from .scores import LOW, bend, halves, seen_by

_two = take("i32x4", 2)
_zero4 = zero("f32x4")


@inline
def _pair_up(v, w):
    """The float16 pairs of two rows' words: their low halves, their high ones."""
    return permute_bytes(v, w, i32(0x5410)), permute_bytes(v, w, i32(0x7632))


def _make(kv_type: KvType, key_room: int, value_room: int, groups: int) -> Kernel:
    """For heads of so many columns, filled up to 32s, and groups of warps with own positions."""
    eight, four, values_at = kv_type.eight, kv_type.four, section_bytes(kv_type, key_room)
    parts = key_room // 32
    slices = slices_of(value_room)
    width = -(-value_room // (32 * slices)) * 32
    threads, columns = 32 * slices * groups, slices * width
    wide, narrow = width // 64, width % 64 // 32  # V's columns by 64 and by 32
    uneven = columns > value_room
    tiles, at_once = width // 8, min(parts, 4 if parts <= 8 else 2)
    k_kind, v_kind, o_kind = f"i32x{8 * at_once}", f"i32x{width // 4}", f"f32x{4 * tiles}"
    zero_k, put_k, take_k = zero(k_kind), put_part(k_kind, 4), take(k_kind, 4)
    zero_v, put_v4, put_v2, put_v1 = (
        zero(v_kind), put_part(v_kind, 4), put_part(v_kind, 2), put(v_kind)
    )  # fmt: skip
    zero_o, put_o, take_o, put_o1 = zero(o_kind), put_part(o_kind, 4), take(o_kind, 4), put(o_kind)
    queries = shared(parts * 1024)
    outputs, states, put_parts, put_whole = make_ending(groups, columns, threads)

    @inline
    def load_queries(q, key_dim, heads):
        """All queries as fragments: [part][step of 16][thread][words]."""
        for item in range(thread(), parts * 32, threads):
            part, lane = item // 32, item % 32
            head, column = lane // 4, part * 32 + lane % 4 * 8
            a, b = _zero4(), _zero4()
            if head < heads and column < key_dim:
                at = q + (head * key_dim + column) * 4
                a, b = load_f32x4(at), load_f32x4(at + 16)
            to = queries() + part * 1024 + lane * 16
            high, low = halves(a[0], a[1])
            high2, low2 = halves(a[2], a[3])
            store_shared_i32x4(to, make_i32x4(high, low, high2, low2))
            high, low = halves(b[0], b[1])
            high2, low2 = halves(b[2], b[3])
            store_shared_i32x4(to + 512, make_i32x4(high, low, high2, low2))

    @inline
    def load_keys(keys, slot, begin):
        """A thread's part of `at_once` parts of 16 positions' K, from a slot and a part on."""
        lane, k = thread() % 32, zero_k()
        slot, column = slot + lane // 4, begin * 32 + lane % 4 * 8
        for j in range(at_once):
            if begin + j < parts:
                i = column + 32 * j
                k = put_k(k, 2 * j, eight(keys, slot, key_room, i, True))
                k = put_k(k, 2 * j + 1, eight(keys, slot + 8, key_room, i, True))
        return k

    @inline
    def multiply_keys(k, begin, first, second):
        """Adds to the scores of the first eight of them, and of the others."""
        lane = thread() % 32
        for j in range(at_once):
            if begin + j < parts:
                for s in range(2):
                    a = load_shared_i32x4(queries() + (2 * (begin + j) + s) * 512 + lane * 16)
                    first = mma_f16(a, _two(take_k(k, 2 * j), s), first)
                    second = mma_f16(a, _two(take_k(k, 2 * j + 1), s), second)
        return first, second

    @inline
    def load_values(values, slot, column):
        """Rows 2t, 2t + 1, 8 + 2t, 9 + 2t of 16 positions' V: a thread's part of 64 columns."""
        lane, v = thread() % 32, zero_v()
        slot += lane % 4 * 2
        for j in range(wide):
            begin = column + 64 * j + lane // 4 * 8
            if uneven and begin >= value_room:
                begin = 0
            for r in range(4):
                row = slot + (r & 1) + (r & 2) * 4
                v = put_v4(v, 4 * j + r, eight(values, row, value_room, begin, False))
        if narrow:
            begin = column + 64 * wide + lane // 4 * 4
            if uneven and begin >= value_room:
                begin = 0
            for r in range(4):
                row = slot + (r & 1) + (r & 2) * 4
                v = put_v2(v, 8 * wide + r, four(values, row, value_room, begin, False))
        return v

    @inline
    def clear_unseen(v, low, high):
        """0 for V of positions outside of low..high - 1, of 16: what lies there may be anything."""
        for r in range(4):
            row = thread() % 4 * 2 + (r & 1) + (r & 2) * 4
            mask = i32(-1 if row >= low and row < high else 0)
            for j in range(wide):
                for w in range(4):
                    v = put_v1(v, 16 * j + 4 * r + w, and32(v[16 * j + 4 * r + w], mask))
            if narrow:
                for w in range(2):
                    v = put_v1(v, 16 * wide + 2 * r + w, and32(v[16 * wide + 2 * r + w], mask))
        return v

    @inline
    def add_values(o, v, a):
        for j in range(wide):
            for w in range(4):
                x, y = _pair_up(v[16 * j + w], v[16 * j + 4 + w])
                z, u = _pair_up(v[16 * j + 8 + w], v[16 * j + 12 + w])
                i = 8 * j + 2 * w
                o = put_o(o, i, mma_f16(a, make_i32x2(x, z), take_o(o, i)))
                o = put_o(o, i + 1, mma_f16(a, make_i32x2(y, u), take_o(o, i + 1)))
        if narrow:
            for w in range(2):
                x, y = _pair_up(v[16 * wide + w], v[16 * wide + 2 + w])
                z, u = _pair_up(v[16 * wide + 4 + w], v[16 * wide + 6 + w])
                i = 8 * wide + 2 * w
                o = put_o(o, i, mma_f16(a, make_i32x2(x, z), take_o(o, i)))
                o = put_o(o, i + 1, mma_f16(a, make_i32x2(y, u), take_o(o, i + 1)))
        return o

    @inline
    def store_outputs(o, m, total, group, column):
        """A warp's results to shared memory."""
        lane = thread() % 32
        head, t = group * QUERIES + lane // 4, lane % 4
        if t == 0 and column == 0:
            store_shared_f32x2(states() + head * 8, make_f32x2(m, total))
        to = outputs() + (head * columns + column) * 4
        for j in range(wide):
            for c in range(2):  # a fragment's columns 2t, 2t + 1 lie eight apart
                for part in range(2):
                    i = 32 * j + 16 * part + c
                    v = make_f32x4(
                        o[i] + o[i + 2],
                        o[i + 4] + o[i + 6],
                        o[i + 8] + o[i + 10],
                        o[i + 12] + o[i + 14],
                    )
                    store_shared_f32x4(to + (64 * j + 16 * t + 8 * c + 4 * part) * 4, v)
        if narrow:
            for c in range(2):
                i = 32 * wide + c
                v = make_f32x4(
                    o[i] + o[i + 2],
                    o[i + 4] + o[i + 6],
                    o[i + 8] + o[i + 10],
                    o[i + 12] + o[i + 14],
                )
                store_shared_f32x4(to + (64 * wide + 8 * t + 4 * c) * 4, v)

    @kernel(block=threads, min_blocks=1 if threads > 128 else 2)
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
        lane, warp = thread() % 32, thread() // 32
        warps = warp // slices  # the group of warps that it is in
        column = (warp - warps * slices) * width
        row = token * kv_heads * group + first_head
        wait_for_inputs()
        position, first, last = seen_by(positions, ends, token, window, ahead)
        table, keys = load_i64(tables + 8 * token), kv + kv_head * head_bytes
        begin, end = part_of(first // CHUNK, last // CHUNK + 1, split, splits)
        if begin < end:
            # While some positions are worked on, K and V of the next ones are on their way.
            chunk, number, here, there = begin + warps, 0, 0, 0
            k, v, slot = zero_k(), zero_v(), (chunk & 1) * CHUNK
            if chunk < end:
                here = keys + i64(load_i32(table + (chunk >> 1) * 4)) * page_bytes
                k = load_keys(here, slot, 0)
                v = load_values(here + values_at, slot, column)
                if chunk + groups < end:
                    number = i64(load_i32(table + (chunk + groups >> 1) * 4))
            load_queries(q + token * stride + first_head * key_dim * 4, key_dim, heads)
            slope = f32_of(0)
            if slopes != 0 and lane // 4 < heads:
                slope = load_f32(slopes + 4 * (first_head + lane // 4))
            barrier()
            o, m, total = zero_o(), LOW, f32_of(0)
            while chunk < end:
                sync_warp()  # keeps the queries in shared memory: there is no room in registers
                s, r = multiply_keys(k, 0, _zero4(), _zero4())
                for part in range(at_once, parts, at_once):
                    s, r = multiply_keys(load_keys(here, slot, part), part, s, r)
                following = chunk + groups
                slot = (following & 1) * CHUNK
                if following < end:
                    there = keys + number * page_bytes
                    k = load_keys(there, slot, 0)
                at = lane % 4 * 2  # the place of the thread's first score
                far = f32_of(at + chunk * CHUNK - position)
                w = bend(s[0] + s[2], cap, slope, far)
                x = bend(s[1] + s[3], cap, slope, far + f32_of(1))
                y = bend(r[0] + r[2], cap, slope, far + f32_of(8))
                z = bend(r[1] + r[3], cap, slope, far + f32_of(9))
                low, high = first - chunk * CHUNK, last + 1 - chunk * CHUNK
                if low > 0 or high < CHUNK:
                    w = w if at >= low and at < high else LOW
                    x = x if at + 1 >= low and at + 1 < high else LOW
                    y = y if at + 8 >= low and at + 8 < high else LOW
                    z = z if at + 9 >= low and at + 9 < high else LOW
                    v = clear_unseen(v, low, high)
                most = maximum(maximum(w, x), maximum(y, z))
                most = maximum(most, shuffle_xor_f32(most, 1))
                most = maximum(maximum(most, shuffle_xor_f32(most, 2)), m)
                factor, m = exp2(m - most), most
                w, x, y, z = exp2(w - m), exp2(x - m), exp2(y - m), exp2(z - m)
                total = total * factor + ((w + x) + (y + z))
                for i in range(4 * tiles):
                    o = put_o1(o, i, o[i] * factor)
                first_high, first_low = halves(w, x)
                second_high, second_low = halves(y, z)
                o = add_values(o, v, make_i32x4(first_high, first_low, second_high, second_low))
                chunk, here = following, there
                if chunk < end:
                    v = load_values(here + values_at, slot, column)
                    if chunk + groups < end:
                        number = i64(load_i32(table + (chunk + groups >> 1) * 4))
            total += shuffle_xor_f32(total, 1)
            total += shuffle_xor_f32(total, 2)
            store_outputs(o, m, total, warps, column)
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


def __getattr__(name: str) -> Any:
    """A kernel decode_TYPE_KEYS_VALUES_GROUPS, made when it is asked for."""
    if not name.startswith("decode_"):
        raise AttributeError(name)
    kv_type, *numbers = name.removeprefix("decode_").rsplit("_", 3)
    sizes = [int(n) for n in numbers]
    made = make_exact(*sizes) if kv_type == "f32" else _make(KV_TYPES[kv_type], *sizes)
    globals()[name] = made
    return made
