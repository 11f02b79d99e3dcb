"""What a type of KV cache gives the kernels: how keys and values lie in a head's page, and code.

`head` is the address of a KV head's part of a page (runtime/cache.py has the layouts), `slot` a
position's place in the page, `dim` the size of its keys, or values: a multiple of 32, since smaller
ones are filled up with zeros. `values` is what the function of that name gives. Everything is
inlined.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types

from ....quant.cpu.floats import fma_code
from ....quant.cpu.simd import make
from ....quant.cpu.vector import F32, I32, I64, Builder, Registers, declare, pointer, splat, vec
from ..records import MAX_HEAD_DIM

# Bytes from one query head to the next: of queries, and of a split's weights. A constant, so that
# addresses need no arithmetic; not a power of two, which would put all heads into few cache sets.
QUERY_STRIDE, WEIGHT_STRIDE = 4 * MAX_HEAD_DIM + 64, 4 * 512 + 64
FLOATS = vec("f32", 16)
_int = types.int64


@dataclass(frozen=True)
class KvType:
    """Inline functions of one cache type.

    Attributes:
        values: (head, dim of keys) -> the address of the head's values, behind its keys.
        store_key: (head, slot, x, dim), x the address of a float32 row.
        store_keys: (head, slot, x, dim): LANES positions, x [dim][LANES], slot a multiple of LANES.
        store_value: (values, slot, x, dim), a float32 row.
        widen_keys, widen_values: (head or values, out, dim): all as float32, keys [dim][32], values
            [32][dim].
        decode: query heads that share a KV head -> (score, accumulate):
            score(head, q, dim, scores, soon): 32 scores of each query, into its row of
            WEIGHT_STRIDE bytes; q has rows of QUERY_STRIDE bytes. `soon`: the next page's head.
            accumulate(values, dim, column, first, last, weights, out, out_stride, spare): add the
            32 columns from `column` of slots first..last-1, times the weights, to a float32 row of
            each query. `spare` is memory for a page's weights.
    """

    values: Any
    store_key: Any
    store_keys: Any
    store_value: Any
    widen_keys: Any
    widen_values: Any
    decode: Any


def zeros(count: int) -> Any:
    """zeros() -> `count` registers of 16 float32."""
    kind = Registers(FLOATS, count)
    return make("zeros", 0, lambda a: kind(), lambda b, s, a: ir.Constant(kind.llvm, None))


def put(group: int, halves: int) -> Any:
    """put(registers, address, stride): `halves` times 16 columns a row, `group` rows."""
    kind = Registers(FLOATS, group * halves)

    def code(b: Builder, sig: Any, args: Any) -> Any:
        acc, at, stride = args
        for i in range(group * halves):
            where = b.add(b.add(at, b.mul(stride, I64(i // halves))), I64(i % halves * 64))
            b.store(b.extract_value(acc, i), pointer(b, where), align=1)
        return I64(0)

    return make("put", 3, lambda a: _int(kind, _int, _int), code)


def get(group: int, halves: int) -> Any:
    """get(address, stride): what `put` stores."""
    kind = Registers(FLOATS, group * halves)

    def code(b: Builder, sig: Any, args: Any) -> Any:
        at, stride = args
        value: Any = ir.Constant(kind.llvm, None)
        for i in range(group * halves):
            where = b.add(b.add(at, b.mul(stride, I64(i // halves))), I64(i % halves * 64))
            value = b.insert_value(value, b.load(pointer(b, where), align=1, typ=FLOATS.llvm), i)
        return value

    return make("get", 2, lambda a: kind(_int, _int), code)


def multiply_add(b: Builder, acc: Any, group: int, xs: list[Any], at: Any, stride: int) -> Any:
    """acc[g, i] += xs[i] * (the float32 at `at`, g rows of `stride` bytes further)."""
    for g in range(group):
        f = b.load(pointer(b, b.add(at, I64(g * stride))), align=1, typ=F32)
        f = splat(b, f, 16)
        for i, x in enumerate(xs):
            place = g * len(xs) + i
            acc = b.insert_value(acc, fma_code(b, x, f, b.extract_value(acc, place)), place)
    return acc


def _prefetch_code(b: Builder, sig: Any, args: Any) -> Any:
    kind = [ir.PointerType(), *[I32] * 3]
    function = declare(b, "llvm.prefetch.p0", ir.VoidType(), kind)
    b.call(function, [pointer(b, args[0]), *(ir.Constant(I32, n) for n in (0, 2, 1))])
    return I64(0)


# Ask for a line, to the second-level cache: into the first, which it passes through anyway later,
# fewer requests are under way at a time (SmolLM2's heads from memory: 9.6 GB/s against 14.6).
prefetch = make("prefetch", 1, lambda a: _int(_int), _prefetch_code)
