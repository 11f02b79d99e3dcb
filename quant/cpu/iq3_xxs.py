"""IQ3_XXS on the CPU; the block's layout is in quant/iq3_xxs.py."""

from llvmlite import ir

from .codebook import eighth_signs, look_up, signed, spread_sevens, table
from .expanded import half, make_expanded, read, scaled
from .vector import I8, I32, I64, Builder, Value, constant, lanes

_OFFSET = 62
_TABLE = table("iq3_xxs", _OFFSET)


def _words(b: Builder, at: Value) -> Value:
    return read(b, at, 66, ir.VectorType(I32, 8))


def _expand(b: Builder, at: Value) -> list[Value]:
    indices = [b.zext(read(b, at, 2 + i, I8), I64) for i in range(64)]
    signs = eighth_signs(b, spread_sevens(b, _words(b, at)))
    return signed(b, look_up(b, "iq3_xxs", _TABLE, indices), signs, _OFFSET)


def _scales(b: Builder, at: Value) -> Value:
    words = _words(b, at)
    steps = b.lshr(lanes(b, words, words, [j // 2 for j in range(16)]), constant("i32", [28] * 16))
    return scaled(b, steps, half(b, at, 0), 0.5, 0.25)


FORMAT = make_expanded(98, _expand, _scales, offset=_OFFSET, group=32)
