"""What x86-64 has instructions of its own for: the byte dot product, byte shuffles, pause."""

from collections.abc import Sequence

from llvmlite import ir

from .vector import I8, I16, I32, Builder, Value, constant, declare

# Lanes of a native vector of 32-bit integers.
NATIVE = {"avx512vnni": 16, "avx512bw": 16, "avxvnni": 8, "avx2": 8, "sse4": 4, "sse2": 4}

# Bytes times bytes to words, and words times words to sums of pairs, by the vectors' bits.
_PMADDUBSW = {
    128: "llvm.x86.ssse3.pmadd.ub.sw.128",
    256: "llvm.x86.avx2.pmadd.ub.sw",
    512: "llvm.x86.avx512.pmaddubs.w.512",
}
_PMADDWD = {
    128: "llvm.x86.sse2.pmadd.wd",
    256: "llvm.x86.avx2.pmadd.wd",
    512: "llvm.x86.avx512.pmaddw.d.512",
}

# A broadcast comes with the load: an operand from a lane of a vector would need a shuffle.
LANE_OPERAND = False

# Byte shuffles by the vector's bytes; each looks up within its own 16 bytes.
_SHUFFLES = {
    16: "llvm.x86.ssse3.pshuf.b.128",
    32: "llvm.x86.avx2.pshuf.b",
    64: "llvm.x86.avx512.pshuf.b.512",
}


def wide_bias(isa: str) -> int:
    """See dot4_code in simd.py: one operand is unsigned."""
    return 0


def dot4(b: Builder, acc: Value, u: Value, s: Value, isa: str, *, wide: bool) -> Value:
    """See dot4_code in simd.py; at most NATIVE lanes."""
    count = acc.type.count
    v32, v16, v8 = (ir.VectorType(t, n * count) for t, n in ((I32, 1), (I16, 2), (I8, 4)))
    if isa in ("avx512vnni", "avxvnni"):
        function = declare(b, f"llvm.x86.avx512.vpdpbusd.{count * 32}", v32, [v32, v8, v8])
        return b.call(function, [acc, u, s])
    words = declare(b, _PMADDWD[32 * count], v32, [v16, v16])
    if not wide and isa != "sse2":  # without SSSE3 bytes must become words first
        pairs = b.call(declare(b, _PMADDUBSW[32 * count], v16, [v8, v8]), [u, s])
        ones = ir.Constant(v16, [1] * (2 * count))
        return b.add(acc, b.call(words, [pairs, ones]))
    eight = ir.Constant(v16, [8] * (2 * count))
    u16, s16 = b.bitcast(u, v16), b.bitcast(s, v16)
    even = b.call(
        words,
        [b.and_(u16, ir.Constant(v16, [255] * (2 * count))), b.ashr(b.shl(s16, eight), eight)],
    )
    odd = b.call(words, [b.lshr(u16, eight), b.ashr(s16, eight)])
    return b.add(acc, b.add(even, odd))


def lookup_bytes(isa: str) -> int:
    """Bytes that `lookup` takes at once; 0: the target has no such instruction."""
    shuffles = {"avx512vnni": 64, "avx512bw": 64, "avxvnni": 32, "avx2": 32, "sse4": 16}
    return shuffles.get(isa, 0)


def lookup(b: Builder, index: Value, table: Sequence[int]) -> Value:
    """table[i] in each lane of indices below 16."""
    count = index.type.count
    function = declare(b, _SHUFFLES[count], index.type, [index.type] * 2)
    return b.call(function, [constant("i8", list(table) * (count // 16)), index])


def pause(b: Builder) -> None:
    """Tell the core that this is a spin loop."""
    b.call(declare(b, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
