"""The IQ formats' codebooks in registers: points by their index, and signs by their bits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from ..grids import grid
from .expanded import read
from .simd import HAS_MASKS
from .vector import I8, I32, I64, Builder, Value, constant, declare, lanes


def table(name: str, offset: int, times: int = 1) -> NDArray[np.integer]:
    """A codebook's points as words: `times` a coordinate plus `offset` in each byte."""
    points = (grid(name) * np.int8(times) + np.int8(offset)).view(np.uint8)
    return points.view(f"<u{points.shape[1]}")[:, 0]


def look_up(
    b: Builder, name: str, words: NDArray[np.integer], indices: Sequence[Value]
) -> list[Value]:
    """Words of a table by their i64 indices, as vectors <64 x i8>.

    The table becomes a constant of the kernel's object code.
    """
    kind = ir.IntType(8 * words.itemsize)
    array = ir.ArrayType(kind, len(words))
    name = f"codebook_{name}"
    constants: Any = b.module.globals.get(name)
    if constants is None:
        constants = ir.GlobalVariable(b.module, array, name)
        constants.global_constant, constants.linkage = True, "internal"
        constants.initializer = ir.Constant(array, [int(word) for word in words])
        constants.align = 64
    many = 64 // words.itemsize
    vectors = []
    for first in range(0, len(indices), many):
        vector: Value = ir.Constant(ir.VectorType(kind, many), ir.Undefined)
        for i, index in enumerate(indices[first : first + many]):
            at = b.gep(constants, [I64(0), index], inbounds=True)
            vector = b.insert_element(vector, b.load(at, align=words.itemsize, typ=kind), I32(i))
        vectors.append(b.bitcast(vector, ir.VectorType(I8, 64)))
    return vectors


def with_high_bits(
    b: Builder, at: Value, low: int, high: Sequence[Value], shifts: Sequence[int], mask: int
) -> list[Value]:
    """Indices from their low bytes, which lie `low` bytes after an address, and from i64 words.

    A word is shifted up by the next of `shifts` (down where that is negative) for each of its
    indices; `mask` says where the bits are then. Scalars: taking indices out of a vector costs more
    than making them.
    """
    found = []
    for word in high:
        for shift in shifts:
            moved = b.shl(word, I64(shift)) if shift >= 0 else b.lshr(word, I64(-shift))
            byte = b.zext(read(b, at, low + len(found), I8), I64)
            found.append(b.or_(byte, b.and_(moved, I64(mask))))
    return found


def eighth_signs(b: Builder, sevens: Value) -> Value:
    """<n x i8> of seven signs (the top bit 0) -> of eight: the number of set bits becomes even."""
    kind = sevens.type
    count = b.call(declare(b, f"llvm.ctpop.v{kind.count}i8", kind, [kind]), [sevens])
    return b.or_(sevens, b.shl(count, constant("i8", [7] * kind.count)))


def spread_sevens(b: Builder, words: Value) -> Value:
    """<8 x i32>, each four times 7 bits from the lowest on -> <32 x i8>."""

    def splats(value: int) -> ir.Constant:
        return constant("i32", [value] * 8)

    pairs = b.or_(
        b.and_(words, splats(0x3FFF)), b.and_(b.shl(words, splats(2)), splats(0x3FFF0000))
    )
    bytes_ = b.or_(
        b.and_(pairs, splats(0x007F007F)), b.and_(b.shl(pairs, splats(1)), splats(0x7F007F00))
    )
    return b.bitcast(bytes_, ir.VectorType(I8, 32))


def signed(b: Builder, parts: Sequence[Value], bits: Value, offset: int) -> list[Value]:
    """Four <64 x i8> of offset + |v| -> offset + v, where a set bit of the <32 x i8> says v < 0."""
    result = []
    for k, part in enumerate(parts):
        if HAS_MASKS:
            few = b.bitcast(lanes(b, bits, bits, list(range(8 * k, 8 * k + 8))), I64)
            negative = b.bitcast(few, ir.VectorType(ir.IntType(1), 64))
        else:
            spread = lanes(b, bits, bits, [8 * k + j // 8 for j in range(64)])
            single = constant("i8", [1 << j % 8 for j in range(64)])
            negative = b.icmp_unsigned("==", b.and_(spread, single), single)
        flipped = b.sub(constant("i8", [2 * offset] * 64), part)
        result.append(b.select(negative, flipped, part))
    return result


def nibble_steps(b: Builder, scales: Value) -> Value:
    """<n x i8> of 4-bit scales, the low half of each byte first -> <16 x i32>.

    With 4 bytes each of the 8 scales comes twice.
    """
    count = scales.type.count
    wide = b.zext(scales, ir.VectorType(I32, count))
    wide = lanes(b, wide, wide, [j * count // 16 for j in range(16)])
    shifts = [4 * (j * count // 8 % 2) for j in range(16)]
    return b.and_(b.lshr(wide, constant("i32", shifts)), constant("i32", [15] * 16))


def shifted(b: Builder, parts: Sequence[Value], down: Value) -> list[Value]:
    """Four <64 x i8>, each 8 bytes of them 1 up, or 1 down where the <32 x i8> has a 1."""
    twice = b.add(down, down)
    by = b.sub(constant("i8", [1] * 32), twice)
    return [
        b.add(part, lanes(b, by, by, [8 * k + j // 8 for j in range(64)]))
        for k, part in enumerate(parts)
    ]
