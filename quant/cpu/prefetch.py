"""Asking for memory before it is needed."""

from typing import Any

from llvmlite import ir
from numba.core import types

from .vector import I32, I64, Builder, Value, declare, make, pointer

# How far ahead the decode kernels ask for weights, in bytes. Q4_K and Q6_K from DRAM: 4096 to 8192
# are alike, 2048 and 16384 gain little. What is read once leaves the second-level cache alone
# (locality 0): 2 to 3 % faster than locality 3.
AHEAD = 8192


def _prefetch(b: Builder, at: Any, locality: int) -> Value:
    function = declare(b, "llvm.prefetch.p0", ir.VoidType(), [ir.PointerType(), I32, I32, I32])
    b.call(function, [pointer(b, at), *(ir.Constant(I32, v) for v in (0, locality, 1))])
    return ir.Constant(I64, 0)


def prefetch_ahead(num_bytes: int) -> Any:
    """prefetch_ahead(address): ask for the lines of `num_bytes` bytes, AHEAD of the address."""
    return _make("prefetch_ahead", num_bytes, AHEAD, 0)


def prefetch(num_bytes: int) -> Any:
    """prefetch(address): ask for the lines of `num_bytes` bytes there."""
    return _make("prefetch", num_bytes, 0, 3)


def _make(name: str, num_bytes: int, ahead: int, locality: int) -> Any:
    def code(b: Builder, sig: Any, args: Any) -> Value:
        for offset in range(0, num_bytes, 64):
            _prefetch(b, b.add(args[0], I64(ahead + offset)), locality)
        return I64(0)

    return make(name, 1, lambda a: types.int64(types.int64), code)
