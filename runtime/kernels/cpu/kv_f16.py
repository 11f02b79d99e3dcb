"""float16 keys and values: K [key_dim][32], then V [32][value_dim]."""

from typing import Any

from llvmlite import ir
from numba.core import types

from ....quant.cpu.simd import (
    LANES,
    convert,
    inline,
    load,
    load_f16x16,
    load_f32,
    load_f32x16,
    make,
    narrow_f32x16,
    store,
    store_f16,
    store_f16x16,
    store_f32x16,
    widen_f16x16,
)
from ....quant.cpu.vector import F16, I64, Builder, Registers, pointer, vec
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

_load, _store_half = load("f32", LANES), store("f16", LANES)
_narrow = convert("fptrunc", vec("f32", LANES), vec("f16", LANES))
_int = types.int64


@inline
def _store_key(head, slot, x, dim):
    for i in range(dim):
        store_f16(head + (i * PAGE + slot) * 2, load_f32(x + 4 * i))


@inline
def _store_keys(head, slot, x, dim):
    for i in range(dim):
        _store_half(head + (i * PAGE + slot) * 2, _narrow(_load(x + i * LANES * 4)))


@inline
def _values(head, dim):
    return head + PAGE * dim * 2


@inline
def _store_value(values, slot, x, dim):
    at = values + slot * dim * 2
    for i in range(0, dim, 16):
        store_f16x16(at + 2 * i, narrow_f32x16(load_f32x16(x + 4 * i)))


@inline
def _widen(source, out, dim):
    for i in range(0, PAGE * dim, 16):
        store_f32x16(out + 4 * i, widen_f16x16(load_f16x16(source + 2 * i)))


def _decode(group: int) -> Any:
    """See KvType.decode."""
    registers = Registers(FLOATS, 2 * group)

    def step(name: str, stride: int) -> Any:
        """(acc, at, factors): acc[g] += (32 float16 at `at`) * (head g's factor)."""

        def code(b: Builder, sig: Any, args: Any) -> Any:
            acc, at, factors = args
            kind = ir.VectorType(F16, 16)
            xs = [
                b.fpext(b.load(pointer(b, b.add(at, I64(i))), align=1, typ=kind), FLOATS.llvm)
                for i in (0, 32)
            ]
            return multiply_add(b, acc, group, xs, factors, stride)

        return make(name, 3, lambda a: registers(registers, _int, _int), code)

    add_score, add_value = step("add_score", QUERY_STRIDE), step("add_value", WEIGHT_STRIDE)
    start, read, write = zeros(2 * group), get(group, 2), put(group, 2)

    @inline
    def score(head, q, dim, scores):
        acc = start()
        for d in range(dim):
            # The values are read when all scores of a split are there: bring them closer.
            prefetch(head + (dim + d) * PAGE * 2)
            acc = add_score(acc, head + d * PAGE * 2, q + 4 * d)
        write(acc, scores, WEIGHT_STRIDE)

    @inline
    def accumulate(values, dim, column, first, last, weights, out, out_stride, spare):
        at = values + column * 2
        acc = read(out, out_stride)
        for j in range(first, last):
            acc = add_value(acc, at + j * dim * 2, weights + 4 * j)
        write(acc, out, out_stride)

    return score, accumulate


F16_TYPE = KvType(_values, _store_key, _store_keys, _store_value, _widen, _widen, _decode)
