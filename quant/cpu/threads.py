"""What the team needs: atomics, spinning, giving a core away, sleeping, calls by address."""

import sys
from typing import Any

from llvmlite import ir
from numba.core import types

from ..target import Target, target
from .native import native
from .simd import address
from .vector import I32, I64, Builder, Value, declare, make, pointer


def _as(code: Any) -> Any:
    return lambda builder, sig, args: code(builder, *args)


def _atomic_load(b: Builder, at: Any) -> Value:
    return b.load_atomic(pointer(b, at), "acquire", 8, typ=I64)


def _atomic_store(b: Builder, at: Any, value: Any) -> Value:
    b.store_atomic(value, b.inttoptr(at, I64.as_pointer()), "release", 8)
    return ir.Constant(I64, 0)


def _atomic_add(b: Builder, at: Any, value: Any) -> Value:
    return b.atomic_rmw("add", pointer(b, at), value, "acq_rel")


def _pause(b: Builder) -> Value:
    native.pause(b)
    return ir.Constant(I64, 0)


def _yield(b: Builder) -> Value:
    b.call(declare(b, "sched_yield", I32, []), [])
    return ir.Constant(I64, 0)


def _park(b: Builder, at: Any, value: Any) -> Value:
    """Sleep until woken, if the 32-bit word at `at` still holds `value` (FUTEX_WAIT_PRIVATE).

    Elsewhere than on Linux: sleep a tenth of a millisecond and look again.
    """
    if FUTEX:
        function = declare_variadic(b, "syscall")
        b.call(function, [I64(FUTEX), at, I64(128), value, I64(0), I64(0), I64(0)])
    else:
        b.call(declare(b, "usleep", I32, [I32]), [I32(100)])
    return I64(0)


def _wake(b: Builder, at: Any) -> Value:
    """Wake all who sleep on the word at `at` (FUTEX_WAKE_PRIVATE)."""
    if FUTEX:
        function = declare_variadic(b, "syscall")
        b.call(function, [I64(FUTEX), at, I64(129), I64(0x7FFFFFFF), I64(0), I64(0), I64(0)])
    return I64(0)


def declare_variadic(b: Builder, name: str) -> Any:
    """`long name(long, ...)`."""
    if name in b.module.globals:
        return b.module.globals[name]
    return ir.Function(b.module, ir.FunctionType(I64, [I64], var_arg=True), name)


def _futex_number(wanted: Target) -> int:
    """The number of the futex system call, 0 where there is none."""
    if wanted.is_host and sys.platform != "linux":
        return 0
    return {"x86_64": 202, "aarch64": 98}[wanted.arch]


FUTEX = _futex_number(target())
park = make("park", 2, lambda a: types.int64(address, types.int64), _as(_park))
wake = make("wake", 1, lambda a: types.int64(address), _as(_wake))


def _call(b: Builder, function: Any, *values: Any) -> Value:
    kind = ir.FunctionType(I64, [I64] * len(values))
    return b.call(b.inttoptr(function, kind.as_pointer()), values)


atomic_load = make("atomic_load", 1, lambda a: types.int64(address), _as(_atomic_load))
atomic_store = make(
    "atomic_store", 2, lambda a: types.int64(address, types.int64), _as(_atomic_store)
)
atomic_add = make("atomic_add", 2, lambda a: types.int64(address, types.int64), _as(_atomic_add))
pause = make("pause", 0, lambda a: types.int64(), _as(_pause))
yield_core = make("yield_core", 0, lambda a: types.int64(), _as(_yield))
call_address = make(
    "call_address", 4, lambda a: types.int64(address, *[types.int64] * 3), _as(_call)
)
cycles = make(
    "cycles",
    0,
    lambda a: types.int64(),
    _as(lambda b: b.call(declare(b, "llvm.readcyclecounter", I64, []), [])),
)
