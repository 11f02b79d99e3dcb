"""Object files: what is read of them, how they come into memory, and what is refused."""

import ctypes
import struct
import sys
from typing import Any

import pytest

from llamba.errors import KernelError
from llamba.quant import target as targets
from llamba.quant.elf import read_object
from llamba.quant.elf_loader import link

TRIPLES = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]

# A constant vector, a table (an address in read-only data), calls of the C library and of another
# function, an address of a function kept in data.
SOURCE = """
@table = private unnamed_addr constant [4 x i64] [i64 10, i64 20, i64 30, i64 40], align 64
@handler = private constant ptr @second
declare ptr @memset(ptr, i32, i64)
declare i32 @sched_yield()
define internal i64 @second(i64 %x) noinline { %y = mul i64 %x, 3  ret i64 %y }
define i64 @first(i64 %i, i64 %out) {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  %to = inttoptr i64 %out to ptr
  store <4 x i32> <i32 1, i32 2, i32 3, i32 4>, ptr %to, align 1
  %behind = getelementptr i8, ptr %to, i64 16
  %ignored = call ptr @memset(ptr %behind, i32 7, i64 16)
  %n = call i32 @sched_yield()
  %f = load volatile ptr, ptr @handler
  %w = call i64 %f(i64 %v)
  ret i64 %w
}
"""


def compiled(source: str, triple: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target: Any = llvm.Target.from_triple(triple)
    module = llvm.parse_assembly(source)
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    return machine.emit_object(module)


HERE = f"{targets.machine()}-unknown-linux-gnu"
only_linux = pytest.mark.skipif(
    sys.platform != "linux" or HERE not in TRIPLES, reason="no ELF code runs here"
)


@only_linux
def test_linked_code_runs() -> None:
    """Several objects in one block: constants, tables, calls out of it and back."""
    one = compiled(SOURCE, HERE)
    other = compiled(SOURCE.replace("first", "other").replace("i64 10", "i64 11"), HERE)
    found = link([one, other], ["first", "other"])
    buffer = ctypes.create_string_buffer(32)
    for name, index, expected in (("first", 0, 30), ("first", 3, 120), ("other", 0, 33)):
        ctypes.memset(buffer, 0, 32)
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(found[name])
        assert function(index, ctypes.addressof(buffer)) == expected
        assert buffer.raw == struct.pack("<4i", 1, 2, 3, 4) + bytes([7]) * 16


@pytest.mark.parametrize("triple", TRIPLES)
def test_what_is_read(triple: str) -> None:
    found = read_object(compiled(SOURCE, triple))
    assert found.arch == triple.split("-")[0]
    assert found.undefined == {"memset", "sched_yield"}
    assert {"first", "second"} <= {symbol.name for symbol in found.symbols}


@only_linux
def test_unknown_calls_are_refused() -> None:
    source = "declare i32 @getpid()\ndefine i32 @f() { %n = call i32 @getpid()  ret i32 %n }"
    with pytest.raises(KernelError, match="calls getpid"):
        link([compiled(source, HERE)], ["f"])


@only_linux
def test_a_missing_kernel() -> None:
    with pytest.raises(KernelError, match="lacks third"):
        link([compiled(SOURCE, HERE)], ["first", "third"])


@only_linux
def test_damaged_objects() -> None:
    """Cut anywhere, or of another kind: KernelError, and nothing is loaded."""
    code = compiled(SOURCE, HERE)
    with pytest.raises(KernelError, match="no 64-bit ELF"):
        read_object(b"\xcf\xfa\xed\xfe" + bytes(100))
    for end in range(0, len(code), 29):
        try:
            link([code[:end]], ["first"])
        except KernelError:
            continue
        raise AssertionError(end)
