"""The processes that compile kernels: as many as there are cores, fed by one thread each."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread

from ..errors import KernelError
from .kernel_cache import forget
from .target import Target, name_of

Progress = Callable[[int, int], None]

_ROOT = __name__.split(".")[0]  # "llamba", or the clone's name when imported by path
_WORKER_BYTES = 250 << 20  # that a compiler takes; 190 to 240 MB were seen


@dataclass(frozen=True)
class Compiler:
    """What a worker runs: `main` of a module of quant/.

    label: what it compiles for. arguments: after the folder. environment: beside the process's own.
    """

    label: str
    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]


def compiler_for(wanted: Target) -> Compiler:
    """The one for a CPU."""
    own = wanted.is_host  # Numba itself only knows the host's architecture
    environment = {
        "LLAMBA_TARGET": name_of(wanted),
        "NUMBA_CPU_NAME": wanted.cpu if own else "",
        "NUMBA_CPU_FEATURES": wanted.features if own else "",
    }
    return Compiler(wanted.cpu, "compiler", (), environment)


class Worker:
    """One compiler process; fed by a thread, one kernel name a line."""

    def __init__(self, folder: Path, wanted: Target | Compiler) -> None:
        compiler = wanted if isinstance(wanted, Compiler) else compiler_for(wanted)
        self.label = compiler.label
        environment = dict(
            os.environ,
            # The SIMD is explicit; the vectorizers only lengthen the scalar remainders.
            NUMBA_LOOP_VECTORIZE="0",
            NUMBA_SLP_VECTORIZE="0",
            PYTHONPATH=os.pathsep.join(p for p in sys.path if p),
        )
        environment |= compiler.environment
        command = f"from {_ROOT}.quant.{compiler.module} import main; main()"
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            # -P: nothing is imported from the folder that the user happens to be in.
            [sys.executable, "-P", "-c", command, str(folder), *compiler.arguments],
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
                f"the kernel {kernel} could not be compiled for {self.label}: "
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


def _num_workers(meminfo: Path = Path("/proc/meminfo")) -> int:
    """One for each core that may be used, at most 4, as far as there is memory for them."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        words = meminfo.read_text().partition("MemAvailable:")[2].split()
        room = int(words[0]) * 1024 // _WORKER_BYTES
    except (OSError, ValueError, IndexError):
        room = cores
    return max(1, min(cores, room, 4))


def compile_all(
    kernels: Sequence[str], folder: Path, wanted: Target | Compiler, progress: Progress | None
) -> None:
    """Compile kernels in as many processes as there are cores (Numba compiles under one lock)."""
    queue, done = list(reversed(kernels)), 0
    failures: list[Exception] = []
    guard = Lock()
    workers: list[Worker] = []

    def work() -> None:
        nonlocal done
        worker = None
        try:
            worker = Worker(folder, wanted)
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
    threads = [Thread(target=work) for _ in range(min(_num_workers(), len(kernels)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C: the compilers have perhaps not been told
        failures.append(KernelError(f"the compilation was stopped: {type(error).__name__}"))
        for worker in list(workers):
            worker.process.kill()
            worker.process.wait()
            forget(folder, worker.process.pid)
        raise
    if failures:
        raise failures[0]
