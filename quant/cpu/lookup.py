"""Tables of 16 bytes, looked up by 4-bit indices in all lanes at once."""

from collections.abc import Sequence

from llvmlite import ir

from .native import native
from .simd import ISA
from .vector import Builder, Value, constant, lanes


def lookup(b: Builder, index: Value, table: Sequence[int], isa: str = ISA) -> Value:
    """table[i] in each lane of <n x i8> indices below 16; n is 16, 32 or 64."""
    count, width = index.type.count, native.lookup_bytes(isa)
    if not width:
        return _select(b, index, table)
    if count > width:
        half = count // 2
        parts = [list(range(half)), list(range(half, count))]
        low, high = (lookup(b, lanes(b, index, index, p), table, isa) for p in parts)
        return lanes(b, low, high, list(range(count)))
    return native.lookup(b, index, table)


def _select(b: Builder, index: Value, table: Sequence[int]) -> Value:
    """The same in plain LLVM, for any CPU: a choice for each bit of the index."""
    count = index.type.count
    values: list[Value] = [constant("i8", [v] * count) for v in table]
    none = ir.Constant(index.type, None)
    for bit in (1, 2, 4, 8):
        on = b.icmp_unsigned("!=", b.and_(index, constant("i8", [bit] * count)), none)
        values = [b.select(on, values[i + 1], values[i]) for i in range(0, len(values), 2)]
    return values[0]
