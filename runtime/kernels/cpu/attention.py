"""Decode attention: one query position of a sequence against its pages, a KV head a piece of work.

Long contexts are split into pieces of SPLIT_PAGES pages, whose partial results (maximum, sum,
weighted values) the combine op merges; the split does not depend on the thread count, so neither do
the results. The online softmax is Milakov & Gimelshein, 2018 (arXiv 1805.02867).
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from ....quant.cpu.simd import (
    exp_f32,
    exp_f32x16,
    fill_f32x16,
    inline,
    kernel,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    make,
    max_f32x16,
    max_f32x16_all,
    store_f32,
    store_f32x16,
    sum_f32x16,
    zero_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ....quant.cpu.vector import F16, F32, I64, Builder, Registers, declare, pointer, splat, vec
from ..records import ATTENTION, COMBINE, MAX_GROUP, PAGE, SPLIT_PAGES, STEP
from .quantize import put_row

_LOW = np.float32(-1e30)
_int = types.int64


@inline
def cap_scores(v, cap):
    """cap * tanh(v / cap) of 16 scores."""
    two, one = fill_f32x16(np.float32(2)), fill_f32x16(np.float32(1))
    e = exp_f32x16(v * fill_f32x16(np.float32(2) / cap))
    return (one - two / (e + one)) * fill_f32x16(cap)


def _make_group(group: int) -> Any:
    """Attention for `group` query heads that share a KV head."""
    pair = Registers(vec("f32", 16), 2 * group)
    kind = vec("f32", 16).llvm

    def multiply_add(b: Builder, acc: Any, at: Any, factors: Any, stride: int) -> Any:
        """acc[g] += (32 float16 at `at`) * (the float32 of head g at `factors`)."""
        halves = [
            b.fpext(
                b.load(pointer(b, b.add(at, I64(32 * j))), align=1, typ=ir.VectorType(F16, 16)),
                kind,
            )
            for j in range(2)
        ]
        function = declare(b, "llvm.fma.v16f32", kind, [kind] * 3)
        for g in range(group):
            f = b.load(pointer(b, b.add(factors, I64(g * stride))), align=1, typ=F32)
            f = splat(b, f, 16)
            for j in range(2):
                i = 2 * g + j
                acc = b.insert_value(
                    acc, b.call(function, [halves[j], f, b.extract_value(acc, i)]), i
                )
        return acc

    def score_code(b: Builder, sig: Any, args: Any) -> Any:
        acc, at, q, dim = args
        halves = [
            b.fpext(
                b.load(pointer(b, b.add(at, I64(32 * j))), align=1, typ=ir.VectorType(F16, 16)),
                kind,
            )
            for j in range(2)
        ]
        function = declare(b, "llvm.fma.v16f32", kind, [kind] * 3)
        for g in range(group):
            where = b.add(q, b.mul(dim, I64(4 * g)))
            f = splat(b, b.load(pointer(b, where), align=1, typ=F32), 16)
            for j in range(2):
                i = 2 * g + j
                acc = b.insert_value(
                    acc, b.call(function, [halves[j], f, b.extract_value(acc, i)]), i
                )
        return acc

    def value_code(b: Builder, sig: Any, args: Any) -> Any:
        return multiply_add(b, args[0], args[1], args[2], PAGE * 4)

    def write_code(b: Builder, sig: Any, args: Any) -> Any:
        acc, at, stride = args
        for g in range(group):
            for j in range(2):
                where = b.add(b.add(at, b.mul(stride, I64(g))), I64(64 * j))
                b.store(b.extract_value(acc, 2 * g + j), pointer(b, where), align=1)
        return I64(0)

    def read_code(b: Builder, sig: Any, args: Any) -> Any:
        at, stride, factors = args
        value: Any = ir.Constant(pair.llvm, None)
        for g in range(group):
            f = splat(b, b.load(pointer(b, b.add(factors, I64(4 * g))), align=1, typ=F32), 16)
            for j in range(2):
                where = b.add(b.add(at, b.mul(stride, I64(g))), I64(64 * j))
                old = b.load(pointer(b, where), align=1, typ=kind)
                value = b.insert_value(value, b.fmul(old, f), 2 * g + j)
        return value

    zeros = make("zeros", 0, lambda a: pair(), lambda b, s, a: ir.Constant(pair.llvm, None))
    score = make("score", 4, lambda a: pair(pair, _int, _int, _int), score_code)
    value = make("value", 3, lambda a: pair(pair, _int, _int), value_code)
    write = make("write", 3, lambda a: _int(pair, _int, _int), write_code)
    read = make("read", 3, lambda a: pair(_int, _int, _int), read_code)

    @inline
    def softmax_page(scores, first, last, cap, state, decay):
        """Scores of 32 slots a head -> weights, in place; slots outside first..last get 0."""
        for g in range(group):
            s = scores + g * PAGE * 4
            if cap != np.float32(0):
                store_f32x16(s, cap_scores(load_f32x16(s), cap))
                store_f32x16(s + 64, cap_scores(load_f32x16(s + 64), cap))
            for i in range(first):
                store_f32(s + 4 * i, _LOW)
            for i in range(last, PAGE):
                store_f32(s + 4 * i, _LOW)
            a, b = load_f32x16(s), load_f32x16(s + 64)
            old = load_f32(state + 8 * g)
            top = max(old, max_f32x16_all(max_f32x16(a, b)))
            m = fill_f32x16(top)
            a, b = exp_f32x16(a - m), exp_f32x16(b - m)
            store_f32x16(s, a)
            store_f32x16(s + 64, b)
            c = exp_f32(old - top)
            store_f32(decay + 4 * g, c)
            store_f32(state + 8 * g, top)
            store_f32(state + 8 * g + 4, load_f32(state + 8 * g + 4) * c + sum_f32x16(a + b))

    @kernel
    def attention_rows(op, step, thread):
        tokens = load_i64(load_i64(op + ATTENTION.count_at))
        kv_heads = load_i64(op + ATTENTION.num_kv_heads)
        heads_each = load_i64(op + ATTENTION.group)  # of one KV head, a multiple of `group`
        pieces = heads_each // group
        dim, window = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.window)
        cap = load_f32(op + ATTENTION.softcap)
        stride, out_stride = load_i64(op + ATTENTION.stride), load_i64(op + ATTENTION.out_stride)
        page_bytes = load_i64(op + ATTENTION.page_bytes)
        scores = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        decay = scores + group * PAGE * 4
        longest = 0
        for t in range(tokens):
            longest = max(longest, load_i64(load_i64(step + STEP.positions) + 8 * t))
        used = longest // (PAGE * SPLIT_PAGES) + 1
        while True:
            item = atomic_add(load_i64(op + ATTENTION.counter), 1)
            if item >= tokens * kv_heads * pieces * used:
                return 0
            split, rest = item % used, item // used
            piece, rest = rest % pieces, rest // pieces
            head, t = rest % kv_heads, rest // kv_heads
            position = load_i64(load_i64(step + STEP.positions) + 8 * t)
            start = max(0, position - window + 1) if window > 0 else 0
            low = max(start, split * PAGE * SPLIT_PAGES)
            high = min(position + 1, (split + 1) * PAGE * SPLIT_PAGES)
            if low >= high:
                continue
            first_head = head * heads_each + piece * group
            q = load_i64(op + ATTENTION.q) + t * stride + first_head * dim * 4
            # Partial results: [token][head][split][m, l, values].
            partial = load_i64(op + ATTENTION.out)
            partial += (t * kv_heads * heads_each + first_head) * out_stride
            partial += split * (dim + 16) * 4
            state = decay + 64
            for g in range(group):
                store_f32(state + 8 * g, _LOW)
                store_f32(state + 8 * g + 4, np.float32(0))
                for i in range(0, dim, 16):
                    store_f32x16(partial + g * out_stride + 64 + 4 * i, zero_f32x16())
            tables = load_i64(load_i64(step + STEP.tables) + 8 * t)
            pages = load_i64(op + ATTENTION.kv) + head * load_i64(op + ATTENTION.head_bytes)
            for page in range(low // PAGE, (high + PAGE - 1) // PAGE):
                k = pages + load_i32(tables + 4 * page) * page_bytes
                acc = zeros()
                for d in range(dim):
                    acc = score(acc, k + d * PAGE * 2, q + 4 * d, dim)
                write(acc, scores, PAGE * 4)
                first, last = max(0, low - page * PAGE), min(PAGE, high - page * PAGE)
                softmax_page(scores, first, last, cap, state, decay)
                v = k + dim * PAGE * 2
                for i in range(0, dim, 32):
                    o = partial + 64 + 4 * i
                    acc = read(o, out_stride, decay)
                    for j in range(first, last):
                        acc = value(acc, v + (j * dim + i) * 2, scores + 4 * j)
                    write(acc, o, out_stride)
            for g in range(group):
                store_f32(partial + g * out_stride, load_f32(state + 8 * g))
                store_f32(partial + g * out_stride + 4, load_f32(state + 8 * g + 4))

    return attention_rows


for _group in range(1, MAX_GROUP + 1):
    globals()[f"attention_rows_{_group}"] = _make_group(_group)


@kernel
def combine_rows(op, step, thread):
    """Merge each head's pieces and quantize; 256 columns of a token are a piece of work."""
    tokens = load_i64(load_i64(op + COMBINE.count_at))
    dim, heads = load_i64(op + COMBINE.head_dim), load_i64(op + COMBINE.num_heads)
    window = load_i64(op + COMBINE.window)
    stride = load_i64(op + COMBINE.out_stride)
    columns = heads * dim
    parts = (columns + 255) // 256
    x = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    span = PAGE * SPLIT_PAGES
    while True:
        item = atomic_add(load_i64(op + COMBINE.counter), 1)
        if item >= tokens * parts:
            return 0
        t, start = item // parts, item % parts * 256
        end = min(columns, start + 256)
        position = load_i64(load_i64(step + STEP.positions) + 8 * t)
        first = max(0, position - window + 1) // span if window > 0 else 0
        last = position // span + 1
        for i in range(start, end, 16):
            partial = load_i64(op + COMBINE.partial) + (t * heads + i // dim) * stride
            top = _LOW
            for s in range(first, last):
                top = max(top, load_f32(partial + s * (dim + 16) * 4))
            total, acc = np.float32(0), zero_f32x16()
            for s in range(first, last):
                at = partial + s * (dim + 16) * 4
                c = exp_f32(load_f32(at) - top)
                total += c * load_f32(at + 4)
                acc = acc + load_f32x16(at + 64 + i % dim * 4) * fill_f32x16(c)
            store_f32x16(x + 4 * (i - start), acc * fill_f32x16(np.float32(1) / total))
        put_row(op, t, start, end - start, x)
