"""How fast this machine reads memory, which is what decoding one sequence can't go beyond."""

import ctypes
import threading
import time

import numpy as np

from ..errors import ResourceError
from ..quant import jit
from .load import Progress
from .memory import available_memory

_KERNEL = "runtime.kernels.cpu.bandwidth:read"
_MOST, _LEAST, _STEP = 256 << 20, 16 << 20, 256  # bytes; more than the caches of most CPUs hold
_MEASURE_S = 0.3


class MemoryReader:
    """Memory to read, and the kernel that does it; some tenths of a second each time.

    Raises KernelError: no kernel for this CPU.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        update = None if progress is None else lambda done, total: progress("compile", done, total)
        address = jit.load([_KERNEL], progress=update)[_KERNEL]
        number = ctypes.c_int64
        self._read = ctypes.CFUNCTYPE(number, number, number)(address)
        available = available_memory()
        size = _MOST if available is None else max(_LEAST, min(_MOST, available // 4))
        self._memory = np.ones(size, np.uint8)

    def bytes_per_second(self, num_threads: int) -> float:
        """All threads together, each with a part of its own.

        Raises ResourceError: the system does not give so many.
        """
        part = len(self._memory) // num_threads // _STEP * _STEP
        done = [0] * num_threads
        start = threading.Barrier(num_threads + 1)

        def work(index: int) -> None:
            at = self._memory.ctypes.data + index * part
            try:
                start.wait()
            except threading.BrokenBarrierError:
                return
            while True:  # once at least, however late this thread gets to run
                self._read(at, part)
                done[index] += part
                if time.perf_counter() >= ends:
                    return

        ends = 0.0  # known when all have started
        threads = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
        try:
            for thread in threads:
                thread.start()
        except RuntimeError as error:
            start.abort()  # those that have started wait for the others
            raise ResourceError(
                f"the system does not give {num_threads} threads ({error}): fewer are measured "
                "with --threads"
            ) from error
        began = time.perf_counter()
        ends = began + _MEASURE_S
        start.wait()
        for thread in threads:
            thread.join()
        return sum(done) / (time.perf_counter() - began)
