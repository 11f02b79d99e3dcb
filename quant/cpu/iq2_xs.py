"""IQ2_XS on the CPU; the block's layout is in quant/iq2_xs.py."""

from llvmlite import ir

from .codebook import eighth_signs, look_up, nibble_steps, signed, table
from .expanded import half, make_expanded, read, scaled
from .vector import I8, I16, I64, Builder, Value, constant

_OFFSET = 43
_TABLE = table("iq2_xs", _OFFSET)


def _expand(b: Builder, at: Value) -> list[Value]:
    words = read(b, at, 2, ir.VectorType(I16, 32))
    indices = [b.and_(b.zext(read(b, at, 2 + 2 * i, I16), I64), I64(511)) for i in range(32)]
    sevens = b.trunc(b.lshr(words, constant("i16", [9] * 32)), ir.VectorType(I8, 32))
    return signed(b, look_up(b, "iq2_xs", _TABLE, indices), eighth_signs(b, sevens), _OFFSET)


def _scales(b: Builder, at: Value) -> Value:
    steps = nibble_steps(b, read(b, at, 66, ir.VectorType(I8, 8)))
    return scaled(b, steps, half(b, at, 0), 0.25, 0.125)


FORMAT = make_expanded(74, _expand, _scales, offset=_OFFSET, group=16)
