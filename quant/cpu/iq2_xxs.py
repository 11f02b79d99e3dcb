"""IQ2_XXS on the CPU; the block's layout is in quant/iq2_xxs.py."""

from llvmlite import ir

from .codebook import eighth_signs, look_up, signed, spread_sevens, table
from .expanded import half, make_expanded, read, scaled
from .vector import I8, I32, I64, Builder, Value, constant, lanes

_OFFSET = 43
_TABLE = table("iq2_xxs", _OFFSET)


def _words(b: Builder, at: Value, order: list[int]) -> Value:
    """The groups' second words."""
    words = read(b, at, 2, ir.VectorType(I32, 16))
    return lanes(b, words, words, order)


def _expand(b: Builder, at: Value) -> list[Value]:
    indices = [b.zext(read(b, at, 2 + 8 * (i // 4) + i % 4, I8), I64) for i in range(32)]
    parts = look_up(b, "iq2_xxs", _TABLE, indices)
    signs = eighth_signs(b, spread_sevens(b, _words(b, at, list(range(1, 16, 2)))))
    return signed(b, parts, signs, _OFFSET)


def _scales(b: Builder, at: Value) -> Value:
    steps = b.lshr(_words(b, at, [j | 1 for j in range(16)]), constant("i32", [28] * 16))
    return scaled(b, steps, half(b, at, 0), 0.25, 0.125)


FORMAT = make_expanded(66, _expand, _scales, offset=_OFFSET, group=32)
