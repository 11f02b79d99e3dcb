"""Rotary positions, the q/k norms before them, and the new keys and values into their pages.

A warp works on a head of a token: first the query heads, then K, then V. Its threads hold the pairs
that rotate together; what isn't rotated comes after. What the fields mean says cpu/rope.py, how K
and V lie in pages kv_types.py.
"""

from typing import Any

from ....quant.cuda.memory import (
    load_f32,
    load_f32x4,
    load_i32,
    load_i64,
    store_f32,
)
from ....quant.cuda.simt import (
    block_x,
    block_y,
    f32_of,
    fma,
    i64,
    inline,
    kernel,
    let_next_start,
    make_f32x4,
    rsqrt,
    thread,
    wait_for_inputs,
    warp_sum,
)
from ..records import NORM_LAYER, NORM_NONE, NORM_RMS, PAGE, ROPE_NEOX, ROPE_NONE
from .kv_types import KV_TYPES, KvType
from .launches.rope import HEADS


@inline
def _place(x, rest, start, i):
    """Address of element i of a head at x, whose elements from `start` on lie at `rest` (or 0)."""
    if rest != 0 and i >= start:
        return rest + 4 * (i - start)
    return x + 4 * i


@inline
def _element(x, rest, start, i, end):
    """Element i, 0 from `end` on."""
    return load_f32(_place(x, rest, start, i)) if i < end else f32_of(0)


@inline
def _moments(x, rest, start, count, kind, eps):
    """m and r of a head (norm.py), the same in all threads of the warp."""
    lane, mean, inverse = thread() % 32, f32_of(0), f32_of(1)
    if kind == NORM_LAYER:
        total = f32_of(0)
        for i in range(lane * 4, count, 128):
            v = load_f32x4(_place(x, rest, start, i))
            total += (v[0] + v[1]) + (v[2] + v[3])
        mean = warp_sum(total) / f32_of(count)
    if kind != NORM_NONE:
        total = f32_of(0)
        for i in range(lane * 4, count, 128):
            v = load_f32x4(_place(x, rest, start, i))
            for k in range(4):
                total = fma(v[k] - mean, v[k] - mean, total)
        inverse = rsqrt(warp_sum(total) / f32_of(count) + eps)
    return mean, inverse


@inline
def _normed(v, i, mean, inverse, norm, bias):
    """Element i, whose value is v, after the norm with weights at `norm` (0: there is none)."""
    if norm != 0:
        v = (v - mean) * inverse * load_f32(norm + 4 * i)
        if bias != 0:
            v += load_f32(bias + 4 * i)
    return v


