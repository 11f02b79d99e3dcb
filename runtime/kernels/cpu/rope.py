"""Rotary positions, the q/k norms before them, and the new keys and values into their pages."""

from typing import Any

from ....quant.cpu.simd import (
    LANES,
    fill,
    fill_f32x16,
    fma,
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
)
from ....quant.cpu.threads import atomic_add
from ..records import PAGE, ROPE, ROPE_NEOX, ROPE_NONE, ROPE_NORM, ROPE_TABLE, STEP
from .kv_type import KvType
from .kv_types import KV_TYPES
from .lanes import transpose_block
from .norm import inverse_rms, inverse_rms_lanes

_load, _store, _splat, _fill = (
    load("f32", LANES),
    store("f32", LANES),
    load_splat("f32", LANES),
    fill("f32", LANES),
)
_fma = fma(LANES)


@inline
def _scale_row(x, count, factor):
    f = fill_f32x16(factor)
    for i in range(0, count, 16):
        store_f32x16(x + 4 * i, load_f32x16(x + 4 * i) * f)


@inline
def _norm_row(x, count, weight, eps):
    r = fill_f32x16(inverse_rms(x, count, eps))
    for i in range(0, count, 16):
        store_f32x16(x + 4 * i, load_f32x16(x + 4 * i) * r * load_f32x16(weight + 4 * i))


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
    store_key, store_value = kv.store_key, kv.store_value

    @kernel
    def rope_rows(op, step, thread):
        """A head of a token a piece of work: first the query heads, then K, then V."""
        tokens = load_i64(load_i64(op + ROPE.count_at))
        heads, kv_heads = load_i64(op + ROPE.num_heads), load_i64(op + ROPE.num_kv_heads)
        dim, half = load_i64(op + ROPE.head_dim), load_i64(op + ROPE.rope_dim) // 2
        kind, stride = load_i64(op + ROPE.kind), load_i64(op + ROPE.stride)
        table = load_i64(load_i64(op + ROPE.table_at)) if kind != ROPE_NONE else 0
        eps = load_f32(op + ROPE.eps)
        each = heads + 2 * kv_heads
        while True:
            first = atomic_add(load_i64(op + ROPE.counter), 4)
            if first >= tokens * each:
                return 0
            for item in range(first, min(first + 4, tokens * each)):
                t, head = item // each, item % each
                position = load_i64(load_i64(step + STEP.positions) + 8 * t)
                cos = table + position * half * 8
                if head < heads + kv_heads:
                    is_query = head < heads
                    if is_query:
                        x = load_i64(op + ROPE.q) + t * stride + head * dim * 4
                        norm = load_i64(op + ROPE.q_norm)
                    else:
                        x = load_i64(op + ROPE.k) + t * stride + (head - heads) * dim * 4
                        norm = load_i64(op + ROPE.k_norm)
                    if norm != 0:
                        _norm_row(x, dim, norm, eps)
                    if kind != ROPE_NONE:
                        _rotate_row(x, kind, half, cos, cos + half * 4)
                    if is_query:
                        _scale_row(x, dim, load_f32(op + ROPE.q_scale))
                        continue
                    head -= heads
                else:
                    head -= heads + kv_heads
                    x = load_i64(op + ROPE.v) + t * stride + head * dim * 4
                tables = load_i64(load_i64(step + STEP.tables) + 8 * t)
                page = load_i32(tables + 4 * (position // PAGE))
                at = load_i64(op + ROPE.kv) + page * load_i64(op + ROPE.page_bytes)
                at += head * load_i64(op + ROPE.head_bytes)
                if item % each < heads + kv_heads:
                    store_key(at, position % PAGE, x, dim)
                else:
                    store_value(at, position % PAGE, x, dim)

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


def _make_lanes(kv: KvType) -> Any:
    store_key, store_keys, store_value = kv.store_key, kv.store_keys, kv.store_value

    @kernel
    def rope_lanes(op, step, thread):
        """A head of a block of tokens a piece of work; q, k, v are [block][columns][LANES].

        Queries of packed tokens also become rows, for decode attention.
        """
        blocks = load_i64(step + STEP.num_blocks)
        num_packed = load_i64(step + STEP.num_packed)
        heads, kv_heads = load_i64(op + ROPE.num_heads), load_i64(op + ROPE.num_kv_heads)
        dim, half = load_i64(op + ROPE.head_dim), load_i64(op + ROPE.rope_dim) // 2
        kind, columns = load_i64(op + ROPE.kind), load_i64(op + ROPE.stride)
        angles = load_i64(op + ROPE.table_at)
        eps = load_f32(op + ROPE.eps)
        each = heads + 2 * kv_heads
        spare = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        while True:
            item = atomic_add(load_i64(op + ROPE.counter), 1)
            if item >= blocks * each:
                return 0
            block, head = item // each, item % each
            cos = angles + block * half * LANES * 8
            base = block * columns * LANES * 4
            if head < heads + kv_heads:
                is_query = head < heads
                if is_query:
                    x = load_i64(op + ROPE.q) + base + head * dim * LANES * 4
                    norm = load_i64(op + ROPE.q_norm)
                else:
                    x = load_i64(op + ROPE.k) + base + (head - heads) * dim * LANES * 4
                    norm = load_i64(op + ROPE.k_norm)
                if norm != 0:
                    r = inverse_rms_lanes(x, dim, eps)
                    for i in range(dim):
                        at = x + i * LANES * 4
                        _store(at, _load(at) * r * _splat(norm + 4 * i))
                if kind != ROPE_NONE:
                    _rotate_lanes(x, kind, half, cos, cos + half * LANES * 4)
                if is_query:
                    f = _fill(load_f32(op + ROPE.q_scale))
                    for i in range(dim):
                        at = x + i * LANES * 4
                        _store(at, _load(at) * f)
                    if block * LANES < num_packed:
                        stride = load_i64(op + ROPE.q_rows_stride)
                        row = load_i64(op + ROPE.q_rows) + block * LANES * stride + head * dim * 4
                        for i in range(0, dim, LANES):
                            transpose_block(x + i * LANES * 4, LANES * 4, row + 4 * i, stride)
                    continue
                head -= heads
                is_key = True
            else:
                head -= heads + kv_heads
                is_key = False
                x = load_i64(op + ROPE.v) + base + head * dim * LANES * 4
            valid = load_i64(load_i64(step + STEP.valid) + 8 * block)
            positions = load_i64(step + STEP.positions) + 8 * block * LANES
            tables = load_i64(step + STEP.tables) + 8 * block * LANES
            pages = load_i64(op + ROPE.kv) + head * load_i64(op + ROPE.head_bytes)
            page_bytes = load_i64(op + ROPE.page_bytes)
            p = load_i64(positions)
            if is_key and valid == LANES and p % LANES == 0 and block * LANES >= num_packed:
                at = pages + load_i32(load_i64(tables) + 4 * (p // PAGE)) * page_bytes
                store_keys(at, p % PAGE, x, dim)
                continue
            for i in range(0, dim, LANES):
                transpose_block(x + i * LANES * 4, LANES * 4, spare + 4 * i, dim * 4)
            for lane in range(valid):
                p = load_i64(positions + 8 * lane)
                at = pages + load_i32(load_i64(tables + 8 * lane) + 4 * (p // PAGE)) * page_bytes
                if is_key:
                    store_key(at, p % PAGE, spare + lane * dim * 4, dim)
                else:
                    store_value(at, p % PAGE, spare + lane * dim * 4, dim)

    return rope_lanes


for _name, _type in KV_TYPES.items():
    globals()[f"rope_rows_{_name}"] = _make_rows(_type)
    globals()[f"rope_lanes_{_name}"] = _make_lanes(_type)
