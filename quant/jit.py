"""Compiled kernels by name: the object-code cache, its key, and the workers that fill it.

A kernel is a Numba function of int64 arguments, named `module:function` below the package, for
example `runtime.kernels.cpu.norm:norm_rows`. `load` returns addresses. A kernel that is not in the
cache is compiled by quant/compiler.py in worker processes: this process never imports Numba, an
LLVM abort there is an error here, and two cores compile twice as fast. Loading object code
takes LLVM alone (about 50 ms).

The cache directory's name is a hash of every kernel source, the versions and the target, because
Numba's own cache notices neither an edit in another file nor a changed constant. An object file
ends with the SHA-256 of its code: one that a crash or a full disk cut short is compiled again.
"""

import atexit
import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from ..errors import KernelError
from .target import Target, target

Progress = Callable[[int, int], None]

_PACKAGE = Path(__file__).resolve().parents[1]
_ROOT = __name__.split(".")[0]  # "llamba", or the clone's name when imported by path
_STALE_DAYS = 30

_lock = Lock()
_engine: Any = None
_addresses: dict[tuple[Target, str], int] = {}


def symbol(kernel: str) -> str:
    """The exported symbol of a kernel."""
    return "llamba_" + kernel.replace(".", "_").replace(":", "__")


def cache_root() -> Path:
    """The folder that holds one directory per (sources, versions, target).

    By the rules of models/cache_folder.py, but kernels do without a home folder.
    """
    if own := os.environ.get("LLAMBA_CACHE"):
        return Path(own).expanduser().absolute() / "kernels"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "llamba" / "kernels"
    try:
        return Path.home() / ".cache" / "llamba" / "kernels"
    except RuntimeError:  # no HOME and no passwd entry
        return _homeless_folder() / "kernels"


@lru_cache
def _homeless_folder() -> Path:
    """A folder below the temporary one. What lies there is run: it must be ours alone."""
    folder = Path(tempfile.gettempdir()) / f"llamba-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return folder
    return _temporary_folder()


@lru_cache
def _temporary_folder() -> Path:
    """A folder for this process, which takes it away in the end."""
    folder = tempfile.mkdtemp(prefix="llamba-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write_object(folder: Path, kernel: str, code: bytes) -> None:
    """Put a kernel's object code into a cache directory, all of it or nothing."""
    handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code + hashlib.sha256(code).digest())
        os.replace(name, folder / f"{symbol(kernel)}.o")
    except OSError as error:  # the disk is full
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise OSError(error.errno, error.strerror, str(folder)) from error


def read_object(folder: Path, kernel: str) -> bytes | None:
    """A kernel's object code from a cache directory; None when it is absent or damaged."""
    try:
        data = (folder / f"{symbol(kernel)}.o").read_bytes()
    except OSError:
        return None
    code, digest = data[:-32], data[-32:]
    return code if hashlib.sha256(code).digest() == digest else None


@lru_cache
def cache_key(wanted: Target) -> str:
    """Hash of all kernel sources, the compilers' versions and the target."""
    digest = hashlib.sha256()
    files = [_PACKAGE / "quant" / name for name in ("jit.py", "compiler.py", "target.py")]
    files += [_PACKAGE / "quant" / name for name in ("grids.py", "iq4_nl.py", "mxfp4.py")]  # tables
    files += sorted((_PACKAGE / "quant" / "cpu").glob("*.py"))
    files += sorted((_PACKAGE / "runtime" / "kernels").glob("records.py"))
    files += sorted((_PACKAGE / "runtime" / "kernels" / "cpu").glob("*.py"))
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update(f"{version('numba')} {version('llvmlite')} {sys.version_info[:2]}".encode())
    digest.update(f"{wanted.arch} {wanted.cpu} {wanted.features} {wanted.isa}".encode())
    return digest.hexdigest()[:24]


def _writable_directory(wanted: Target) -> Path:
    """The cache directory, or a temporary one (with a warning) where it can't be written."""
    folder = cache_root() / cache_key(wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        warnings.warn(
            f"kernels can't be cached in {folder} ({error.strerror}); they are compiled again at "
            "each start. Set LLAMBA_CACHE to a writable folder.",
            stacklevel=3,
        )
        return _temporary_folder()
    return folder


def _prune(keep: Path) -> None:
    """Remove the directories of other sources or targets that nothing has loaded for a month."""
    if keep.parent != cache_root():  # the stand-in for a cache that can't be written
        return
    limit = time.time() - _STALE_DAYS * 86400
    with contextlib.suppress(OSError):  # another process may be at it, too
        for folder in keep.parent.iterdir():
            if folder != keep and folder.is_dir() and folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)


