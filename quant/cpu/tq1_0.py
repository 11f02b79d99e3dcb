"""TQ1_0 on the CPU; the block's layout is in quant/tq1_0.py."""

from llvmlite import ir

from .expanded import half, make_expanded, read
from .vector import I8, Builder, Value, constant, lanes, splat


def _place(element: int) -> tuple[int, int]:
    """(byte, digit) of an element."""
    first, count, start = (0, 32, 0) if element < 160 else (160, 16, 32)
    if element >= 240:
        first, count, start = 240, 4, 48
    return start + (element - first) % count, (element - first) // count


def _expand(b: Builder, at: Value) -> list[Value]:
    first, second, third = (
        read(b, at, i, ir.VectorType(I8, n)) for i, n in ((0, 32), (32, 16), (48, 4))
    )
    third = lanes(b, third, third, [i % 4 for i in range(16)])
    every = lanes(b, first, lanes(b, second, third, list(range(32))), list(range(64)))
    parts = []
    for k in range(0, 256, 64):
        places = [_place(k + j) for j in range(64)]
        x = lanes(b, every, every, [byte for byte, _ in places])
        x = b.mul(x, constant("i8", [3**digit for _, digit in places]))
        # x * 3 >> 8 is 1 from 86 on and 2 from 171 on.
        over = [
            b.zext(b.icmp_unsigned(">=", x, constant("i8", [n] * 64)), x.type) for n in (86, 171)
        ]
        parts.append(b.add(*over))
    return parts


def _scales(b: Builder, at: Value) -> Value:
    return splat(b, half(b, at, 52), 16)


FORMAT = make_expanded(54, _expand, _scales, offset=1, group=32)
