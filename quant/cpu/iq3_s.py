"""IQ3_S on the CPU; the block's layout is in quant/iq3_s.py."""

from llvmlite import ir

from .codebook import look_up, nibble_steps, signed, table
from .expanded import half, make_expanded, read, scaled
from .vector import I8, I16, I32, I64, Builder, Value, constant, lanes

_OFFSET = 15
_TABLE = table("iq3_s", _OFFSET)


def _taken_apart(b: Builder, indices: Value) -> list[Value]:
    """<64 x i16> -> i64 each. By fours: a lane of 64 bits costs no more than one of 16."""
    fours = b.bitcast(indices, ir.VectorType(I64, 16))
    found = []
    for i in range(16):
        four = b.extract_element(fours, I32(i))
        found += [b.and_(b.lshr(four, I64(shift)), I64(0xFFFF)) for shift in (0, 16, 32, 48)]
    return found


def _expand(b: Builder, at: Value) -> list[Value]:
    high = read(b, at, 66, ir.VectorType(I8, 8))
    high = b.zext(lanes(b, high, high, [i // 8 for i in range(64)]), ir.VectorType(I16, 64))
    high = b.shl(high, constant("i16", [8 - i % 8 for i in range(64)]))
    high = b.and_(high, constant("i16", [0x100] * 64))
    indices = _taken_apart(b, b.or_(b.zext(read(b, at, 2, ir.VectorType(I8, 64)), high.type), high))
    signs = read(b, at, 74, ir.VectorType(I8, 32))
    return signed(b, look_up(b, "iq3_s", _TABLE, indices), signs, _OFFSET)


def _scales(b: Builder, at: Value) -> Value:
    steps = nibble_steps(b, read(b, at, 106, ir.VectorType(I8, 4)))
    return scaled(b, steps, half(b, at, 0), 2.0, 1.0)


FORMAT = make_expanded(110, _expand, _scales, offset=_OFFSET, group=32)
