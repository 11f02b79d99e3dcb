"""Attention of chunks: up to 64 tokens of a sequence, one query head a block, 16 tokens a warp.

Flash attention (Dao, 2023, arXiv 2307.08691) on tensor cores, queries and weights as float16, sums
as float32. K and V of some positions after the other come into shared memory while those before
them are worked on; rows are 16 bytes further apart there than they are long, so that eight rows lie
in different banks. A piece: int32 first token, how many (0: nothing to do), position, unused.
"""

from typing import Any

from ....quant.cuda.matrices import (
    commit_copies,
    copy_async,
    load_matrix,
    load_matrix_transposed,
    mma_f16,
    wait_copies,
)
from ....quant.cuda.memory import (
    load_f32,
    load_f32x2,
    load_i32,
    load_i64,
    shared,
    store_f32x2,
    store_shared_i32x4,
)
from ....quant.cuda.simt import (
    Kernel,
    barrier,
    block_x,
    block_y,
    exp2,
    f32_of,
    grid_x,
    i32,
    i64,
    inline,
    kernel,
    let_next_start,
    make_f32x2,
    make_i32x4,
    maximum,
    pack_half2,
    put,
    put_part,
    reciprocal,
    shuffle_xor_f32,
    take,
    thread,
    wait_for_inputs,
    zero,
)
from ..records import PAGE
from .kv_types import KV_TYPES, section_bytes
from .launches.attention import stage_of
from .scores import LOG2E, LOW, bend, seen_by

_THREADS = 128
_two = take("i32x4", 2)
_all_copied = wait_copies(0)


@inline
def _as_floats(positions, ends, token, window, ahead):
    """What `seen_by` gives as float32, which takes fewer registers and holds 2^24 positions."""
    position, first, last = seen_by(positions, ends, token, window, ahead)
    return f32_of(position), f32_of(first), f32_of(last)


@inline
def _over_row(v):
    """The largest of the values of the four threads that share a row."""
    v = maximum(v, shuffle_xor_f32(v, 1))
    return maximum(v, shuffle_xor_f32(v, 2))


