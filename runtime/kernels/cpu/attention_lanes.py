"""Prefill attention: LANES query positions of a sequence side by side, a page of keys at a time.

Queries are [head][head_dim][LANES], so scores and the softmax are elementwise over the lanes. A
page's K and V are widened to float32 once for all the query heads that share it.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

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
from ....quant.cpu.vector import F32, I64, Builder, Registers, declare, pointer, splat, vec
from ..records import ATTENTION, PAGE, STEP
from .kv_type import KvType
from .kv_types import KV_TYPES

_LOW = np.float32(-1e30)
_int = types.int64
_float = vec("f32", LANES)
WIDTH = 16 if LANES == 16 else 8  # keys, then columns, in registers at once
_many = Registers(_float, WIDTH)
_load, _store, _zero, _fill = (
    load("f32", LANES),
    store("f32", LANES),
    zero("f32", LANES),
    fill("f32", LANES),
)
_max, _fma = maximum(LANES), fma(LANES)
_fill_int = fill("i32", LANES)


def _step_code(b: Builder, sig: Any, args: Any) -> Any:
    """(acc, factors, x): acc[i] += factors[i] * x for WIDTH consecutive float32 factors."""
    acc, at, x = args
    kind = _float.llvm
    function = declare(b, f"llvm.fma.v{LANES}f32", kind, [kind] * 3)
    for i in range(WIDTH):
        f = splat(b, b.load(pointer(b, b.add(at, I64(4 * i))), align=1, typ=F32), LANES)
        acc = b.insert_value(acc, b.call(function, [f, x, b.extract_value(acc, i)]), i)
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


def _mask_code(b: Builder, sig: Any, args: Any) -> Any:
    """(scores, first, last, position): -1e30 where position is outside first..last of a lane."""
    v, first, last, position = args
    p = splat(b, b.trunc(position, ir.IntType(32)), LANES)
    seen = b.and_(b.icmp_signed(">=", p, first), b.icmp_signed("<=", p, last))
    return b.select(seen, v, ir.Constant(v.type, [-1e30] * LANES))


_zeros = make("zeros", 0, lambda a: _many(), lambda b, s, a: ir.Constant(_many.llvm, None))
_step = make("step", 3, lambda a: _many(_many, _int, _float), _step_code)
_write = make("write", 2, lambda a: _int(_many, _int), _write_code)
_read = make("read", 2, lambda a: _many(_int, _float), _read_code)
_ints = vec("i32", LANES)
_mask = make("mask", 4, lambda a: _float(_float, _ints, _ints, _int), _mask_code)
_lane = make(
    "lane_numbers",
    0,
    lambda a: _ints(),
    lambda b, s, a: ir.Constant(_ints.llvm, list(range(LANES))),
)


@inline
def _cap(v, cap):
    one, two = _fill(np.float32(1)), _fill(np.float32(2))
    e = exp_lanes(v * _fill(np.float32(2) / cap))
    return (one - two / (e + one)) * _fill(cap)


def _make(kv: KvType) -> Any:
    widen = kv.widen

    @kernel
    def attention_lanes(op, step, thread):
        """A KV head of a block of LANES queries a piece of work, the longest first.

        Blocks of packed tokens are left to attention_rows.
        """
        packed = (load_i64(step + STEP.num_packed) + LANES - 1) // LANES
        blocks = load_i64(step + STEP.num_blocks)
        kv_heads, group = load_i64(op + ATTENTION.num_kv_heads), load_i64(op + ATTENTION.group)
        dim, window = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.window)
        cap = load_f32(op + ATTENTION.softcap)
        columns, out_columns = load_i64(op + ATTENTION.stride), load_i64(op + ATTENTION.out_stride)
        page_bytes = load_i64(op + ATTENTION.page_bytes)
        k = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        v = k + PAGE * dim * 4
        scores = v + PAGE * dim * 4
        state = scores + PAGE * LANES * 4  # [head of the group][m, l][LANES]
        while True:
            item = atomic_add(load_i64(op + ATTENTION.counter), 1)
            if item >= (blocks - packed) * kv_heads:
                return 0
            block, head = blocks - 1 - item // kv_heads, item % kv_heads
            valid = load_i64(load_i64(step + STEP.valid) + 8 * block)
            position = load_i64(load_i64(step + STEP.positions) + 8 * block * LANES)
            q = load_i64(op + ATTENTION.q) + block * columns * LANES * 4
            out = load_i64(op + ATTENTION.out) + block * out_columns * LANES * 4
            q += head * group * dim * LANES * 4
            out += head * group * dim * LANES * 4
            for g in range(group):
                _store(state + g * LANES * 8, _fill(_LOW))
                _store(state + g * LANES * 8 + LANES * 4, _zero())
                for i in range(dim):
                    _store(out + (g * dim + i) * LANES * 4, _zero())
            last = _fill_int(np.int32(position)) + _lane()
            first = last + _fill_int(np.int32(1 - window)) if window > 0 else _fill_int(np.int32(0))
            begin = max(0, position - window + 1) if window > 0 else 0
            tables = load_i64(load_i64(step + STEP.tables) + 8 * block * LANES)
            pages = load_i64(op + ATTENTION.kv) + head * load_i64(op + ATTENTION.head_bytes)
            for page in range(begin // PAGE, (position + valid - 1) // PAGE + 1):
                widen(pages + load_i32(tables + 4 * page) * page_bytes, k, v, dim)
                at = page * PAGE
                inside = at + PAGE - 1 <= position and (
                    window == 0 or at > position + LANES - 1 - window
                )
                # Slots behind the block's last token hold what somebody left, maybe a NaN.
                written = min(PAGE, position + valid - at)
                for g in range(group):
                    for j in range(0, PAGE, WIDTH):
                        acc = _zeros()
                        for d in range(dim):
                            acc = _step(
                                acc, k + (d * PAGE + j) * 4, _load(q + (g * dim + d) * LANES * 4)
                            )
                        _write(acc, scores + j * LANES * 4)
                    where = state + g * LANES * 8
                    old = _load(where)
                    top = old
                    for j in range(PAGE):
                        s = _load(scores + j * LANES * 4)
                        if cap != np.float32(0):
                            s = _cap(s, cap)
                        if not inside:
                            s = _mask(s, first, last, at + j)
                        _store(scores + j * LANES * 4, s)
                        top = _max(top, s)
                    total = _zero()
                    for j in range(PAGE):
                        s = exp_lanes(_load(scores + j * LANES * 4) - top)
                        _store(scores + j * LANES * 4, s)
                        total = total + s
                    decay = exp_lanes(old - top)
                    _store(where, top)
                    _store(where + LANES * 4, _fma(_load(where + LANES * 4), decay, total))
                    for i in range(0, dim, WIDTH):
                        o = out + (g * dim + i) * LANES * 4
                        acc = _read(o, decay)
                        for j in range(written):
                            acc = _step(acc, v + (j * dim + i) * 4, _load(scores + j * LANES * 4))
                        _write(acc, o)
            for g in range(group):
                r = _fill(np.float32(1)) / _load(state + g * LANES * 8 + LANES * 4)
                for i in range(dim):
                    o = out + (g * dim + i) * LANES * 4
                    _store(o, _load(o) * r)

    return attention_lanes


for _name, _type in KV_TYPES.items():
    globals()[f"attention_lanes_{_name}"] = _make(_type)
