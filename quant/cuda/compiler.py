"""Kernels of simt.py to PTX: Numba types them, LLVM writes it. Needs no GPU and no toolkit."""

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from ..compiler import leave_code_to_us, whole_module
from ..kernel_cache import symbol, write_object
from .simt import Kernel

# The oldest PTX version that has all that the kernels say, by compute capability: drivers refuse
# newer ones than their own. 7.8 came with CUDA 11.8 (driver 520), 7.4 with 11.4 (driver 470).
_PTX_VERSIONS = {80: 74, 90: 78}
ARCHITECTURES = tuple(_PTX_VERSIONS)


def find_kernel(kernel: str) -> Kernel:
    """The kernel of a name `module:function`, relative to the package."""
    module_name, function_name = kernel.split(":")
    root = __name__.rsplit(".", 3)[0]
    return getattr(importlib.import_module(f"{root}.{module_name}"), function_name)


def parameters(kernel: Kernel) -> list[str]:
    """Each parameter's kind: "i64" or "f32"."""
    signature = inspect.signature(kernel.function)
    return ["f32" if p.annotation is float else "i64" for p in signature.parameters.values()]


def compile_ptx(name: str, architecture: int) -> str:
    """The PTX of a kernel for GPUs of this compute capability (80, 90) and newer ones."""
    from numba import types

    found = find_kernel(name)
    kinds = parameters(found)
    signature = tuple(types.float32 if k == "f32" else types.int64 for k in kinds)
    found.dispatcher.compile(signature)
    compiled = found.dispatcher.overloads[signature]
    inner = f'@"{compiled.fndesc.llvm_func_name}"'
    llvm_kinds = ["float" if k == "f32" else "i64" for k in kinds]
    taken = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(llvm_kinds))
    declared = "".join(f", {kind}" for kind in llvm_kinds)
    passed = "".join(f", {argument}" for argument in taken.split(", ") if argument)
    bounds = f'"nvvm.maxntid"="{found.block}"'
    if found.min_blocks:
        bounds += f' "nvvm.minctasm"="{found.min_blocks}"'
    wrapper = f"""
define ptx_kernel void @{symbol(name)}({taken}) {bounds} {{
  %result = alloca i64
  %exception = alloca ptr
  %status = call i32 {inner}(ptr %result, ptr %exception{passed}) alwaysinline
  ret void
}}
declare i32 {inner}(ptr, ptr{declared})
"""
    machine = _machine(architecture)
    text = compiled.library.get_llvm_str()
    if architecture < 90:
        text = re.sub(r'asm sideeffect "griddepcontrol[^"]*"', 'asm sideeffect ""', text)
    module = whole_module(text, wrapper, symbol(name), machine)
    called = {f.name for f in module.functions if f.is_declaration}
    if foreign := {n for n in called if not n.startswith("llvm.")}:
        raise RuntimeError(f"{name} calls {', '.join(sorted(foreign))}")
    ptx = machine.emit_assembly(module)
    if ".local" in ptx:
        raise RuntimeError(f"{name} keeps values in local memory: an index is not constant")
    return ptx


def _machine(architecture: int) -> Any:
    import llvmlite.binding as llvm

    _set_options()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    features = f"+ptx{_PTX_VERSIONS[architecture]}"
    return target.create_target_machine(cpu=f"sm_{architecture}", features=features, opt=3)


_options_set = False


def _set_options() -> None:
    """Options of the whole process: products and sums become one instruction; loops unroll."""
    global _options_set
    import llvmlite.binding as llvm

    if not _options_set:
        llvm.set_option("llamba", "-nvptx-fma-level=2")
        llvm.set_option("llamba", "-unroll-threshold=100000")
        llvm.set_option("llamba", "-unroll-full-max-count=256")
        _options_set = True


def main() -> None:
    """Read kernel names from stdin, one a line; answer `ok` when a kernel's PTX is there."""
    import warnings

    warnings.simplefilter("ignore")
    leave_code_to_us()
    folder, architecture = Path(sys.argv[1]), int(sys.argv[2])
    for line in sys.stdin:
        kernel = line.strip()
        write_object(folder, kernel, compile_ptx(kernel, architecture).encode(), ".ptx")
        print("ok", flush=True)
