"""The team: threads that run a program together, parked between steps."""

import ctypes
import threading
from collections.abc import Callable

Run = Callable[[int, int, int, int], int]


class Team:
    """`num_threads` threads, the caller being thread 0. Between steps the others wait on a lock.

    A raw Lock wakes in about 13 us; Semaphore, Event and Condition take two to three times that.
    """

    def __init__(self, run_program: int, num_threads: int) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
        self.num_threads = num_threads
        self._run: Run = kind(run_program)
        self._job = (0, 0, 0)
        self._closed = False
        self._locks = [threading.Lock() for _ in range(num_threads - 1)]
        self._threads = []
        for number, lock in enumerate(self._locks, start=1):
            lock.acquire()
            thread = threading.Thread(
                target=self._work, args=(number, lock), name=f"llamba-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _work(self, number: int, lock: threading.Lock) -> None:
        while True:
            lock.acquire()
            if self._closed:
                return
            self._run(*self._job, number)

    def run(self, program: int, num_ops: int, step: int) -> None:
        """Run the records at `program`; returns when every thread is through."""
        self._job = (program, num_ops, step)
        for lock in self._locks:
            lock.release()
        self._run(program, num_ops, step, 0)

    def close(self) -> None:
        """End the threads."""
        if self._closed:
            return
        self._closed = True
        for lock in self._locks:
            lock.release()
        for thread in self._threads:
            thread.join()
