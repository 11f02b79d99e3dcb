"""The PTX of kernels by name: from a folder for all users, the user's cache, or the compiler.

As quant/jit.py does it for CPUs, with the same folders and the same care. This process never
imports Numba; where that is absent, PTX that was made elsewhere from the same sources does.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from threading import Lock

from ...errors import DeviceError, KernelError
from ...quant import kernel_cache
from ..kernels import cuda
from ..kernels.cuda import launches

Progress = Callable[[int, int], None]

_BELOW = "runtime.kernels.cuda."  # where Launch counts from
_SUFFIX = ".ptx"
# Compute capabilities that PTX is made for, each good for all GPUs up to the next one. The oldest
# driver that reads it, as it counts: PTX 7.4 came with CUDA 11.4 (driver 470), 7.8 with 11.8 (520).
TARGETS = {"cuda-sm80": 80, "cuda-sm90": 90}
_OLDEST_DRIVERS = {80: 11040, 90: 11080}

_lock = Lock()


def architecture_for(capability: int, driver_version: int) -> int:
    """Which PTX a GPU and its driver take. DeviceError: none."""
    fitting = [
        a for a in TARGETS.values() if a <= capability and _OLDEST_DRIVERS[a] <= driver_version
    ]
    if not fitting:
        raise DeviceError(f"compute capability {capability / 10} is too low: 8.0 is needed")
    return max(fitting)


def load(
    kernels: Sequence[str], architecture: int, *, progress: Progress | None = None
) -> dict[str, str]:
    """The PTX of kernels, `module:function` as of Launch; what no cache has is compiled.

    Raises:
        KernelError: the compiler failed, or there is none.
    """
    names = list(dict.fromkeys(kernels))
    key = kernel_cache.gpu_key(architecture)
    own = _own_folder(architecture)
    with _lock:
        found: dict[str, str] = {}
        for folder in (*kernel_cache.trusted_directories(key), own):
            for name in [n for n in names if n not in found]:
                if (ptx := _read(folder, name, shared=folder != own)) is not None:
                    found[name] = ptx
        if absent := [name for name in names if name not in found]:
            _require_compiler(absent, architecture)
            folder = kernel_cache.writable(own, _about(architecture))
            _compile(absent, folder, architecture, progress)
            kernel_cache.prune(folder)
            found |= {name: _found(folder, name) for name in absent}
        with contextlib.suppress(OSError):
            os.utime(own)  # what `prune` goes by
    return found


def build(
    kernels: Sequence[str],
    architecture: int,
    *,
    root: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Path, int]:
    """Compile kernels ahead; returns their folder and how many were compiled.

    Args:
        kernels: as for `load`.
        architecture: 80 or 90.
        root: the folder to prepare, for machines of any kind; the user's cache by default.
        progress: called with (compiled, to compile).

    Raises:
        KernelError: the folder can't be written, or the compiler failed.
    """
    folder = _own_folder(architecture)
    if root is not None:
        folder = root / kernel_cache.gpu_key(architecture)
    absent = [name for name in dict.fromkeys(kernels) if _read(folder, name) is None]
    if absent:
        _require_compiler(absent, architecture)
        kernel_cache.checked_writable(folder.parent, folder.name, _about(architecture))
        _compile(absent, folder, architecture, progress)
        for name in absent:
            _found(folder, name)
    return folder, len(absent)


def every() -> list[str]:
    """The kernels that models commonly need: those that modules hold. (Imports Numba.)

    A module that makes kernels when their names are asked for (of a head size, say) has a module
    in launches/ whose `kernels()` names the usual ones.
    """
    from ...quant.cuda.simt import Kernel

    names: set[str] = set()
    for found in iter_modules(cuda.__path__):
        module = import_module(f"{cuda.__name__}.{found.name}")
        for name, value in vars(module).items():
            if isinstance(value, Kernel) and value.function.__module__ == module.__name__:
                names.add(f"{found.name}:{name}")
    for found in iter_modules(launches.__path__):
        module = import_module(f"{launches.__name__}.{found.name}")
        names.update(getattr(module, "kernels", list)())
    return sorted(names)


def keys() -> set[str]:
    """The names of folders with PTX that this llamba uses."""
    found = {kernel_cache.gpu_key(architecture) for architecture in TARGETS.values()}
    return found | {kernel_cache.versioned(key) for key in found}


def _own_folder(architecture: int) -> Path:
    """The user's: a new compiler makes new code there, as it does for CPUs."""
    return kernel_cache.cache_root() / kernel_cache.versioned(kernel_cache.gpu_key(architecture))


def _about(architecture: int) -> dict[str, str]:
    return {"target": f"cuda-sm{architecture}"}


def _read(folder: Path, name: str, *, shared: bool = False) -> str | None:
    found = kernel_cache.read_object(folder, _BELOW + name, shared=shared, suffix=_SUFFIX)
    return None if found is None else found.decode()


def _found(folder: Path, name: str) -> str:
    if (ptx := _read(folder, name)) is None:
        raise KernelError(
            f"the kernel {name} was compiled but can't be read back from {folder}; "
            "is the disk full?"
        )
    return ptx


def _require_compiler(names: Sequence[str], architecture: int) -> None:
    if kernel_cache.version("numba") == "none":
        where = os.environ.get(kernel_cache.PATH_VARIABLE)
        where = where or f"a folder that {kernel_cache.PATH_VARIABLE} names"
        raise KernelError(
            f"GPU kernels ({names[0]}, {len(names)} in all) are in no cache, and Numba, which "
            "compiles them, isn't installed: pip install numba, or put what `llamba kernels build "
            f"--target cuda-sm{architecture} -o FOLDER` made elsewhere into {where}"
        )


def _compile(
    names: Sequence[str], folder: Path, architecture: int, progress: Progress | None
) -> None:
    from ...quant.kernel_workers import Compiler, compile_all

    compiler = Compiler(f"sm_{architecture}", "cuda.compiler", (str(architecture),), {})
    compile_all([_BELOW + name for name in names], folder, compiler, progress)
