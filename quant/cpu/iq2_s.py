"""IQ2_S on the CPU; the block's layout is in quant/iq2_s.py."""

from llvmlite import ir

from .codebook import look_up, nibble_steps, signed, table, with_high_bits
from .expanded import half, make_expanded, read, scaled
from .vector import I8, I64, Builder, Value

_OFFSET = 43
_TABLE = table("iq2_s", _OFFSET)


def _expand(b: Builder, at: Value) -> list[Value]:
    high = [b.zext(read(b, at, 66 + g, I8), I64) for g in range(8)]
    indices = with_high_bits(b, at, 2, high, (8, 6, 4, 2), 0x300)
    signs = read(b, at, 34, ir.VectorType(I8, 32))
    return signed(b, look_up(b, "iq2_s", _TABLE, indices), signs, _OFFSET)


def _scales(b: Builder, at: Value) -> Value:
    steps = nibble_steps(b, read(b, at, 74, ir.VectorType(I8, 8)))
    return scaled(b, steps, half(b, at, 0), 0.25, 0.125)


FORMAT = make_expanded(82, _expand, _scales, offset=_OFFSET, group=16)
