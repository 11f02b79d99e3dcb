"""Small pieces of 32-value blocks to vectors: nibbles, single bits, scales; each CPU's own way.

Blocks lie side by side in the file, so that each piece of several blocks has to be gathered. What a
target does best is chosen here; the formats only say what they need.
"""

from collections.abc import Sequence

from llvmlite import ir

from ..target import target
from .simd import ISA
from .vector import I8, I16, I32, I64, Builder, Value, constant, declare, lanes, pointer

I1 = ir.IntType(1)

_MASKS = ISA == "avx512vnni"  # registers of a bit a byte
_PERMUTE = "+avx512vbmi" in target().features.split(",")  # of single bytes
# Affine maps of bytes over GF(2): a shift and a mask in one instruction. The numbers are the bytes
# of a matrix: those that keep the low nibble, and that move the high one down.
_AFFINE = {"avx512vnni": 64, "avxvnni": 32, "avx2": 32}.get(ISA, 0)
_AFFINE = _AFFINE if "+gfni" in target().features.split(",") else 0
_LOW, _HIGH = 0x0102040800000000, 0x1020408000000000


def load_at(b: Builder, at: Value, offset: int, kind: ir.Type) -> Value:
    """What lies so many bytes after an address."""
    return b.load(pointer(b, b.add(at, ir.Constant(I64, offset))), align=1, typ=kind)


def joined(b: Builder, parts: Sequence[Value]) -> Value:
    """A power of two of equal vectors, side by side."""
    while len(parts) > 1:
        both = list(range(2 * parts[0].type.count))
        parts = [lanes(b, parts[i], parts[i + 1], both) for i in range(0, len(parts), 2)]
    return parts[0]


def gather(b: Builder, at: Value, stride: int, count: int, kind: ir.Type, n: int) -> Value:
    """`count` little vectors <n x kind>, `stride` bytes apart, side by side."""
    return joined(b, [load_at(b, at, i * stride, ir.VectorType(kind, n)) for i in range(count)])


def twice(b: Builder, at: Value, first: int, stride: int, blocks: int, end: int) -> Value:
    """The 16 bytes at `first`, and those a stride further, each twice: <32 * blocks x i8>.

    `end`: how many bytes may be read from the address.
    """
    if _PERMUTE and blocks == 2 and end >= 64:
        # One permutation, which is cheaper than joining halves. Reading ends with the blocks.
        start = min(first, end - 64)
        x = load_at(b, at, start, ir.VectorType(I8, 64))
        order = [first - start + stride * (j // 32) + j % 16 for j in range(64)]
    else:
        x = gather(b, b.add(at, I64(first)), stride, blocks, I8, 16)
        order = [16 * (j // 32) + j % 16 for j in range(32 * blocks)]
    return lanes(b, x, x, order)


def nibbles_of_twice(b: Builder, x: Value) -> Value:
    """<32k x i8> with 16 bytes twice -> of each 32 first the low, then the high nibbles."""
    count = x.type.count
    if not _AFFINE:
        words = ir.VectorType(I32, count // 4)
        shifts = constant("i32", ([0] * 4 + [4] * 4) * (count // 32))
        moved = b.bitcast(b.lshr(b.bitcast(x, words), shifts), x.type)
        return b.and_(moved, constant("i8", [15] * count))
    if count > _AFFINE:
        parts = [list(range(i, i + _AFFINE)) for i in range(0, count, _AFFINE)]
        return joined(b, [nibbles_of_twice(b, lanes(b, x, x, part)) for part in parts])
    name = f"llvm.x86.vgf2p8affineqb.{8 * count}"
    matrix = b.bitcast(constant("i64", [_LOW, _LOW, _HIGH, _HIGH] * (count // 32)), x.type)
    return b.call(declare(b, name, x.type, [x.type, x.type, I8]), [x, matrix, I8(0)])


def add_where(b: Builder, x: Value, words: Sequence[Value], value: int) -> Value:
    """Add a power of two above all bits of x to its bytes whose bit is set: an i32 for each 32."""
    count = x.type.count
    none, some = ir.Constant(x.type, None), constant("i8", [value] * count)
    if _MASKS:
        bits = words[0]
        if len(words) > 1:
            low, high = (b.zext(word, I64) for word in words)
            bits = b.or_(low, b.shl(high, I64(32)))
        on = b.bitcast(bits, ir.VectorType(I1, count))
        if _AFFINE:
            return b.select(on, b.add(x, some), x)
        return b.or_(x, b.select(on, some, none))
    spread = []
    for word in words:
        few = b.bitcast(word, ir.VectorType(I8, 4))
        spread.append(lanes(b, few, few, [j // 8 for j in range(32)]))
    single = constant("i8", [1 << (j % 8) for j in range(32)] * len(words))
    on = b.icmp_unsigned("!=", b.and_(joined(b, spread), single), none)
    return b.or_(x, b.select(on, some, none))


def pairs(b: Builder, at: Value, stride: int, blocks: int, offset: int, kind: ir.Type) -> Value:
    """A number (16 or 8 bits) of each of 4, 2 or 1 blocks, each twice: <8 x kind>, zeros behind.

    Two blocks have the 32 bytes that may be loaded at once, since one has at least 16.
    """
    size = 2 if kind == I16 else 1
    if blocks == 1:
        one = load_at(b, at, offset, ir.VectorType(kind, 1))
        return lanes(b, one, ir.Constant(one.type, None), [0, 0] + [1] * 6)
    if _MASKS and offset + stride + size <= 32:
        many = ir.VectorType(kind, 32 // size)
        parts = [load_at(b, at, 2 * stride * k, many) for k in range(blocks // 2)]
        places = [(offset + stride * k) // size for k in range(2)]
    else:
        parts = [gather(b, b.add(at, I64(offset)), stride, blocks, kind, 1)]
        places = list(range(blocks))
    parts.append(ir.Constant(parts[0].type, None))
    if len(places) == 2 and blocks == 4:
        places += [place + parts[0].type.count for place in places]
    order = [place for place in places for _ in range(2)]
    order += [parts[0].type.count] * (8 - len(order))
    return lanes(b, parts[0], parts[1], order)
