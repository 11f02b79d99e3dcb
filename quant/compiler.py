"""The worker process that compiles kernels: Numba to LLVM to object code."""

import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any

from .jit import symbol, write_object
from .target import target

# What object code may call outside itself: LLVM's own library calls the yield in the barrier,
# and what parks a thread.
_ALLOWED = {"memset", "memcpy", "memmove", "sched_yield", "syscall", "usleep"}


def compile_kernel(kernel: str) -> bytes:
    """The object code of one kernel, with one exported symbol: `int64 f(int64, ...)`.

    Numba's own entry (status code, pointers for the result and the exception) is wrapped, all else
    made internal and dropped, so that the object needs neither Numba nor Python.
    """
    import llvmlite.binding as llvm
    from numba import types

    wanted = target()
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
    module = llvm.parse_assembly(compiled.library.get_llvm_str())
    module.link_in(llvm.parse_assembly(wrapper))
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name != symbol(kernel):
            value.linkage = llvm.Linkage.internal
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=wanted.cpu,
        features=wanted.features,
        opt=3,
        # Constants at addresses relative to the code: absolute ones take registers, for want of
        # which LLVM loads the hot loops' vectors anew in each turn.
        reloc="pic",
        codemodel="small",
        jit=True,
    )
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    foreign = [
        f.name
        for f in module.functions
        if f.is_declaration and not f.name.startswith("llvm.") and f.name not in _ALLOWED
    ]
    if foreign:
        raise RuntimeError(f"{kernel} calls {', '.join(foreign)}")
    if folder := os.environ.get("LLAMBA_ASM"):  # for reading what a kernel became
        Path(folder, f"{symbol(kernel)}.s").write_text(machine.emit_assembly(module))
    return machine.emit_object(module)


def main() -> None:
    """Read kernel names from stdin, one a line; answer `ok` when the object file is there."""
    import warnings

    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        kernel = line.strip()
        code = compile_kernel(kernel)
        write_object(folder, kernel, code)
        print("ok", flush=True)
