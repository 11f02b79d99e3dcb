"""What ARM64 has instructions of its own for: the byte dot product, byte tables, a spin's pause."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from .vector import I8, I16, I32, Builder, Value, constant, declare, lanes

# Lanes of a native vector of 32-bit integers.
NATIVE = {"neon_i8mm": 4, "neon_dot": 4, "neon": 4}

# The dot product takes one operand from a lane of a vector: a broadcast of its own costs as much
# as the product.
LANE_OPERAND = True


def wide_bias(isa: str) -> int:
    """See dot4_code in simd.py: without usdot both operands are signed bytes."""
    return 0 if isa == "neon_i8mm" else 128


def dot4(b: Builder, acc: Value, u: Value, s: Value, isa: str, *, wide: bool) -> Value:
    """See dot4_code in simd.py; at most NATIVE lanes."""
    if wide and wide_bias(isa):  # u - 128 as a signed byte
        u = b.xor(u, constant("i8", [0x80] * u.type.count))
    v32, v16, v8 = acc.type, ir.VectorType(I16, 8), ir.VectorType(I8, 16)
    assert (v32.count, u.type.count) == (4, 16)
    if isa == "neon_i8mm":
        return b.call(_intrinsic(b, "usdot.v4i32.v16i8", v32, [v32, v8, v8]), [acc, u, s])
    if isa == "neon_dot":  # it is the last operand that may be a lane
        return b.call(_intrinsic(b, "sdot.v4i32.v16i8", v32, [v32, v8, v8]), [acc, s, u])
    # 16 products; their neighbours' sums fit into 16 bits; those of four.
    product = _intrinsic(b, "smull.v8i16", v16, [ir.VectorType(I8, 8)] * 2)
    halves = [[*range(8)], [*range(8, 16)]]
    low, high = (b.call(product, [lanes(b, u, u, h), lanes(b, s, s, h)]) for h in halves)
    pairs = b.call(_intrinsic(b, "addp.v8i16", v16, [v16, v16]), [low, high])
    return b.add(acc, b.call(_intrinsic(b, "saddlp.v4i32.v8i16", v32, [v16]), [pairs]))


def _intrinsic(b: Builder, name: str, result: ir.Type, arguments: list[ir.Type]) -> Any:
    return declare(b, f"llvm.aarch64.neon.{name}", result, arguments)


def lookup_bytes(isa: str) -> int:
    """Bytes that `lookup` takes at once; 0: the target has no such instruction."""
    return 16 if isa in NATIVE else 0


def lookup(b: Builder, index: Value, table: Sequence[int]) -> Value:
    """table[i] in each lane of indices below 16."""
    v8 = ir.VectorType(I8, 16)
    function = _intrinsic(b, "tbl1.v16i8", v8, [v8, v8])
    return b.call(function, [constant("i8", list(table)), index])


def pause(b: Builder) -> None:
    """Tell the core that this is a spin loop.

    `isb sy` waits until the pipeline is empty, some 10 ns, about what x86's `pause` does; `yield`
    does nothing at all on most cores.
    """
    b.call(declare(b, "llvm.aarch64.isb", ir.VoidType(), [I32]), [I32(15)])
