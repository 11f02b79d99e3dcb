"""Rotary positions, the q/k norms before them, and the new keys and values into their pages."""

from typing import Any

import numpy as np

from ....quant.cpu.simd import (
    LANES,
    fill,
    fill_f32x16,
    inline,
    kernel,
    load,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    load_splat,
    store,
    store_f32,
    store_f32x16,
    zero,
    zero_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ..records import NORM_RMS, PAGE, ROPE, ROPE_NEOX, ROPE_NONE, ROPE_NORM, ROPE_TABLE, STEP
from .kv_type import KvType
from .kv_types import KV_TYPES
from .lanes import transpose_block
from .norm import inverse_deviation, inverse_deviation_lanes, mean_lanes, norm_row

_load, _store, _splat, _fill, _zero = (
    load("f32", LANES),
    store("f32", LANES),
    load_splat("f32", LANES),
    fill("f32", LANES),
    zero("f32", LANES),
)


@inline
def _scale_row(x, count, factor):
    f = fill_f32x16(factor)
    for i in range(0, count, 16):
        store_f32x16(x + 4 * i, load_f32x16(x + 4 * i) * f)


@inline
def _unit_row(x, count, eps):
    """RMS norm without a weight, in place."""
    _scale_row(x, count, inverse_deviation(x, count, np.float32(0), NORM_RMS, eps))


@inline
def _copy_row(x, y, count):
    for i in range(0, count, 16):
        store_f32x16(y + 4 * i, load_f32x16(x + 4 * i))


@inline
def _clear_row(x, start, end):
    for i in range(start, end, 16):
        store_f32x16(x + 4 * i, zero_f32x16())


@inline
def _rotate_row(x, kind, half, cos, sin):
    """Rotate pairs (i, i + half), or (2i, 2i + 1), by the angles at cos and sin."""
    for i in range(half):
        if kind == ROPE_NEOX:
            first, second = x + 4 * i, x + 4 * (i + half)
        else:
            first, second = x + 8 * i, x + 8 * i + 4
        a, b = load_f32(first), load_f32(second)
        c, s = load_f32(cos + 4 * i), load_f32(sin + 4 * i)
        store_f32(first, a * c - b * s)
        store_f32(second, a * s + b * c)


def _make_rows(kv: KvType) -> Any:
    store_key, store_value, values_of = kv.store_key, kv.store_value, kv.values

    @kernel
    def rope_rows(op, step, thread):
        """A head of a token a piece of work: first the query heads, then K, then V.

        K and V are worked on in copies, behind which there is room for zeros, and which may come
        from the same memory.
        """
        tokens = load_i64(load_i64(op + ROPE.count_at))
        heads, kv_heads = load_i64(op + ROPE.num_heads), load_i64(op + ROPE.num_kv_heads)
        key_dim, value_dim = load_i64(op + ROPE.key_dim), load_i64(op + ROPE.value_dim)
        key_room = (key_dim + 31) // 32 * 32
        half, kind = load_i64(op + ROPE.rope_dim) // 2, load_i64(op + ROPE.kind)
        offset, shared = load_i64(op + ROPE.rope_offset), load_i64(op + ROPE.shared)
        table = load_i64(load_i64(op + ROPE.table_at)) if kind != ROPE_NONE else 0
        norm_kind, norm_step = load_i64(op + ROPE.norm_kind), load_i64(op + ROPE.norm_step)
        eps, temperature_at = load_f32(op + ROPE.eps), load_i64(op + ROPE.temperature_at)
        each = heads + 2 * kv_heads
        y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        while True:
            first = atomic_add(load_i64(op + ROPE.counter), 4)
            if first >= tokens * each:
                return 0
            for item in range(first, min(first + 4, tokens * each)):
                t, head = item // each, item % each
                position = load_i64(load_i64(step + STEP.positions) + 8 * t)
                cos = table + position * half * 8
                row = t * load_i64(op + ROPE.kv_stride)
                is_query, is_key = head < heads, head < heads + kv_heads
                if is_key:
                    if is_query:
                        x = load_i64(op + ROPE.q) + t * load_i64(op + ROPE.stride)
                        x += head * key_dim * 4
                        norm, bias = load_i64(op + ROPE.q_norm), load_i64(op + ROPE.q_bias)
                    else:
                        head -= heads
                        x = load_i64(op + ROPE.k) + row + head * load_i64(op + ROPE.k_step)
                        norm, bias = load_i64(op + ROPE.k_norm), load_i64(op + ROPE.k_bias)
                        _copy_row(x, y, offset if shared != 0 else key_dim)
                        if shared != 0:
                            part = shared + t * load_i64(op + ROPE.shared_stride)
                            _copy_row(part, y + 4 * offset, key_dim - offset)
                        x = y
                    if norm != 0:
                        norm += head * norm_step
                        if bias != 0:
                            bias += head * norm_step
                        norm_row(x, x, key_dim, norm, bias, norm_kind, eps)
                    if kind != ROPE_NONE:
                        _rotate_row(x + 4 * offset, kind, half, cos, cos + half * 4)
                    if is_query:
                        factor = load_f32(op + ROPE.q_scale)
                        if temperature_at != 0:
                            factor *= load_f32(load_i64(temperature_at) + 4 * position)
                        _scale_row(x, key_dim, factor)
                        continue
                else:
                    head -= heads + kv_heads
                    _copy_row(
                        load_i64(op + ROPE.v) + row + head * load_i64(op + ROPE.v_step),
                        y,
                        value_dim,
                    )
                tables = load_i64(load_i64(step + STEP.tables) + 8 * t)
                page = load_i32(tables + 4 * (position // PAGE))
                at = load_i64(op + ROPE.kv) + page * load_i64(op + ROPE.page_bytes)
                at += head * load_i64(op + ROPE.head_bytes)
                if is_key:
                    _clear_row(y, key_dim, key_room)
                    store_key(at, position % PAGE, y, key_room)
                else:
                    if load_i64(op + ROPE.v_norm) != 0:
                        _unit_row(y, value_dim, eps)
                    room = (value_dim + 31) // 32 * 32
                    _clear_row(y, value_dim, room)
                    store_value(values_of(at, key_room), position % PAGE, y, room)

    return rope_rows


@kernel
def rope_table_lanes(op, step, thread):
    """The angles of each block's tokens, [block][cos, sin][half][LANES], once a step."""
    blocks = load_i64(step + STEP.num_blocks)
    half = load_i64(op + ROPE_TABLE.rope_dim) // 2
    table = load_i64(load_i64(op + ROPE_TABLE.table_at))
    while True:
        block = atomic_add(load_i64(op + ROPE_TABLE.counter), 1)
        if block >= blocks:
            return 0
        out = load_i64(op + ROPE_TABLE.out) + block * half * LANES * 8
        for lane in range(LANES):
            position = load_i64(load_i64(step + STEP.positions) + 8 * (block * LANES + lane))
            row = table + position * half * 8
            for i in range(2 * half):
                store_f32(out + (i * LANES + lane) * 4, load_f32(row + 4 * i))


@inline
def _rotate_lanes(x, kind, half, cos, sin):
    for i in range(half):
        if kind == ROPE_NORM:
            first, second = x + 2 * i * LANES * 4, x + (2 * i + 1) * LANES * 4
        else:
            first, second = x + i * LANES * 4, x + (i + half) * LANES * 4
        a, b = _load(first), _load(second)
        c, s = _load(cos + i * LANES * 4), _load(sin + i * LANES * 4)
        _store(first, a * c - b * s)
        _store(second, a * s + b * c)


@inline
def _copy_lanes(x, y, count):
    for i in range(count):
        _store(y + i * LANES * 4, _load(x + i * LANES * 4))


def _make_lanes(kv: KvType) -> Any:
    store_key, store_keys, store_value = kv.store_key, kv.store_keys, kv.store_value
    values_of = kv.values

    @kernel
    def rope_lanes(op, step, thread):
        """A head of a block of tokens a piece of work; q, k, v are [block][columns][LANES].

        Queries of packed tokens also become rows, for decode attention.
        """
        blocks = load_i64(step + STEP.num_blocks)
        num_packed = load_i64(step + STEP.num_packed)
        heads, kv_heads = load_i64(op + ROPE.num_heads), load_i64(op + ROPE.num_kv_heads)
        key_dim, value_dim = load_i64(op + ROPE.key_dim), load_i64(op + ROPE.value_dim)
        key_room, value_room = (key_dim + 31) // 32 * 32, (value_dim + 31) // 32 * 32
        half, kind = load_i64(op + ROPE.rope_dim) // 2, load_i64(op + ROPE.kind)
        offset, shared = load_i64(op + ROPE.rope_offset), load_i64(op + ROPE.shared)
        angles = load_i64(op + ROPE.table_at)
        norm_kind, norm_step = load_i64(op + ROPE.norm_kind), load_i64(op + ROPE.norm_step)
        eps, temperature_at = load_f32(op + ROPE.eps), load_i64(op + ROPE.temperature_at)
        each = heads + 2 * kv_heads
        copy = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        spare = copy + key_room * LANES * 4
        while True:
            item = atomic_add(load_i64(op + ROPE.counter), 1)
            if item >= blocks * each:
                return 0
            block, head = item // each, item % each
            cos = angles + block * half * LANES * 8
            base = block * load_i64(op + ROPE.kv_stride) * LANES * 4
            positions = load_i64(step + STEP.positions) + 8 * block * LANES
            is_query, is_key = head < heads, head < heads + kv_heads
            if is_key:
                if is_query:
                    x = load_i64(op + ROPE.q) + block * load_i64(op + ROPE.stride) * LANES * 4
                    x += head * key_dim * LANES * 4
                    norm, bias = load_i64(op + ROPE.q_norm), load_i64(op + ROPE.q_bias)
                else:
                    head -= heads
                    x = load_i64(op + ROPE.k) + base
                    x += head * load_i64(op + ROPE.k_step) * LANES * 4
                    norm, bias = load_i64(op + ROPE.k_norm), load_i64(op + ROPE.k_bias)
                    _copy_lanes(x, copy, offset if shared != 0 else key_dim)
                    if shared != 0:
                        part = shared + block * load_i64(op + ROPE.shared_stride) * LANES * 4
                        _copy_lanes(part, copy + offset * LANES * 4, key_dim - offset)
                    for i in range(key_dim, key_room):
                        _store(copy + i * LANES * 4, _zero())
                    x = copy
                if norm != 0:
                    norm += head * norm_step
                    m = mean_lanes(x, key_dim, norm_kind)
                    r = inverse_deviation_lanes(x, key_dim, m, norm_kind, eps)
                    for i in range(key_dim):
                        at = x + i * LANES * 4
                        _store(at, (_load(at) - m) * r * _splat(norm + 4 * i))
                    if bias != 0:
                        bias += head * norm_step
                        for i in range(key_dim):
                            at = x + i * LANES * 4
                            _store(at, _load(at) + _splat(bias + 4 * i))
                if kind != ROPE_NONE:
                    _rotate_lanes(x + offset * LANES * 4, kind, half, cos, cos + half * LANES * 4)
                if is_query:
                    f = _fill(load_f32(op + ROPE.q_scale))
                    if temperature_at != 0:
                        for lane in range(LANES):
                            factor = load_i64(temperature_at) + 4 * load_i64(positions + 8 * lane)
                            store_f32(spare + 4 * lane, load_f32(factor))
                        f = f * _load(spare)
                    for i in range(key_dim):
                        at = x + i * LANES * 4
                        _store(at, _load(at) * f)
                    if block * LANES < num_packed:
                        stride = load_i64(op + ROPE.q_rows_stride)
                        row = load_i64(op + ROPE.q_rows) + block * LANES * stride
                        row += head * key_dim * 4
                        for i in range(0, key_dim, LANES):
                            transpose_block(x + i * LANES * 4, LANES * 4, row + 4 * i, stride)
                    continue
            else:
                head -= heads + kv_heads
                x = load_i64(op + ROPE.v) + base + head * load_i64(op + ROPE.v_step) * LANES * 4
            valid = load_i64(load_i64(step + STEP.valid) + 8 * block)
            tables = load_i64(step + STEP.tables) + 8 * block * LANES
            pages = load_i64(op + ROPE.kv) + head * load_i64(op + ROPE.head_bytes)
            page_bytes = load_i64(op + ROPE.page_bytes)
            p = load_i64(positions)
            if is_key and valid == LANES and p % LANES == 0 and block * LANES >= num_packed:
                at = pages + load_i32(load_i64(tables) + 4 * (p // PAGE)) * page_bytes
                store_keys(at, p % PAGE, x, key_room)
                continue
            dim = key_room if is_key else value_dim
            room = key_room if is_key else value_room
            for i in range(0, dim, LANES):
                transpose_block(x + i * LANES * 4, LANES * 4, spare + 4 * i, room * 4)
            for lane in range(valid):
                p = load_i64(positions + 8 * lane)
                at = pages + load_i32(load_i64(tables + 8 * lane) + 4 * (p // PAGE)) * page_bytes
                row = spare + lane * room * 4
                if is_key:
                    store_key(at, p % PAGE, row, key_room)
                else:
                    if load_i64(op + ROPE.v_norm) != 0:
                        _unit_row(row, value_dim, eps)
                    _clear_row(row, value_dim, value_room)
                    store_value(values_of(at, key_room), p % PAGE, row, value_room)

    return rope_lanes


for _name, _type in KV_TYPES.items():
    globals()[f"rope_rows_{_name}"] = _make_rows(_type)
    globals()[f"rope_lanes_{_name}"] = _make_lanes(_type)
