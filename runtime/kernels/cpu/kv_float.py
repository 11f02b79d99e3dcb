"""Keys and values as floats, float16 or float32: K [key_dim][32], then V [32][value_dim]."""

from typing import Any

from llvmlite import ir
from numba.core import types

from ....quant.cpu.floats import widen_code
from ....quant.cpu.simd import (
    LANES,
    inline,
    load,
    load_f16x16,
    load_f32,
    load_f32x16,
    make,
    narrow_f32x16,
    narrow_half,
    store,
    store_f16,
    store_f16x16,
    store_f32,
    store_f32x16,
    widen_f16x16,
)
from ....quant.cpu.vector import F16, F32, I64, Builder, Registers, pointer
from ..records import PAGE
from .kv_type import (
    FLOATS,
    QUERY_STRIDE,
    WEIGHT_STRIDE,
    KvType,
    get,
    multiply_add,
    prefetch,
    put,
    zeros,
)

_load, _store_floats, _store_halves = load("f32", LANES), store("f32", LANES), store("f16", LANES)
_narrow = narrow_half(LANES)
_int = types.int64


@inline
def _get_half(at):
    return widen_f16x16(load_f16x16(at))


@inline
def _put_half(at, v):
    store_f16x16(at, narrow_f32x16(v))


@inline
def _put_half_lanes(at, v):
    _store_halves(at, _narrow(v))


def _make(half: bool) -> KvType:
    size = 2 if half else 4
    read_x16, write_x16 = (_get_half, _put_half) if half else (load_f32x16, store_f32x16)
    write_one, write_lanes = (store_f16, _put_half_lanes) if half else (store_f32, _store_floats)

    @inline
    def store_key(head, slot, x, dim):
        for i in range(dim):
            write_one(head + (i * PAGE + slot) * size, load_f32(x + 4 * i))

    @inline
    def store_keys(head, slot, x, dim):
        for i in range(dim):
            write_lanes(head + (i * PAGE + slot) * size, _load(x + i * LANES * 4))

    @inline
    def values_of(head, dim):
        return head + PAGE * dim * size

    @inline
    def store_value(values, slot, x, dim):
        at = values + slot * dim * size
        for i in range(0, dim, 16):
            write_x16(at + size * i, load_f32x16(x + 4 * i))

    @inline
    def widen(source, out, dim):
        for i in range(0, PAGE * dim, 16):
            store_f32x16(out + 4 * i, read_x16(source + size * i))

    def decode(group: int) -> Any:
        """See KvType.decode."""
        registers = Registers(FLOATS, 2 * group)

        def step(name: str, stride: int) -> Any:
            """(acc, at, factors): acc[g] += (32 values at `at`) * (head g's factor)."""

            def code(b: Builder, sig: Any, args: Any) -> Any:
                acc, at, factors = args
                kind = ir.VectorType(F16 if half else F32, 16)
                xs = [
                    b.load(pointer(b, b.add(at, I64(i))), align=1, typ=kind) for i in (0, 16 * size)
                ]
                xs = [widen_code(b, x) for x in xs] if half else xs
                return multiply_add(b, acc, group, xs, factors, stride)

            return make(name, 3, lambda a: registers(registers, _int, _int), code)

        add_score, add_value = step("add_score", QUERY_STRIDE), step("add_value", WEIGHT_STRIDE)
        start, read, write = zeros(2 * group), get(group, 2), put(group, 2)

        @inline
        def score(head, q, dim, scores, soon):
            acc = start()
            for d in range(dim):
                # The values are read when all scores of a split are there: bring them closer, and
                # the next page's keys, which lie behind other heads' pages.
                prefetch(head + (dim + d) * PAGE * size)
                prefetch(soon + d * PAGE * size)
                acc = add_score(acc, head + d * PAGE * size, q + 4 * d)
            write(acc, scores, WEIGHT_STRIDE)

        @inline
        def accumulate(values, dim, column, first, last, weights, out, out_stride, spare):
            at = values + column * size
            acc = read(out, out_stride)
            for j in range(first, last):
                acc = add_value(acc, at + j * dim * size, weights + 4 * j)
            write(acc, out, out_stride)

        return score, accumulate

    return KvType(values_of, store_key, store_keys, store_value, widen, widen, decode)


F16_TYPE, F32_TYPE = _make(half=True), _make(half=False)
