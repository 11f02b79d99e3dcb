"""Bits of bytes by GFNI matrices (as far as this CPU has them) and by shifts; sums of rows."""

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from llamba.quant.target import target

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("count", [16, 32, 64])
@pytest.mark.parametrize("gfni", [True, False])
@pytest.mark.parametrize(("shifts", "mask"), [((-4, -2), 0x30), ((0, 2), 0x30), ((3, -1), 16)])
def test_bit_field(
    monkeypatch: pytest.MonkeyPatch, count: int, gfni: bool, shifts: tuple[int, int], mask: int
) -> None:
    from llamba.quant.cpu import bits

    monkeypatch.setattr(bits, "_GFNI", bits._GFNI and gfni)
    amounts = [shifts[2 * i // (count // 8)] for i in range(count // 8)]
    kind, module = ir.VectorType(ir.IntType(8), count), ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2), "f")
    b = ir.IRBuilder(function.append_basic_block())
    source, result = (b.inttoptr(a, ir.PointerType()) for a in function.args)
    x = b.load(source, align=1, typ=kind)
    b.store(bits.bit_field(b, x, amounts, mask), result, align=1)
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
    values = np.random.default_rng(count).integers(0, 256, count).astype(np.uint8)
    got = np.zeros(count, np.uint8)
    run(values.ctypes.data, got.ctypes.data)
    wide, by = values.astype(int), np.repeat(amounts, 8)
    moved = np.where(by < 0, wide << np.maximum(-by, 0), wide >> np.maximum(by, 0))
    np.testing.assert_array_equal(got, moved & mask)


def test_totals() -> None:
    """Sixteen vectors of lanes, each with a sum of its own."""
    from llamba.quant.cpu.simd import kernel, store_f32x16
    from llamba.quant.cpu.totals import totals

    @kernel
    def sums(rows, out):
        store_f32x16(out, totals(rows))
        return 0

    rows = np.random.default_rng(0).integers(-999, 999, (16, 16)).astype(np.float32)
    got = np.zeros(16, np.float32)
    sums(rows.ctypes.data, got.ctypes.data)
    np.testing.assert_array_equal(got, rows.sum(axis=1))
