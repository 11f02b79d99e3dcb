"""What Q2_K and Q3_K share: the 2-bit values of 256 elements in 64 bytes.

Bits 2j and 2j + 1 of a byte in the first 32 are the 32-group j, of one in the last the group 4 + j.
So part j, 64 bytes, meets two pieces of 32 activations, 128 apart; it has four scales.
"""

from typing import Any

from llvmlite import ir

from .simd import address, make, shuffle, vec
from .vector import I16, I64, Builder, Value, constant, lanes, pointer


def _crumb(b: Builder, at: Any, j: int) -> Value:
    x = b.load(pointer(b, at), align=1, typ=vec("i8", 64).llvm)
    shorts = ir.VectorType(I16, 32)
    x = b.bitcast(b.lshr(b.bitcast(x, shorts), constant("i16", [2 * j] * 32)), x.type)
    return b.and_(x, constant("i8", [3] * 64))


def crumbs(first: int) -> list[Any]:
    """Four intrinsics part(block) -> u8x64 of 2 bits; they lie from byte `first` on."""
    kind = vec("i8", 64)

    def part(j: int) -> Any:
        def code(b: Builder, sig: Any, args: Any) -> Value:
            return _crumb(b, b.add(args[0], I64(first)), j)

        return make(f"crumbs_{j}", 1, lambda a: kind(address), code)

    return [part(j) for j in range(4)]


def crumbs_with_high_bits(first: int) -> list[Any]:
    """Four intrinsics part(block, high) -> u8x64 of 3 bits; `high` has part j's third in bit j."""
    kind = vec("i8", 64)

    def part(j: int) -> Any:
        def code(b: Builder, sig: Any, args: Any) -> Value:
            x = _crumb(b, b.add(args[0], I64(first)), j)
            h = b.bitcast(args[1], ir.VectorType(I16, 32))
            h = b.shl(h, constant("i16", [max(0, 2 - j)] * 32))
            h = b.lshr(h, constant("i16", [max(0, j - 2)] * 32))
            return b.or_(x, b.and_(b.bitcast(h, x.type), constant("i8", [4] * 64)))

        return make(f"crumbs_{j}", 2, lambda a: kind(address, kind), code)

    return [part(j) for j in range(4)]


def _high_bits_code(b: Builder, sig: Any, args: Any) -> Value:
    h = b.load(pointer(b, args[0]), align=1, typ=vec("i8", 32).llvm)
    h = b.bitcast(lanes(b, h, h, list(range(32)) * 2), ir.VectorType(I16, 32))
    return b.bitcast(b.lshr(h, constant("i16", [0] * 16 + [4] * 16)), vec("i8", 64).llvm)


# high_bits(at): 32 bytes, whose bit j belongs to the 32-group j, as `crumbs_with_high_bits` reads
# them.
high_bits = make("high_bits", 1, lambda a: vec("i8", 64)(address), _high_bits_code)


def _pieces(j: int) -> Any:
    """The int8 activations that part j meets; `q` is the address of the 256."""
    kind, half = vec("i8", 64), vec("i8", 32)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        low, high = (
            b.load(pointer(b, b.add(args[0], I64(offset))), align=1, typ=half.llvm)
            for offset in (32 * j, 128 + 32 * j)
        )
        return lanes(b, low, high, list(range(64)))

    return make(f"pieces_{j}", 1, lambda a: kind(address), code)


PIECES = [_pieces(j) for j in range(4)]
# Of 16 scales, one a 16 elements, those of part j in the lanes of its dot product.
SPREAD = [
    shuffle("f32", 16, [first + 2 * j + lane // 4 for first in (0, 8) for lane in range(8)])
    for j in range(4)
]
