"""IQ1_S on the CPU; the block's layout is in quant/iq1_s.py. Bytes are eighths."""

from llvmlite import ir

from .codebook import look_up, shifted, table, with_high_bits
from .expanded import half, make_expanded, read, scaled
from .vector import I8, I16, I32, I64, Builder, Value, constant, lanes

OFFSET = 9
TABLE = table("iq1_s", OFFSET, 8)


def _words(b: Builder, at: Value, count: int) -> Value:
    """The groups' words, each as often as it takes to make them `count`."""
    words = read(b, at, 34, ir.VectorType(I16, 8))
    return lanes(b, words, words, [j * 8 // count for j in range(count)])


def _expand(b: Builder, at: Value) -> list[Value]:
    high = [b.zext(read(b, at, 34 + 2 * g, I16), I64) for g in range(8)]
    indices = with_high_bits(b, at, 2, high, (8, 5, 2, -1), 0x700)
    words = _words(b, at, 32)
    down = b.trunc(b.lshr(words, constant("i16", [15] * 32)), ir.VectorType(I8, 32))
    return shifted(b, look_up(b, "iq1_s", TABLE, indices), down)


def _scales(b: Builder, at: Value) -> Value:
    words = b.zext(_words(b, at, 16), ir.VectorType(I32, 16))
    steps = b.and_(b.lshr(words, constant("i32", [12] * 16)), constant("i32", [7] * 16))
    return scaled(b, steps, half(b, at, 0), 0.25, 0.125)


FORMAT = make_expanded(50, _expand, _scales, offset=OFFSET, group=32)
