"""IQ1_M on the CPU; the block's layout is in quant/iq1_m.py. Bytes are eighths, as IQ1_S's."""

from llvmlite import ir

from .codebook import look_up, shifted, with_high_bits
from .expanded import make_expanded, read, scaled
from .floats import widen_code
from .iq1_s import OFFSET, TABLE
from .vector import F16, I8, I16, I32, I64, Builder, Value, constant, lanes


def _expand(b: Builder, at: Value) -> list[Value]:
    high = [b.zext(read(b, at, 32 + i, I8), I64) for i in range(16)]
    indices = with_high_bits(b, at, 0, high, (8, 4), 0x700)
    bytes_ = read(b, at, 32, ir.VectorType(I8, 16))
    bytes_ = lanes(b, bytes_, bytes_, [i // 2 for i in range(32)])
    down = b.and_(b.lshr(bytes_, constant("i8", [3, 7] * 16)), constant("i8", [1] * 32))
    return shifted(b, look_up(b, "iq1_s", TABLE, indices), down)


def _scales(b: Builder, at: Value) -> Value:
    # The upper nibbles of the four words are one float16.
    four = read(b, at, 48, I64)
    bits: Value = I64(0)
    for i in range(4):
        bits = b.or_(bits, b.and_(b.lshr(four, I64(12 * (i + 1))), I64(0xF << 4 * i)))
    d = widen_code(b, b.bitcast(b.trunc(bits, I16), F16))
    words = b.bitcast(four, ir.VectorType(I16, 4))
    words = lanes(b, words, words, [j // 4 for j in range(16)])
    steps = b.and_(b.lshr(words, constant("i16", [0, 3, 6, 9] * 4)), constant("i16", [7] * 16))
    return scaled(b, b.zext(steps, ir.VectorType(I32, 16)), d, 0.25, 0.125)


FORMAT = make_expanded(56, _expand, _scales, offset=OFFSET, group=16)
