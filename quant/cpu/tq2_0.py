"""TQ2_0 on the CPU; the block's layout is in quant/tq2_0.py."""

from llvmlite import ir

from .expanded import half, make_expanded, read
from .vector import I8, I16, Builder, Value, constant, lanes, splat


def _expand(b: Builder, at: Value) -> list[Value]:
    parts = []
    for k in range(4):
        x = read(b, at, 32 * (k // 2), ir.VectorType(I8, 32))
        x = b.bitcast(lanes(b, x, x, list(range(32)) * 2), ir.VectorType(I16, 32))
        first = 4 * (k % 2)
        x = b.lshr(x, constant("i16", [first] * 16 + [first + 2] * 16))
        parts.append(b.and_(b.bitcast(x, ir.VectorType(I8, 64)), constant("i8", [3] * 64)))
    return parts


def _scales(b: Builder, at: Value) -> Value:
    return splat(b, half(b, at, 64), 16)


FORMAT = make_expanded(66, _expand, _scales, offset=1, group=32)
