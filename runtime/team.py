"""The team: the threads that run a program together."""

import ctypes
import sys
import threading
import time

import numpy as np
from numpy.typing import NDArray

from ..errors import ResourceError
from .crowding import Crowding
from .kernels.records import STEP
from .priority import lower_priority
from .threads import num_cpus


class Team:
    """`num_threads` threads, the caller of `run` being thread 0; the others wait in compiled code.

    Args:
        run_program, work: addresses of the interpreter's two kernels.
        step: the step's header; its `num_threads`, `barrier` and `job` fields are the team's.

    Raises:
        ResourceError: the system does not give so many threads.
    """

    def __init__(
        self, run_program: int, work: int, step: NDArray[np.int64], num_threads: int
    ) -> None:
        number = ctypes.c_int64
        self.num_threads = num_threads
        self._run = ctypes.CFUNCTYPE(number, number, number, number)(run_program)
        work_function = ctypes.CFUNCTYPE(number, number, number)(work)
        self._step = step
        # Cache lines: three of the barrier, two of the job, one of each thread's waits; aligned.
        self._memory = np.zeros(8 * (6 + num_threads), np.int64)
        base = -(-self._memory.ctypes.data // 64) * 64
        for name, value in (
            ("num_threads", num_threads),
            ("barrier", base),
            ("job", base + 192),
            ("waits", base + 320),
        ):
            step[getattr(STEP, name) // 8] = value
        first = (base + 320 - self._memory.ctypes.data) // 8
        self._waits = self._memory[first : first + 8 * num_threads : 8]
        self._crowding = Crowding(num_threads, num_cpus)
        self.ran_s = self.waited_s = 0.0  # of steps: time, and what of it was waited
        self._closed = False
        self._threads: list[threading.Thread] = []
        for i in range(1, num_threads):
            thread = threading.Thread(
                target=work_function, args=(step.ctypes.data, i), name=f"llamba-{i}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                self.close()
                raise ResourceError(
                    f"the system gives {i} of num_threads={num_threads} threads ({error}): "
                    "pass a smaller num_threads"
                ) from error
            self._threads.append(thread)

    def lower_priority(self, nice: int) -> None:
        """Of the threads beside the caller's."""
        lower_priority(self._threads, nice)

    def run(self, program: int, num_ops: int) -> None:
        """Run the records at `program`, the last of which has a barrier."""
        assert num_ops > 0
        assert not self._closed, "the first barrier would wait for threads that have ended"
        started = time.perf_counter()
        self._step[STEP.num_threads // 8] = self._crowding.active
        took = self._run(program, num_ops, self._step.ctypes.data)
        share = self.waiting(took)
        if share:
            self._waits.fill(0)
        seconds = time.perf_counter() - started
        self.ran_s += seconds
        self.waited_s += seconds * share
        self._crowding.ran(seconds, share)

    def waiting(self, took: int) -> float:
        """The share of a step's `took` cycles that threads waited for the last one.

        On average of all but that one: those that share a core wait in turn, and none of them long.
        """
        waited = int(self._waits.sum()) / max(1, self._crowding.active - 1)
        return min(1.0, waited / max(1, took))

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        threads, self._threads = self._threads, []
        if threads:
            self._step[STEP.num_threads // 8] = self.num_threads
            self._run(0, 0, self._step.ctypes.data)
        for thread in threads:
            thread.join()

    def __del__(self) -> None:
        """The threads read this object's memory: they must not outlive it."""
        if getattr(self, "_threads", None) and not sys.is_finalizing():
            self.close()