def _make(name: str, key_room: int, value_room: int) -> Kernel:
    """For a type of cache, and heads of so many columns, filled up to 32s."""
    kv_type, in_halves = KV_TYPES[name], name == "f16"
    eight, section = kv_type.eight, section_bytes(kv_type, key_room)
    stage = stage_of(key_room, value_room)  # positions at once
    key_pitch, value_pitch = 2 * key_room + 16, 2 * value_room + 16
    values_at, stage_bytes = stage * key_pitch, stage * (key_pitch + value_pitch)
    steps, pairs, wide = key_room // 16, stage // 16, value_room // 16
    q_kind, s_kind, o_kind = f"i32x{4 * steps}", f"f32x{8 * pairs}", f"f32x{8 * wide}"
    zero_q, put_q, take_q = zero(q_kind), put_part(q_kind, 4), take(q_kind, 4)
    zero_s, put_s, take_s, put_s1 = zero(s_kind), put_part(s_kind, 4), take(s_kind, 4), put(s_kind)
    zero_o, put_o, take_o, put_o1 = zero(o_kind), put_part(o_kind, 4), take(o_kind, 4), put(o_kind)
    buffers = shared(2 * stage_bytes)

    @inline
    def widen_rows(source, slot, to, room, paired):
        """Rows of `room` values from a slot on, as float16, to shared memory."""
        each, count = room // 8, stage * room // 8
        for i in range(thread(), count, _THREADS):
            row = i // each
            v = eight(source, slot + row, room, (i - row * each) * 8, paired)
            store_shared_i32x4(to + 16 * (i + row), v)

    @inline
    def copy_rows(source, to, room):
        """The same of rows that are float16, 16 bytes a time."""
        each, count = room // 8, stage * room // 8
        first = thread() + thread() // each
        for i in range(0, count, _THREADS):
            if _THREADS % each == 0 and count % _THREADS == 0:  # constant distances
                copy_async(to + 16 * first + 16 * (i + i // each), source + 16 * (i + thread()))
            elif i + thread() < count:
                row = (i + thread()) // each
                copy_async(to + 16 * (i + thread() + row), source + 16 * (i + thread()))

    @inline
    def fetch(page, slot, to):
        """K and V of the positions from `slot` of a page on."""
        if in_halves:
            copy_rows(page + slot * key_room * 2, to, key_room)
            copy_rows(page + section + slot * value_room * 2, to + values_at, value_room)
        else:
            widen_rows(page, slot, to, key_room, True)
            widen_rows(page + section, slot, to + values_at, value_room, False)

    @inline
    def clear_values(values, first):
        """0 for V from a position on: what lies there may be anything."""
        for i in range(thread(), stage * (value_room // 8), _THREADS):
            row = i // (value_room // 8)
            if row >= first:
                zeros = make_i32x4(i32(0), i32(0), i32(0), i32(0))
                store_shared_i32x4(values + 16 * (i + row), zeros)

    @inline
    def load_queries(first, second, key_dim):
        """Rows g and g + 8 as fragments."""
        a, column = zero_q(), thread() % 4 * 2
        for i in range(steps):
            if 16 * i < key_dim:
                v, w = (
                    load_f32x2(first + (16 * i + column) * 4),
                    load_f32x2(second + (16 * i + column) * 4),
                )
                x, y = (
                    load_f32x2(first + (16 * i + 8 + column) * 4),
                    load_f32x2(second + (16 * i + 8 + column) * 4),
                )
                a = put_q(
                    a,
                    i,
                    make_i32x4(
                        pack_half2(v[0], v[1]),
                        pack_half2(w[0], w[1]),
                        pack_half2(x[0], x[1]),
                        pack_half2(y[0], y[1]),
                    ),
                )
        return a

    @inline
    def multiply_keys(keys, a):
        """The scores of 16 queries: [eight positions][row g or g + 8][2t, 2t + 1]."""
        lane, s = thread() % 32, zero_s()
        keys += (lane % 8 + lane // 16 * 8) * key_pitch + lane // 8 % 2 * 16
        for i in range(steps):
            for n in range(pairs):
                b = load_matrix(keys + n * 16 * key_pitch + i * 32)
                s = put_s(s, 2 * n, mma_f16(take_q(a, i), _two(b, 0), take_s(s, 2 * n)))
                s = put_s(s, 2 * n + 1, mma_f16(take_q(a, i), _two(b, 1), take_s(s, 2 * n + 1)))
        return s

    @inline
    def add_values(o, values, s):
        """o += weights * V."""
        lane = thread() % 32
        values += (lane % 8 + lane // 8 % 2 * 8) * value_pitch + lane // 16 * 16
        for n in range(pairs):
            k = 8 * n
            a = make_i32x4(
                pack_half2(s[k], s[k + 1]),
                pack_half2(s[k + 2], s[k + 3]),
                pack_half2(s[k + 4], s[k + 5]),
                pack_half2(s[k + 6], s[k + 7]),
            )
            for i in range(wide):
                b = load_matrix_transposed(values + n * 16 * value_pitch + i * 32)
                o = put_o(o, 2 * i, mma_f16(a, _two(b, 0), take_o(o, 2 * i)))
                o = put_o(o, 2 * i + 1, mma_f16(a, _two(b, 1), take_o(o, 2 * i + 1)))
        return o

    @kernel(block=_THREADS)
    def tiles(
        q, stride, kv_heads, group, key_dim, value_dim, kv, page_bytes, head_bytes, positions,
        ends, tables, window, ahead, cap: float, slopes, pieces, sinks, attended,
    ):  # fmt: skip
        let_next_start()
        # The last pieces see most: they begin first.
        piece = pieces + (grid_x() - 1 - block_x()) * 16
        head, heads, lane, warp = block_y(), kv_heads * group, thread() % 32, thread() // 32
        keys = kv + head // group * head_bytes
        row = 16 * warp + lane // 4
        wait_for_inputs()
        token, count = i64(load_i32(piece)), i64(load_i32(piece + 4))
        if count > 0:
            table = load_i64(tables + 8 * token)
            # Of the block: first, last. Of the warp: low..high by any row, inner_low..inner_high
            # by all. Of the thread: lows and highs of its two rows.
            _, first, _ = seen_by(positions, ends, token, window, ahead)
            _, _, last = seen_by(positions, ends, token + count - 1, window, ahead)
            end_row = count - 1
            top_row = 16 * warp if 16 * warp < end_row else end_row
            bottom_row = 16 * warp + 15 if 16 * warp + 15 < end_row else end_row
            _, low, inner_high = seen_by(positions, ends, token + top_row, window, ahead)
            _, inner_low, high = seen_by(positions, ends, token + bottom_row, window, ahead)
            token0 = token + (row if row < end_row else end_row)
            token1 = token + (row + 8 if row + 8 < end_row else end_row)
            position0, low0, high0 = _as_floats(positions, ends, token0, window, ahead)
            position1, low1, high1 = _as_floats(positions, ends, token1, window, ahead)
            slope = f32_of(0)
            if slopes != 0:
                slope = load_f32(slopes + 4 * head)
            begin, end = first // stage, last // stage + 1
            number = i64(load_i32(table + begin * stage // PAGE * 4))
            fetch(keys + number * page_bytes, begin * stage % PAGE, buffers())
            commit_copies()
            if begin + 1 < end:
                number = i64(load_i32(table + (begin + 1) * stage // PAGE * 4))
            at = q + head * key_dim * 4
            a = load_queries(at + token0 * stride, at + token1 * stride, key_dim)
            o, m0, m1, total0, total1 = zero_o(), LOW, LOW, f32_of(0), f32_of(0)
            for s in range(begin, end):
                _all_copied()
                barrier()
                here = buffers() + (s - begin & 1) * stage_bytes
                there = buffers() + (s - begin + 1 & 1) * stage_bytes
                if s + 1 < end:
                    fetch(keys + number * page_bytes, (s + 1) * stage % PAGE, there)
                    if s + 2 < end:
                        number = i64(load_i32(table + (s + 2) * stage // PAGE * 4))
                commit_copies()
                start = s * stage
                if start + stage > last + 1:
                    clear_values(here + values_at, last + 1 - start)
                    barrier()
                if 16 * warp < count and start <= high and start + stage > low:
                    x = multiply_keys(here, a)
                    column = f32_of(start + lane % 4 * 2)
                    if cap != f32_of(0) or slopes != 0:
                        for j in range(2 * pairs):
                            for k in range(2):
                                i, place = 4 * j + k, column + f32_of(8 * j + k)
                                x = put_s1(x, i, bend(x[i], cap, slope, place - position0))
                                x = put_s1(x, i + 2, bend(x[i + 2], cap, slope, place - position1))
                    else:
                        for i in range(8 * pairs):
                            x = put_s1(x, i, x[i] * LOG2E)
                    if start < inner_low or start + stage - 1 > inner_high:
                        for j in range(2 * pairs):
                            for k in range(2):
                                i, place = 4 * j + k, column + f32_of(8 * j + k)
                                v = x[i] if place >= low0 and place <= high0 else LOW
                                w = x[i + 2] if place >= low1 and place <= high1 else LOW
                                x = put_s1(x, i, v)
                                x = put_s1(x, i + 2, w)
                    most0, most1 = m0, m1
                    for j in range(2 * pairs):
                        most0 = maximum(most0, maximum(x[4 * j], x[4 * j + 1]))
                        most1 = maximum(most1, maximum(x[4 * j + 2], x[4 * j + 3]))
                    most0, most1 = _over_row(most0), _over_row(most1)
                    factor0, factor1 = exp2(m0 - most0), exp2(m1 - most1)
                    m0, m1 = most0, most1
                    total0, total1 = total0 * factor0, total1 * factor1
                    for j in range(2 * pairs):
                        for k in range(2):
                            i = 4 * j + k
                            v, w = exp2(x[i] - m0), exp2(x[i + 2] - m1)
                            total0, total1 = total0 + v, total1 + w
                            x = put_s1(x, i, v)
                            x = put_s1(x, i + 2, w)
                    for j in range(2 * wide):
                        for k in range(2):
                            i = 4 * j + k
                            o = put_o1(o, i, o[i] * factor0)
                            o = put_o1(o, i + 2, o[i + 2] * factor1)
                    o = add_values(o, here + values_at, x)
            if 16 * warp < count:
                for k in range(2):
                    total0 += shuffle_xor_f32(total0, 1 << k)
                    total1 += shuffle_xor_f32(total1, 1 << k)
                factor0, factor1 = f32_of(1), f32_of(1)
                if sinks != 0:
                    sink = load_f32(sinks + 4 * head) * LOG2E
                    most0, most1 = maximum(m0, sink), maximum(m1, sink)
                    factor0, factor1 = exp2(m0 - most0), exp2(m1 - most1)
                    total0 = total0 * factor0 + exp2(sink - most0)
                    total1 = total1 * factor1 + exp2(sink - most1)
                factor0, factor1 = factor0 * reciprocal(total0), factor1 * reciprocal(total1)
                to = attended + ((token + row) * heads + head) * value_dim * 4 + lane % 4 * 8
                next_row = 8 * heads * value_dim * 4
                for j in range(2 * wide):
                    if 8 * j < value_dim:
                        if row < count:
                            v = make_f32x2(o[4 * j] * factor0, o[4 * j + 1] * factor0)
                            store_f32x2(to + 32 * j, v)
                        if row + 8 < count:
                            v = make_f32x2(o[4 * j + 2] * factor1, o[4 * j + 3] * factor1)
                            store_f32x2(to + next_row + 32 * j, v)

    return tiles


def __getattr__(name: str) -> Any:
    """A kernel tiles_TYPE_KEYS_VALUES, made when it is asked for."""
    if not name.startswith("tiles_"):
        raise AttributeError(name)
    kv_type, key_room, value_room = name.removeprefix("tiles_").rsplit("_", 2)
    globals()[name] = made = _make(kv_type, int(key_room), int(value_room))
    return made
