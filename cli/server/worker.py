"""One thread for what takes long, which the end of the process does not wait for."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class Worker:
    """Calls functions one after the other in a thread of its own.

    asyncio's pool is for those who submit requests, and Python waits for its threads in the end.
    Always the same thread, as the allocator keeps memory for each that ever allocated: models that
    come and go would take more and more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """Wait for function(*args), which goes on if the wait is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result, problem = None, None
            try:
                result = function(*args)
            except BaseException as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settle, result, problem)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(work)
        return await asyncio.shield(future)

    def stop(self) -> None:
        """End the thread after what it was given; never waits."""
        self._calls.put(None)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
            del work  # holds what it returned
