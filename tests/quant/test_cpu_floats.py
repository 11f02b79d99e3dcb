"""Float instructions and what stands for them: the same results, in scalars and vectors."""

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from llamba.quant.target import target

pytestmark = pytest.mark.kernels

SCALARS = {np.float16: ir.HalfType(), np.float32: ir.FloatType()}


def run(
    code: Callable[[Any, Any], Any], values: NDArray[Any], result: type, count: int
) -> NDArray[Any]:
    """code(builder, value) of all values, `count` at a time (1: as a scalar)."""
    kinds = [SCALARS[values.dtype.type], SCALARS[result]]
    if count > 1:
        kinds = [ir.VectorType(kind, count) for kind in kinds]
    module = ir.Module()
    address = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [address, address]), "f")
    b: Any = ir.IRBuilder(function.append_basic_block())
    source, out = (b.inttoptr(a, ir.PointerType()) for a in function.args)
    value = code(b, b.load(source, align=1, typ=kinds[0]))
    assert value.type == kinds[1]
    b.store(value, out, align=1)
    b.ret_void()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=target().cpu, features=target().features, jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("f"))
    assert len(values) % count == 0
    got = np.zeros(len(values), result)
    for i in range(0, len(values), count):
        call(
            values.ctypes.data + i * values.itemsize,
            got.ctypes.data + i * got.itemsize,
        )
    return got


def same(got: NDArray[Any], expected: NDArray[Any]) -> None:
    """Bit by bit, but for what a NaN says."""
    nan = np.isnan(expected)
    assert (np.isnan(got) == nan).all() and (np.signbit(got) == np.signbit(expected))[~nan].all()
    np.testing.assert_array_equal(got[~nan], expected[~nan])


def floats() -> NDArray[np.float32]:
    """Every float16, every value half way between two, their neighbours, and any bits at all."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(halves[np.isfinite(halves)])
    # Beyond 65504 there is what would be 65536.
    ties = np.concatenate([(finite[1:] + finite[:-1]) / 2, [65520, -65520]]).astype(np.float32)
    near = [halves, ties, *(np.nextafter(ties, np.float32(s)) for s in (np.inf, -np.inf))]
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint32).view(np.float32)
    found = np.concatenate([*near, bits])
    return found[: len(found) // 16 * 16].copy()


@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("instruction", [True, False])
def test_float16_to_float32(count: int, instruction: bool) -> None:
    from llamba.quant.cpu import floats as code

    if instruction and not code.HALVES:
        pytest.skip("this CPU has no such instruction")
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    got = run(lambda b, x: code.widen_code(b, x, instruction), values, np.float32, count)
    same(got, values.astype(np.float32))


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("instruction", [True, False])
def test_float32_to_float16(count: int, instruction: bool) -> None:
    from llamba.quant.cpu import floats as code

    if instruction and not code.HALVES:
        pytest.skip("this CPU has no such instruction")
    values = floats()
    got = run(lambda b, x: code.narrow_code(b, x, instruction), values, np.float16, count)
    with np.errstate(over="ignore", invalid="ignore"):
        same(got, values.astype(np.float16))


@pytest.mark.parametrize("instruction", [True, False])
def test_nearest(instruction: bool) -> None:
    from llamba.quant.cpu import floats as code

    if instruction and not code.ROUNDS:
        pytest.skip("this CPU has no such instruction")
    halves = np.arange(-1024, 1024, dtype=np.float32) / 2
    spread = np.random.default_rng(0).uniform(-(2**22), 2**22, 4096).astype(np.float32)
    values = np.concatenate([halves, np.nextafter(halves, np.float32(np.inf)), spread])
    got = run(lambda b, x: code.nearest_code(b, x, instruction), values, np.float32, 16)
    np.testing.assert_array_equal(got, np.rint(values))


def test_multiply_add() -> None:
    """Once or twice rounded: the same where the product is exact."""
    from llamba.quant.cpu import floats as code

    def square_less_one(b: Any, x: Any) -> Any:
        return code.fma_code(b, x, x, ir.Constant(x.type, [-1.0] * x.type.count))

    values = np.arange(-2048, 2048, dtype=np.float32)
    np.testing.assert_array_equal(
        run(square_less_one, values, np.float32, 8), values.astype(np.float64) ** 2 - 1
    )
