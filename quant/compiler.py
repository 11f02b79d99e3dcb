"""The worker process that compiles kernels: Numba to LLVM to object code."""

import importlib
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

from .elf import is_elf, read_object
from .elf_loader import ALLOWED
from .kernel_cache import symbol, write_object
from .target import Target, target


def compile_kernel(kernel: str) -> bytes:
    """The object code of one kernel, with one exported symbol: `int64 f(int64, ...)`.

    Numba's own entry (status code, pointers for the result and the exception) is wrapped, all else
    made internal and dropped, so that the object needs neither Numba nor Python.
    """
    from numba import types

    wanted = target()
    machine = _machine(wanted)
    module_name, function_name = kernel.split(":")
    root = __name__.rsplit(".", 2)[0]
    function: Any = getattr(importlib.import_module(f"{root}.{module_name}"), function_name)
    count = len(inspect.signature(function.py_func).parameters)
    signature = (types.int64,) * count
    function.compile(signature)
    compiled = function.overloads[signature]
    inner = f'@"{compiled.fndesc.llvm_func_name}"'
    arguments = ", ".join(f"i64 %a{i}" for i in range(count))
    declared = "".join(", i64" for _ in range(count))
    wrapper = f"""
define i64 @{symbol(kernel)}({arguments}) {{
  %result = alloca i64
  %exception = alloca ptr
  %status = call i32 {inner}(ptr %result, ptr %exception, {arguments})
  %value = load i64, ptr %result
  ret i64 %value
}}
declare i32 {inner}(ptr, ptr{declared})
"""
    module = whole_module(compiled.library.get_llvm_str(), wrapper, symbol(kernel), machine)
    if folder := os.environ.get("LLAMBA_ASM"):  # for reading what a kernel became
        Path(folder, f"{symbol(kernel)}.s").write_text(machine.emit_assembly(module))
    called = {f.name for f in module.functions if f.is_declaration}
    code = machine.emit_object(module)
    # Code generation adds calls of its own: for what the target has no instruction of.
    foreign = {n for n in called if not n.startswith("llvm.")}
    foreign |= read_object(code).undefined if is_elf(code) else set()
    if foreign := foreign - ALLOWED:
        raise RuntimeError(f"{kernel} calls {', '.join(sorted(foreign))}")
    return code


def _machine(wanted: Target) -> Any:
    """LLVM's code generator; for another architecture than this one's Linux code."""
    import llvmlite.binding as llvm

    if wanted.is_host:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        found = llvm.Target.from_default_triple()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        found = llvm.Target.from_triple(f"{wanted.arch}-unknown-linux-gnu")
    return found.create_target_machine(
        cpu=wanted.cpu,
        features=wanted.features,
        opt=3,
        reloc="pic" if _near(wanted) else "default",
        codemodel="small" if _near(wanted) else "jitdefault",
        jit=True,
    )


def _near(wanted: Target) -> bool:
    """Whether code may name its constants by their distance.

    Code that may lie anywhere needs a register for the address of each constant (and four
    instructions on ARM64): matmul_rows had none left and loaded seven constants in each turn of its
    loop. ELF's sections are loaded into one block of memory (elf_loader.py).
    """
    return sys.platform == "linux" or not wanted.is_host


def leave_code_to_us() -> None:
    """Numba only writes LLVM's language; what follows is done once, above, and for the target.

    Numba itself would optimize it, and make the host's machine code of it that nobody runs: more
    than half of the time, and loops unrolled twice.
    """
    from numba.core import codegen, cpu

    def no_executable(self: Any, library: Any, fndesc: Any, env: Any) -> Any:
        library._ensure_finalized()
        return [].append  # never called; Numba tells functions apart by its identity

    libraries: Any = codegen.JITCodeLibrary
    contexts: Any = cpu.CPUContext
    libraries._finalize_specific = lambda self: None
    libraries._optimize_functions = lambda self, module: None
    libraries._optimize_final_module = lambda self: None
    contexts.get_executable = no_executable


def whole_module(text: str, wrapper: str, exported: str, machine: Any) -> Any:
    """What Numba wrote and our entry to it as one optimized LLVM module that exports the entry."""
    import llvmlite.binding as llvm

    module = _parse(text, machine)
    module.link_in(_parse(wrapper, machine))
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name != exported:
            value.linkage = llvm.Linkage.internal
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def _parse(text: str, machine: Any) -> Any:
    """A module, laid out as the target machine wants it."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(
        re.sub(r'^target (?:datalayout|triple) = ".*"$', "", text, flags=re.M)
    )
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    return module


def main() -> None:
    """Read kernel names from stdin, one a line; answer `ok` when the object file is there."""
    import warnings

    warnings.simplefilter("ignore")
    leave_code_to_us()
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        kernel = line.strip()
        code = compile_kernel(kernel)
        write_object(folder, kernel, code)
        print("ok", flush=True)
