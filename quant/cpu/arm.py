"""What ARM64 has instructions of its own for: the byte dot product, byte shuffles, yield."""

from collections.abc import Sequence

from llvmlite import ir

from .vector import I8, I32, Builder, Value, declare

# Lanes of a native vector of 32-bit integers.
NATIVE = {"neon_i8mm": 4, "neon_dot": 4, "neon": 4}


def dot4(b: Builder, acc: Value, u: Value, s: Value, isa: str, *, wide: bool) -> Value:
    """See dot4_code in simd.py; at most NATIVE lanes."""
    count = acc.type.count
    v32, v8 = ir.VectorType(I32, count), ir.VectorType(I8, 4 * count)
    signed = isa != "neon_i8mm"
    name = f"llvm.aarch64.neon.{'sdot' if signed else 'usdot'}.v{count}i32.v{4 * count}i8"
    function = declare(b, name, v32, [v32, v8, v8])
    assert not (signed and wide)
    return b.call(function, [acc, u, s])


def lookup_bytes(isa: str) -> int:
    """Bytes that `lookup` takes at once; 0: the target has no such instruction."""
    return 0


def lookup(b: Builder, index: Value, table: Sequence[int]) -> Value:
    """table[i] in each lane of indices below 16."""
    raise NotImplementedError


def pause(b: Builder) -> None:
    """Tell the core that this is a spin loop."""
    b.call(declare(b, "llvm.aarch64.hint", ir.VoidType(), [I32]), [I32(1)])