class _Worker:
    """One compiler process; fed by a thread, one kernel name a line."""

    def __init__(self, folder: Path, wanted: Target) -> None:
        own = wanted.is_host  # Numba itself only knows the host's architecture
        environment = dict(
            os.environ,
            NUMBA_CPU_NAME=wanted.cpu if own else "",
            NUMBA_CPU_FEATURES=wanted.features if own else "",
            # The SIMD is explicit; the vectorizers only lengthen the scalar remainders.
            NUMBA_LOOP_VECTORIZE="0",
            NUMBA_SLP_VECTORIZE="0",
            PYTHONPATH=os.pathsep.join(p for p in sys.path if p),
        )
        command = f"from {_ROOT}.quant.compiler import main; main()"
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            # -P: nothing is imported from the folder that the user happens to be in.
            [sys.executable, "-P", "-c", command, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            text=True,
        )

    def compile(self, kernel: str) -> None:
        """Compile one kernel; KernelError with the compiler's last lines when that fails."""
        assert self.process.stdin and self.process.stdout
        answer = ""
        try:
            self.process.stdin.write(kernel + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            pass  # it has died: there is no answer
        if answer.strip() != "ok":
            self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().decode(errors="replace").strip()
            if not os.environ.get("LLAMBA_DEBUG"):
                lines = lines.splitlines()[-1] if lines else ""
            raise KernelError(
                f"the kernel {kernel} could not be compiled for {target().cpu}: "
                f"{lines or 'LLVM aborted'}"
            )

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def _compile(
    kernels: Sequence[str], folder: Path, wanted: Target, progress: Progress | None
) -> None:
    """Compile kernels in as many processes as there are cores (Numba compiles under one lock)."""
    queue, done = list(reversed(kernels)), 0
    failures: list[Exception] = []
    guard = Lock()
    workers: list[_Worker] = []

    def work() -> None:
        nonlocal done
        worker = None
        try:
            worker = _Worker(folder, wanted)
            workers.append(worker)
            while True:
                with guard:
                    if not queue or failures:
                        return
                    kernel = queue.pop()
                worker.compile(kernel)
                with guard:
                    done += 1
                    if progress:
                        progress(done, len(kernels))
        except OSError as error:
            failures.append(KernelError(f"the kernel compiler can't be run: {error}"))
        except Exception as error:  # raised again by the caller; `progress` may raise anything
            failures.append(error)
        finally:
            if worker:
                worker.close()

    if progress:
        progress(0, len(kernels))
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    threads = [Thread(target=work) for _ in range(min(cores, 4, len(kernels)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C: the compilers have perhaps not been told
        failures.append(KernelError(f"the compilation was stopped: {type(error).__name__}"))
        for worker in list(workers):
            worker.process.kill()
        raise
    if failures:
        raise failures[0]


def load(kernels: Sequence[str], *, progress: Progress | None = None) -> dict[str, int]:
    """Addresses of kernels, compiling those that the cache lacks.

    Args:
        kernels: names, `module:function` below the package.
        progress: called with (compiled, to compile), only when something must be compiled.

    Raises:
        KernelError: the CPU is not supported, or the compiler failed.
    """
    global _engine
    wanted = target()
    with _lock:
        needed = [k for k in dict.fromkeys(kernels) if (wanted, k) not in _addresses]
        if needed:
            folder = cache_root() / cache_key(wanted)
            codes = {k: read_object(folder, k) for k in needed}
            if None in codes.values():
                folder = _writable_directory(wanted)
                absent = [k for k, code in codes.items() if code is None]
                _compile(absent, folder, wanted, progress)
                _prune(folder)
                codes |= {k: read_object(folder, k) for k in absent}
            with contextlib.suppress(OSError):
                os.utime(folder)  # what _prune goes by
            if _engine is None:
                _engine = _create_engine()
            import llvmlite.binding as llvm

            for kernel, code in codes.items():
                if code is None:
                    raise KernelError(
                        f"the kernel {kernel} was compiled but can't be read back from {folder}; "
                        "is the disk full?"
                    )
                _engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            _engine.finalize_object()
            for kernel in needed:
                _addresses[wanted, kernel] = _engine.get_function_address(symbol(kernel))
        return {k: _addresses[wanted, k] for k in kernels}


def _create_engine() -> Any:
    """An LLVM engine that holds object code only."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
