"""Compiled kernels by name: their machine code, from a cache or from a compiler.

A kernel is a Numba function of int64 arguments, named `module:function` below the package, for
example `runtime.kernels.cpu.norm:norm_rows`. `load` returns addresses. A kernel that is in no
cache (kernel_cache.py) is compiled by quant/compiler.py in worker processes (kernel_workers.py):
this process never imports Numba, an LLVM abort there is an error here, and two cores compile twice
as fast. On Linux, object code is loaded by elf_loader.py; elsewhere by LLVM.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from ..errors import KernelError
from . import kernel_cache
from .elf import is_elf
from .elf_loader import link
from .target import Target, check_runs_here, target

Progress = Callable[[int, int], None]

_lock = Lock()
_engine: Any = None
_addresses: dict[tuple[Target, str], int] = {}


def load(kernels: Sequence[str], *, progress: Progress | None = None) -> dict[str, int]:
    """Addresses of kernels, compiling those that no cache has.

    Args:
        kernels: names, `module:function` below the package, all of one family
            (`kernel_cache.family`): quantizers, or what models run on.
        progress: called with (compiled, to compile), only when something must be compiled.

    Raises:
        KernelError: the CPU is not supported, or the compiler failed.
    """
    wanted = target()
    with _lock:
        needed = [k for k in dict.fromkeys(kernels) if (wanted, k) not in _addresses]
        if needed:
            check_runs_here(wanted)
            family = _family(needed)
            codes = kernel_cache.find(needed, wanted)
            folder = kernel_cache.cache_root() / kernel_cache.cache_key(wanted, family)
            absent = [k for k, code in codes.items() if code is None]
            if absent:
                from .kernel_workers import compile_all

                folder = kernel_cache.writable_directory(wanted, family)
                compile_all(absent, folder, wanted, progress)
                kernel_cache.prune(folder)
                codes |= {k: kernel_cache.read_object(folder, k) for k in absent}
            with contextlib.suppress(OSError):
                os.utime(folder)  # what `prune` goes by
            _link({k: _found(k, code, folder) for k, code in codes.items()}, wanted)
        return {k: _addresses[wanted, k] for k in kernels}


def build(
    kernels: Sequence[str],
    *,
    wanted: Target,
    root: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Path, int]:
    """Compile kernels without loading them; returns their folder and how many were compiled.

    Args:
        kernels: as for `load`.
        wanted: what they are for; need not be what this process runs on.
        root: the folder to prepare; the user's cache by default. A kernel that is there, sound and
            of these sources and versions, is left alone.
        progress: as for `load`.

    Raises:
        KernelError: the folder can't be written, or the compiler failed.
    """
    root = kernel_cache.cache_root() if root is None else root
    names = list(dict.fromkeys(kernels))
    key = kernel_cache.cache_key(wanted, _family(names))
    folder = kernel_cache.checked_writable(root, key, kernel_cache.about_target(wanted))
    absent = [k for k in names if kernel_cache.read_object(folder, k) is None]
    if absent:
        from .kernel_workers import compile_all

        compile_all(absent, folder, wanted, progress)
        for kernel in absent:
            _found(kernel, kernel_cache.read_object(folder, kernel), folder)
    return folder, len(absent)


def _family(kernels: Sequence[str]) -> str:
    families = {kernel_cache.family(kernel) for kernel in kernels} or {kernel_cache.MODEL}
    if len(families) > 1:
        raise ValueError(f"kernels of one family at a time, not of {', '.join(sorted(families))}")
    return families.pop()


def _found(kernel: str, code: bytes | None, folder: Path) -> bytes:
    if code is None:
        raise KernelError(
            f"the kernel {kernel} was compiled but can't be read back from {folder}; "
            "is the disk full?"
        )
    return code


def _link(codes: dict[str, bytes], wanted: Target) -> None:
    """Give the code addresses; those of `load` from now on."""
    symbols = {kernel: kernel_cache.symbol(kernel) for kernel in codes}
    if sys.platform == "linux" and all(map(is_elf, codes.values())):
        found = link(list(codes.values()), list(symbols.values()))
    else:
        found = _link_by_llvm(codes, symbols)
    for kernel, name in symbols.items():
        _addresses[wanted, kernel] = found[name]


def _link_by_llvm(codes: dict[str, bytes], symbols: dict[str, str]) -> dict[str, int]:
    """Where object files are not ELF: by an LLVM engine that holds object code only."""
    global _engine
    import llvmlite.binding as llvm

    if _engine is None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        _engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    for code in codes.values():
        _engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    _engine.finalize_object()
    return {name: _engine.get_function_address(name) for name in symbols.values()}
