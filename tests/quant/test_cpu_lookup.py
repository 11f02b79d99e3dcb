"""The lookup of table values: the CPU's shuffles and the plain LLVM that any CPU runs agree."""

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from llamba.quant.iq4_nl import VALUES
from llamba.quant.target import target

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("count", [16, 32, 64])
@pytest.mark.parametrize("shuffles", [True, False])
def test_lookup(count: int, shuffles: bool) -> None:
    from llamba.quant.cpu.lookup import lookup

    kind, module = ir.VectorType(ir.IntType(8), count), ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2), "f")
    b = ir.IRBuilder(function.append_basic_block())
    source, result = (b.inttoptr(a, ir.PointerType()) for a in function.args)
    index = b.load(source, align=1, typ=kind)
    b.store(lookup(b, index, VALUES, *([] if shuffles else ["another"])), result, align=1)
    b.ret_void()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    wanted = target()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=wanted.cpu, features=wanted.features, jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("f"))
    indices = np.random.default_rng(count).integers(0, 16, count).astype(np.int8)
    got = np.zeros(count + 8, np.int8)
    run(indices.ctypes.data, got.ctypes.data)
    np.testing.assert_array_equal(got[:count], np.array(VALUES)[indices])
    assert not got[count:].any()
