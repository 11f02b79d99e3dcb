"""Prefill attention: LANES query positions of a sequence side by side, a page of keys at a time.

Queries are [head][key_dim][LANES], so scores and the softmax are elementwise over the lanes. A
page's K and V are widened to float32 once for all the query heads that share it.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from ....quant.cpu.floats import fma_code
from ....quant.cpu.simd import (
    LANES,
    exp_lanes,
    fill,
    fma,
    inline,
    kernel,
    load,
    load_f32,
    load_i32,
    load_i64,
    make,
    maximum,
    store,
    zero,
)
from ....quant.cpu.threads import atomic_add
from ....quant.cpu.vector import F32, I64, Builder, Registers, pointer, splat, vec
from ..records import ATTENTION, PAGE, STEP
from .kv_type import KvType
from .kv_types import KV_TYPES
from .scores import change_scores, seen_by_block

_LOW = np.float32(-1e30)
_int = types.int64
_float = vec("f32", LANES)
WIDTH = 16 if LANES == 16 else 8  # keys, then columns, in registers at once
_HEADS = 16  # that share a page's widened keys and values
_many = Registers(_float, WIDTH)
_load, _store, _zero, _fill = (
    load("f32", LANES),
    store("f32", LANES),
    zero("f32", LANES),
    fill("f32", LANES),
)
_max, _fma = maximum(LANES), fma(LANES)


def _step_code(b: Builder, sig: Any, args: Any) -> Any:
    """(acc, factors, x): acc[i] += factors[i] * x for WIDTH consecutive float32 factors."""
    acc, at, x = args
    for i in range(WIDTH):
        f = splat(b, b.load(pointer(b, b.add(at, I64(4 * i))), align=1, typ=F32), LANES)
        acc = b.insert_value(acc, fma_code(b, f, x, b.extract_value(acc, i)), i)
    return acc


def _write_code(b: Builder, sig: Any, args: Any) -> Any:
    acc, at = args
    for i in range(WIDTH):
        b.store(b.extract_value(acc, i), pointer(b, b.add(at, I64(4 * LANES * i))), align=1)
    return I64(0)


def _read_code(b: Builder, sig: Any, args: Any) -> Any:
    """(address, factor vector): WIDTH vectors times the factor."""
    at, factor = args
    value: Any = ir.Constant(_many.llvm, None)
    for i in range(WIDTH):
        old = b.load(pointer(b, b.add(at, I64(4 * LANES * i))), align=1, typ=_float.llvm)
        value = b.insert_value(value, b.fmul(old, factor), i)
    return value


_zeros = make("zeros", 0, lambda a: _many(), lambda b, s, a: ir.Constant(_many.llvm, None))
_step = make("step", 3, lambda a: _many(_many, _int, _float), _step_code)
_write = make("write", 2, lambda a: _int(_many, _int), _write_code)
_read = make("read", 2, lambda a: _many(_int, _float), _read_code)


@inline
def _finish(out, dim, state, sinks):
    """Divide a head's values by the sum of the weights; `sinks` is 0 or its sink's address."""
    top, total = _load(state), _load(state + LANES * 4)
    factor = _fill(np.float32(1))
    if sinks != 0:
        sink = _fill(load_f32(sinks))
        new = _max(top, sink)
        factor = exp_lanes(top - new)
        total = _fma(total, factor, exp_lanes(sink - new))
    r = factor / total
    for i in range(dim):
        o = out + i * LANES * 4
        _store(o, _load(o) * r)


def _make(kv: KvType) -> Any:
    widen_keys, widen_values, values_of = kv.widen_keys, kv.widen_values, kv.values

    @kernel
    def attention_lanes(op, step, thread):
        """At most _HEADS heads of a block of LANES queries a piece of work, the longest first.

        Blocks of packed tokens are left to attention_rows.
        """
        packed = (load_i64(step + STEP.num_packed) + LANES - 1) // LANES
        blocks = load_i64(step + STEP.num_blocks)
        kv_heads, group = load_i64(op + ATTENTION.num_kv_heads), load_i64(op + ATTENTION.group)
        key_dim, value_dim = load_i64(op + ATTENTION.key_dim), load_i64(op + ATTENTION.value_dim)
        key_room, value_room = (key_dim + 31) // 32 * 32, (value_dim + 31) // 32 * 32
        window, sinks = load_i64(op + ATTENTION.window), load_i64(op + ATTENTION.sinks)
        columns, out_columns = load_i64(op + ATTENTION.stride), load_i64(op + ATTENTION.out_stride)
        page_bytes = load_i64(op + ATTENTION.page_bytes)
        k = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        v = k + PAGE * key_room * 4
        scores = v + PAGE * value_room * 4
        state = scores + PAGE * LANES * 4  # [head of the group][m, l][LANES]
        pieces = (group + _HEADS - 1) // _HEADS
        each = kv_heads * pieces
        while True:
            item = atomic_add(load_i64(op + ATTENTION.counter), 1)
            if item >= (blocks - packed) * each:
                return 0
            block, head = blocks - 1 - item // each, item % each // pieces
            first_head = head * group + item % pieces * _HEADS
            heads = min(_HEADS, (head + 1) * group - first_head)
            position, start, near, far = seen_by_block(op, step, block)
            q = load_i64(op + ATTENTION.q) + block * columns * LANES * 4
            out = load_i64(op + ATTENTION.out) + block * out_columns * LANES * 4
            q += first_head * key_dim * LANES * 4
            out += first_head * value_dim * LANES * 4
            for g in range(heads):
                _store(state + g * LANES * 8, _fill(_LOW))
                _store(state + g * LANES * 8 + LANES * 4, _zero())
                for i in range(value_dim):
                    _store(out + (g * value_dim + i) * LANES * 4, _zero())
            tables = load_i64(load_i64(step + STEP.tables) + 8 * block * LANES)
            pages = load_i64(op + ATTENTION.kv) + head * load_i64(op + ATTENTION.head_bytes)
            for page in range(start // PAGE, far // PAGE + 1):
                source = pages + load_i32(tables + 4 * page) * page_bytes
                widen_keys(source, k, key_room)
                widen_values(values_of(source, key_room), v, value_room)
                at = page * PAGE
                inside = at + PAGE - 1 <= near and (
                    window == 0 or at > position + LANES - 1 - window
                )
                # Slots behind the last token seen hold what somebody left, maybe a NaN.
                written = min(PAGE, far + 1 - at)
                for g in range(heads):
                    for j in range(0, PAGE, WIDTH):
                        acc = _zeros()
                        for d in range(key_dim):
                            acc = _step(
                                acc,
                                k + (d * PAGE + j) * 4,
                                _load(q + (g * key_dim + d) * LANES * 4),
                            )
                        _write(acc, scores + j * LANES * 4)
                    where = state + g * LANES * 8
                    old = _load(where)
                    top = change_scores(
                        op, step, block, scores, PAGE, at, first_head + g, inside, np.float32(1)
                    )
                    top = _max(old, top)
                    total = _zero()
                    for j in range(PAGE):
                        s = exp_lanes(_load(scores + j * LANES * 4) - top)
                        _store(scores + j * LANES * 4, s)
                        total = total + s
                    decay = exp_lanes(old - top)
                    _store(where, top)
                    _store(where + LANES * 4, _fma(_load(where + LANES * 4), decay, total))
                    for i in range(0, value_dim, WIDTH):
                        o = out + (g * value_dim + i) * LANES * 4
                        acc = _read(o, decay)
                        for j in range(written):
                            w = _load(scores + j * LANES * 4)
                            acc = _step(acc, v + (j * value_room + i) * 4, w)
                        _write(acc, o)
            for g in range(heads):
                sink = sinks + 4 * (first_head + g) if sinks != 0 else 0
                _finish(out + g * value_dim * LANES * 4, value_dim, state + g * LANES * 8, sink)

    return attention_lanes


for _name, _type in KV_TYPES.items():
    globals()[f"attention_lanes_{_name}"] = _make(_type)
