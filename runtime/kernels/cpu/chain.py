"""Byte dot products in a chain, for targets whose products of bytes are sums of two in 16 bits.

AVX2 takes three instructions where VNNI has one: bytes times bytes to words, their pairs to sums,
addition. Where weights are small, several products fit into the words before they are widened:
eight of 4 bits, four of 5, two of 6.
"""

from llvmlite import ir

from ....quant.cpu.blocks32 import CpuFormat
from ....quant.cpu.native import native
from ....quant.cpu.simd import ISA
from ....quant.cpu.vector import I16, I32, Builder, Value, declare, lanes
from .formats import QUANTIZED

# The largest unsigned weight of formats with few bits.
_LARGEST = {
    **{"q2_k": 3, "q3_k": 7, "tq1_0": 2, "tq2_0": 2},
    **dict.fromkeys(("q4_0", "q4_1", "q4_k"), 15),
    **dict.fromkeys(("q5_0", "q5_1", "q5_k"), 31),
    "q6_k": 63,
}
_PRODUCTS = {
    4: "llvm.x86.ssse3.pmadd.ub.sw.128",
    8: "llvm.x86.avx2.pmadd.ub.sw",
    16: "llvm.x86.avx512.pmaddubs.w.512",
}
_SUMS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}


def chain_of(fmt: CpuFormat) -> int:
    """How many products of a format's weights with activations fit; 1: no chain."""
    if ISA not in ("avx2", "avx512bw", "sse4"):
        return 1
    largest = (_LARGEST.get(name, 127) for name, one in QUANTIZED.items() if one is fmt)
    return 1 if fmt.wide else max(1, 32767 // (2 * 127 * next(largest, 127)))


def byte_products(b: Builder, u: Value, s: Value) -> Value:
    """Of each pair of bytes u[2i] * s[2i] + u[2i + 1] * s[2i + 1], in 16 bits."""
    count, width = u.type.count // 4, native.NATIVE[ISA]
    if count > width:
        parts = []
        for k in range(0, 4 * count, 4 * width):
            some = list(range(k, k + 4 * width))
            parts.append(byte_products(b, lanes(b, u, u, some), lanes(b, s, s, some)))
        return _joined(b, parts)
    kind = ir.VectorType(I16, 2 * count)
    return b.call(declare(b, _PRODUCTS[count], kind, [u.type, s.type]), [u, s])


def pair_sums(b: Builder, words: Value) -> Value:
    """Of each pair of words their sum, in 32 bits."""
    count, width = words.type.count // 2, native.NATIVE[ISA]
    if count > width:
        parts = []
        for k in range(0, 2 * count, 2 * width):
            parts.append(pair_sums(b, lanes(b, words, words, list(range(k, k + 2 * width)))))
        return _joined(b, parts)
    ones, kind = ir.Constant(words.type, [1] * (2 * count)), ir.VectorType(I32, count)
    return b.call(declare(b, _SUMS[count], kind, [words.type] * 2), [words, ones])


def _joined(b: Builder, parts: list[Value]) -> Value:
    while len(parts) > 1:
        both = list(range(2 * parts[0].type.count))
        parts = [lanes(b, parts[i], parts[i + 1], both) for i in range(0, len(parts), 2)]
    return parts[0]
