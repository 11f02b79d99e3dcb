"""Bits of bytes, moved and masked: one instruction where the CPU multiplies bit matrices (GFNI)."""

from collections.abc import Sequence

from llvmlite import ir

from ..target import target
from .simd import LANES
from .vector import I8, I16, I64, Builder, Value, constant, declare, lanes

_GFNI = "+gfni" in target().features.split(",")


def bit_field(b: Builder, x: Value, shifts: Sequence[int], mask: int) -> Value:
    """(x >> shift) & mask of each byte of <n x i8>; negative shifts are to the left.

    `shifts`: one for each 8 bytes, at most 8 either way; the mask leaves no bits of a neighbour.
    """
    count, native = x.type.count, 4 * LANES
    assert count == 8 * len(shifts) and count % 16 == 0
    if _GFNI and count > native:
        half = count // 2
        parts = [(list(range(half)), shifts[: half // 8])]
        parts += [(list(range(half, count)), shifts[half // 8 :])]
        low, high = (bit_field(b, lanes(b, x, x, p), some, mask) for p, some in parts)
        return lanes(b, low, high, list(range(count)))
    if _GFNI:
        function = declare(b, f"llvm.x86.vgf2p8affineqb.{8 * count}", x.type, [x.type] * 2 + [I8])
        matrices = ir.VectorType(I64, count // 8)
        moves = ir.Constant(matrices, [_matrix(shift, mask) for shift in shifts])
        return b.call(function, [x, b.bitcast(moves, x.type), I8(0)])
    words = ir.VectorType(I16, count // 2)
    amounts = [shift for shift in shifts for _ in range(4)]
    v = b.bitcast(x, words)
    if any(a < 0 for a in amounts):
        v = b.shl(v, constant("i16", [max(0, -a) for a in amounts]))
    if any(a > 0 for a in amounts):
        v = b.lshr(v, constant("i16", [max(0, a) for a in amounts]))
    return b.and_(b.bitcast(v, x.type), constant("i8", [mask] * count))


def _matrix(shift: int, mask: int) -> int:
    """GFNI's matrix for it: byte 7 - i holds the bits whose sum becomes bit i."""
    rows = {7 - i: 1 << (i + shift) for i in range(8) if mask >> i & 1 and 0 <= i + shift < 8}
    return sum(row << (8 * place) for place, row in rows.items())
