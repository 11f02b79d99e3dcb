"""Prefill attention in 16-bit words (words.py): blocks of queries share tiles of keys and values.

As in attention_lanes.py, LANES query positions lie side by side and the softmax is online. But a
tile of TILE keys is rounded once for up to _QUERIES positions of a sequence, and a query's weights,
powers of 2, are integers next to the largest in the tile.
"""

from typing import Any

import numpy as np

from ....quant.cpu.simd import (
    LANES,
    abs_f32x16,
    call,
    convert,
    fill,
    fill_f32x16,
    fma,
    fma_f32x16,
    inline,
    kernel,
    load,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    max_f32x16,
    max_f32x16_all,
    maximum,
    sqrt_f32,
    store,
    store_f32,
    store_f32x16,
    zero,
    zero_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ....quant.cpu.vector import vec
from ..records import ATTENTION, PAGE, STEP
from .kv_type import KvType
from .kv_types import KV_TYPES
from .scores import change_scores, seen_by_block
from .words import (
    LARGEST,
    LARGEST_VALUE,
    TILE,
    WEIGHT_BITS,
    WIDTH,
    add_values,
    clear_after,
    pack_words,
    power,
    put_scores,
    step_words,
    sum_words,
    weights,
    zero_words,
)

_LOW = np.float32(-1e30)
_LOG2E = np.float32(1.4426950408889634)
_QUERIES = 64  # of a piece of work: their state and results stay in the second-level cache
_HEADS = 16  # of a piece of work
_ITEMS = 4  # pieces of work a thread, at least, before blocks share tiles
_VECTOR = 4 * LANES
_STATE = 3 * _VECTOR  # of a head of a block: maximum, sum, and what its queries' words are worth

_load, _store, _zero, _fill = (
    load("f32", LANES),
    store("f32", LANES),
    zero("f32", LANES),
    fill("f32", LANES),
)
_load_int, _store_int, _zero_int = load("i32", LANES), store("i32", LANES), zero("i32", LANES)
_store_int16 = store("i32", 16)
_max, _fma = maximum(LANES), fma(LANES)
_sqrt = call(f"llvm.sqrt.v{LANES}f32", vec("f32", LANES), 1)
_to_float = convert("sitofp", vec("i32", LANES), vec("f32", LANES))
_pack, _pack16 = pack_words(LANES), pack_words(16)


@inline
def _round_queries(q, dim):
    """A head's queries, [dim][LANES] float32, to pairs of words in place; what 1 is worth."""
    acc = _zero()
    for d in range(dim):
        x = _load(q + d * _VECTOR)
        acc = _fma(x, x, acc)
    length = _max(_sqrt(acc), _fill(np.float32(1e-30)))
    factor = _fill(np.float32(LARGEST)) / length
    for d in range(0, dim, 2):
        x, y = _load(q + d * _VECTOR), _load(q + (d + 1) * _VECTOR)
        _store_int(q + d // 2 * _VECTOR, _pack(x * factor, y * factor))
    return length * _fill(np.float32(1 / LARGEST))


@inline
def _round_keys(x, dim, written, out):
    """A page's keys, float32 [dim][PAGE] of which `written` count, to pairs; what 1 is worth."""
    if written < PAGE:
        for d in range(dim):
            for i in range(0, PAGE, 16):
                clear_after(x + (d * PAGE + i) * 4, i, written)
    a, b = zero_f32x16(), zero_f32x16()
    for d in range(dim):
        v = load_f32x16(x + d * PAGE * 4)
        a = fma_f32x16(v, v, a)
        v = load_f32x16(x + d * PAGE * 4 + 64)
        b = fma_f32x16(v, v, b)
    length = max(sqrt_f32(max_f32x16_all(max_f32x16(a, b))), np.float32(1e-30))
    factor = fill_f32x16(np.float32(LARGEST) / length)
    for d in range(0, dim, 2):
        for i in range(0, PAGE * 4, 64):
            at = x + d * PAGE * 4 + i
            pair = _pack16(load_f32x16(at) * factor, load_f32x16(at + PAGE * 4) * factor)
            _store_int16(out + d // 2 * PAGE * 4 + i, pair)
    return length / np.float32(LARGEST)


@inline
def _round_values(x, dim, rows, written, out, worth):
    """`rows` values, float32 [rows][dim] of which `written` count, to pairs of rows.

    What 1 is worth goes to `worth`, a float32 for each 16 columns.
    """
    for j in range(written, rows):
        for i in range(0, dim, 16):
            store_f32x16(x + (j * dim + i) * 4, zero_f32x16())
    for i in range(0, dim, 16):
        top = zero_f32x16()
        for j in range(rows):
            top = max_f32x16(top, abs_f32x16(load_f32x16(x + (j * dim + i) * 4)))
        largest = max(max_f32x16_all(top), np.float32(1e-30))
        factor = fill_f32x16(np.float32(LARGEST_VALUE) / largest)
        for j in range(0, rows, 2):
            at = x + (j * dim + i) * 4
            pair = _pack16(load_f32x16(at) * factor, load_f32x16(at + 4 * dim) * factor)
            _store_int16(out + (j // 2 * dim + i) * 4, pair)
        store_f32(worth + i // 4, largest / np.float32(LARGEST_VALUE))


@inline
def _finish(out, dim, state, sinks):
    """Divide a head's values by the sum of the weights; `sinks` is 0 or its sink's address."""
    top, total = _load(state), _load(state + _VECTOR)
    factor = _fill(np.float32(1))
    if sinks != 0:
        sink = _fill(load_f32(sinks) * _LOG2E)
        new = _max(top, sink)
        factor = power(top - new)
        weight = power(sink - new) * _fill(np.float32(1 << WEIGHT_BITS))
        total = _fma(total, factor, weight)
    r = factor / total
    for i in range(dim):
        o = out + i * _VECTOR
        _store(o, _load(o) * r)


def _make(kv: KvType) -> Any:
    widen_keys, widen_values, values_of = kv.widen_keys, kv.widen_values, kv.values

    @kernel
    def attention_words(op, step, thread):
        """Some heads of a few blocks of LANES queries a piece of work, the longest first.

        Blocks of packed tokens are left to attention_rows. The queries become words in place.
        """
        packed = (load_i64(step + STEP.num_packed) + LANES - 1) // LANES
        blocks = load_i64(step + STEP.num_blocks)
        kv_heads, group = load_i64(op + ATTENTION.num_kv_heads), load_i64(op + ATTENTION.group)
        key_dim, value_dim = load_i64(op + ATTENTION.key_dim), load_i64(op + ATTENTION.value_dim)
        key_room, value_room = (key_dim + 31) // 32 * 32, (value_dim + 31) // 32 * 32
        window, sinks = load_i64(op + ATTENTION.window), load_i64(op + ATTENTION.sinks)
        plain = load_f32(op + ATTENTION.softcap) == np.float32(0)
        plain = plain and load_i64(op + ATTENTION.slopes) == 0
        columns, out_columns = load_i64(op + ATTENTION.stride), load_i64(op + ATTENTION.out_stride)
        page_bytes = load_i64(op + ATTENTION.page_bytes)
        wide = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        k = wide + TILE * max(key_room, value_room) * 4
        v = k + TILE * key_room * 2
        worth = v + TILE * value_room * 2
        scores = worth + value_room // 4 + 64
        states = scores + TILE * _VECTOR
        pieces = (group + _HEADS - 1) // _HEADS
        each = kv_heads * pieces
        together = _QUERIES // LANES
        enough = _ITEMS * load_i64(step + STEP.num_threads)
        while together > 1 and (blocks - packed) * each < enough * together:
            together //= 2
        shares = (blocks - packed + together - 1) // together
        tables_at = load_i64(step + STEP.tables)
        while True:
            item = atomic_add(load_i64(op + ATTENTION.counter), 1)
            if item >= shares * each:
                return 0
            share, head = shares - 1 - item // each, item % each // pieces
            first_head = head * group + item % pieces * _HEADS
            heads = min(_HEADS, (head + 1) * group - first_head)
            pages = load_i64(op + ATTENTION.kv) + head * load_i64(op + ATTENTION.head_bytes)
            next_block = packed + share * together
            stop = min(blocks, next_block + together)
            while next_block < stop:
                # The blocks from here on that are of one sequence.
                start = next_block
                tables = load_i64(tables_at + 8 * start * LANES)
                low, high = 1 << 40, 0
                while next_block < stop and load_i64(tables_at + 8 * next_block * LANES) == tables:
                    _, begin, _, far = seen_by_block(op, step, next_block)
                    low, high = min(low, begin), max(high, far)
                    q = load_i64(op + ATTENTION.q) + next_block * columns * _VECTOR
                    out = load_i64(op + ATTENTION.out) + next_block * out_columns * _VECTOR
                    q += first_head * key_dim * _VECTOR
                    out += first_head * value_dim * _VECTOR
                    state = states + (next_block - start) * heads * _STATE
                    for _ in range(heads):
                        _store(state, _fill(_LOW))
                        _store(state + _VECTOR, _zero())
                        value = _round_queries(q, key_dim) * _fill(_LOG2E)
                        _store(state + 2 * _VECTOR, value)
                        for i in range(value_dim):
                            _store(out + i * _VECTOR, _zero())
                        q += key_dim * _VECTOR
                        out += value_dim * _VECTOR
                        state += _STATE
                    next_block += 1
                # A tile is rounded by all of its positions that the step's sequence has: so what a
                # query gets depends neither on which blocks share it nor on the threads.
                end, block = high, next_block
                while block < blocks and load_i64(tables_at + 8 * block * LANES) == tables:
                    _, _, _, far = seen_by_block(op, step, block)
                    end = max(end, far)
                    block += 1
                for at in range(low // TILE * TILE, high + 1, TILE):
                    # Slots behind the last position hold what somebody left, maybe a NaN.
                    written = min(TILE, end + 1 - at)
                    table = tables + at // PAGE * 4
                    source = pages + load_i32(table) * page_bytes
                    widen_keys(source, wide, key_room)
                    worth0 = _round_keys(wide, key_dim, min(PAGE, written), k)
                    worth1 = worth0
                    if written > PAGE:
                        source = pages + load_i32(table + 4) * page_bytes
                        widen_keys(source, wide, key_room)
                        worth1 = _round_keys(wide, key_dim, written - PAGE, k + PAGE * key_room * 2)
                    rows = (written + PAGE - 1) // PAGE * PAGE
                    for i in range(0, rows, PAGE):
                        source = pages + load_i32(table + i // PAGE * 4) * page_bytes
                        target = wide + i * value_room * 4
                        widen_values(values_of(source, key_room), target, value_room)
                    _round_values(wide, value_room, rows, written, v, worth)
                    for block in range(start, next_block):
                        position, begin, near, far = seen_by_block(op, step, block)
                        if far < at or begin >= at + TILE:
                            continue
                        some = min(TILE, far + 1 - at)
                        count = (some + WIDTH - 1) // WIDTH * WIDTH
                        inside = at + count - 1 <= near and (
                            window == 0 or at > position + LANES - 1 - window
                        )
                        q = load_i64(op + ATTENTION.q) + block * columns * _VECTOR
                        out = load_i64(op + ATTENTION.out) + block * out_columns * _VECTOR
                        q += first_head * key_dim * _VECTOR
                        out += first_head * value_dim * _VECTOR
                        state = states + (block - start) * heads * _STATE
                        for g in range(heads):
                            value = _load(state + 2 * _VECTOR)
                            top = _fill(_LOW)
                            for j in range(0, count, WIDTH):
                                acc = zero_words()
                                w = k + (j // PAGE * key_room // 2 * PAGE + j % PAGE) * 4
                                for d in range(key_dim // 2):
                                    x = _load_int(q + d * _VECTOR)
                                    acc = step_words(acc, w + d * PAGE * 4, x)
                                f = value * _fill(worth0 if j < PAGE else worth1)
                                top = put_scores(acc, scores + j * _VECTOR, f, top)
                            if not (inside and plain):
                                h = first_head + g
                                top = change_scores(
                                    op, step, block, scores, count, at, h, inside, _LOG2E
                                )
                            shift = _fill(np.float32(WEIGHT_BITS)) - top
                            total = _zero_int()
                            for j in range(0, count, 2):
                                w = weights(scores + j * _VECTOR, shift)
                                _store_int(scores + j // 2 * _VECTOR, w)
                                total = sum_words(total, w)
                            old = _load(state)
                            new = _max(old, top)
                            decay, factor = power(old - new), power(top - new)
                            _store(state, new)
                            total = _fma(_load(state + _VECTOR), decay, _to_float(total) * factor)
                            _store(state + _VECTOR, total)
                            for i in range(0, value_dim, WIDTH):
                                acc = zero_words()
                                for j in range((some + 1) // 2):
                                    x = _load_int(scores + j * _VECTOR)
                                    acc = step_words(acc, v + (j * value_room + i) * 4, x)
                                f = factor * _fill(load_f32(worth + i // 16 * 4))
                                add_values(acc, out + i * _VECTOR, decay, f)
                            q += key_dim * _VECTOR
                            out += value_dim * _VECTOR
                            state += _STATE
                for block in range(start, next_block):
                    out = load_i64(op + ATTENTION.out) + block * out_columns * _VECTOR
                    out += first_head * value_dim * _VECTOR
                    state = states + (block - start) * heads * _STATE
                    for g in range(heads):
                        sink = sinks + 4 * (first_head + g) if sinks != 0 else 0
                        _finish(out, value_dim, state, sink)
                        out += value_dim * _VECTOR
                        state += _STATE

    return attention_words


for _name, _type in KV_TYPES.items():
    if _name != "f32":  # which is for those who want every bit
        globals()[f"attention_words_{_name}"] = _make(_type)