def _make(kv_type: KvType) -> Any:
    """For one type of cache. `page`: 0, or K's or V's place in it."""
    put, seal, unit = kv_type.put, kv_type.seal, kv_type.unit

    @inline
    def turn(x, rest, start, norm, bias, mean, inverse, kind, half, cos, factor, page, slot, room):
        """Norm and rotate the pairs of this thread; to the page, or (0) in place."""
        for first in range(thread() % 32, half, 64):
            second = first + 32  # both pairs are loaded before one is stored
            low, step = first, half
            if kind != ROPE_NEOX:
                low, step = 2 * first, 1
            high = low + (second - first) * (1 if kind == ROPE_NEOX else 2)
            low, high = low + start, high + start
            two = second < half
            a = load_f32(_place(x, rest, start, low))
            b = load_f32(_place(x, rest, start, low + step))
            c, s = load_f32(cos + 4 * first), load_f32(cos + 4 * (half + first))
            d, e, f, g = f32_of(0), f32_of(0), f32_of(0), f32_of(0)
            if two:
                d = load_f32(_place(x, rest, start, high))
                e = load_f32(_place(x, rest, start, high + step))
                f, g = load_f32(cos + 4 * second), load_f32(cos + 4 * (half + second))
            a = _normed(a, low, mean, inverse, norm, bias) * factor
            b = _normed(b, low + step, mean, inverse, norm, bias) * factor
            if page != 0:
                put(page, slot, room, low, a * c - b * s)
                put(page, slot, room, low + step, a * s + b * c)
            else:
                store_f32(x + 4 * low, a * c - b * s)
                store_f32(x + 4 * (low + step), a * s + b * c)
            if two:
                d = _normed(d, high, mean, inverse, norm, bias) * factor
                e = _normed(e, high + step, mean, inverse, norm, bias) * factor
                if page != 0:
                    put(page, slot, room, high, d * f - e * g)
                    put(page, slot, room, high + step, d * g + e * f)
                else:
                    store_f32(x + 4 * high, d * f - e * g)
                    store_f32(x + 4 * (high + step), d * g + e * f)

    @inline
    def keep(x, rest, start, norm, bias, mean, inverse, begin, end, factor, page, slot, room):
        """The same for elements begin..end-1, which don't rotate."""
        for first in range(begin + thread() % 32, end, 128):
            v = make_f32x4(
                _element(x, rest, start, first, end),
                _element(x, rest, start, first + 32, end),
                _element(x, rest, start, first + 64, end),
                _element(x, rest, start, first + 96, end),
            )
            for k in range(4):
                i = first + 32 * k
                if i < end:
                    y = _normed(v[k], i, mean, inverse, norm, bias) * factor
                    if page != 0:
                        put(page, slot, room, i, y)
                    else:
                        store_f32(x + 4 * i, y)

    @inline
    def clear(page, slot, room, begin):
        for i in range(begin + thread() % 32, room, 32):
            put(page, slot, room, i, f32_of(0))

    @kernel(block=32 * HEADS)
    def rope(
        q, stride, k, v, kv_stride, k_step, v_step, shared_part, shared_stride, heads, kv_heads,
        key_dim, value_dim, half, offset, kind, table, norm_kind, q_norm, k_norm, q_bias, k_bias,
        norm_step, v_norm, eps: float, q_scale: float, temperature, kv, page_bytes, head_bytes,
        positions, tables,
    ):  # fmt: skip
        let_next_start()
        token, head = block_y(), block_x() * HEADS + thread() // 32
        key_room, value_room = (key_dim + 31) & -32, (value_dim + 31) & -32
        wait_for_inputs()
        if head < heads + 2 * kv_heads:
            position = i64(load_i32(positions + 4 * token))
            is_query, is_key = head < heads, head < heads + kv_heads
            page, slot = 0, position % PAGE
            if not is_query:
                head -= heads if is_key else heads + kv_heads
                number = i64(load_i32(load_i64(tables + 8 * token) + 4 * (position // PAGE)))
                page = kv + number * page_bytes + head * head_bytes
            if is_key:
                x, rest, factor = q + token * stride + head * key_dim * 4, 0, f32_of(1)
                norm, bias = q_norm, q_bias
                if is_query:
                    factor = q_scale
                    if temperature != 0:
                        factor *= load_f32(temperature + 4 * position)
                else:
                    x = k + token * kv_stride + head * k_step
                    norm, bias = k_norm, k_bias
                    if shared_part != 0:
                        rest = shared_part + token * shared_stride
                    clear(page, slot, key_room, key_dim)
                mean, inverse = f32_of(0), f32_of(1)
                if norm != 0:
                    norm += head * norm_step
                    if bias != 0:
                        bias += head * norm_step
                    mean, inverse = _moments(x, rest, offset, key_dim, norm_kind, eps)
                begin, end = key_dim, key_dim
                if kind != ROPE_NONE:
                    begin, end = offset, offset + 2 * half
                    cos = table + position * half * 8
                    turn(
                        x, rest, offset, norm, bias, mean, inverse, kind, half, cos, factor,
                        page, slot, key_room,
                    )  # fmt: skip
                keep(
                    x, rest, offset, norm, bias, mean, inverse, 0, begin, factor,
                    page, slot, key_room,
                )  # fmt: skip
                keep(
                    x, rest, offset, norm, bias, mean, inverse, end, key_dim, factor,
                    page, slot, key_room,
                )  # fmt: skip
                if page != 0:
                    seal(page, slot, key_room, True)
            else:
                x = v + token * kv_stride + head * v_step
                page += key_room * unit  # behind K
                factor = f32_of(1)
                if v_norm != 0:
                    _, factor = _moments(x, 0, 0, value_dim, NORM_RMS, eps)
                keep(
                    x, 0, 0, 0, 0, f32_of(0), f32_of(1), 0, value_dim, factor,
                    page, slot, value_room,
                )  # fmt: skip
                clear(page, slot, value_room, value_dim)
                seal(page, slot, value_room, False)

    return rope


for _name, _type in KV_TYPES.items():
    globals()[f"rope_{_name}"] = _make(_type)
