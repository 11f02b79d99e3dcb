"""Asking for memory before it is needed."""

from typing import Any

from llvmlite import ir
from numba.core import types

from .vector import I32, I64, Builder, Value, declare, make, pointer

# How far ahead the decode kernels ask for weights, in bytes. Measured with 2 threads from DRAM:
# 12 % over none for Q4_K; 3072 to 6144 are alike, 1024 gains nothing.
AHEAD = 4096


def _prefetch(b: Builder, at: Any) -> Value:
    function = declare(b, "llvm.prefetch.p0", ir.VoidType(), [ir.PointerType(), I32, I32, I32])
    b.call(function, [pointer(b, at), *(ir.Constant(I32, v) for v in (0, 3, 1))])
    return ir.Constant(I64, 0)


def prefetch_ahead(num_bytes: int) -> Any:
    """prefetch_ahead(address): ask for the lines of `num_bytes` bytes, AHEAD of the address."""
    return _make("prefetch_ahead", num_bytes, AHEAD)


def prefetch(num_bytes: int) -> Any:
    """prefetch(address): ask for the lines of `num_bytes` bytes there."""
    return _make("prefetch", num_bytes, 0)


def _make(name: str, num_bytes: int, ahead: int) -> Any:
    def code(b: Builder, sig: Any, args: Any) -> Value:
        for offset in range(0, num_bytes, 64):
            _prefetch(b, b.add(args[0], I64(ahead + offset)))
        return I64(0)

    return make(name, 1, lambda a: types.int64(types.int64), code)
