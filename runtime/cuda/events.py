"""Points in a stream's order of work."""

from collections.abc import Callable

from .context import Context
from .driver import NOT_READY

_NO_TIMING, _DEFAULT = 2, 0  # flags of cuEventCreate
_EXTERNAL = 1  # a node of its own where it is captured


class CudaEvent:
    """See device.Event."""

    def __init__(
        self, context: Context, stream: int, discard: Callable[[str, int], None], timed: bool
    ) -> None:
        """discard: destroys a handle at a good moment."""
        self._context, self._stream, self._discard = context, stream, discard
        self._handle = 0
        context.use()
        self._handle = context.driver.handle("cuEventCreate", _DEFAULT if timed else _NO_TIMING)

    def record(self) -> None:
        """Here, after all that was given to the device so far."""
        self._context.use()
        self._context.driver.call("cuEventRecord", self._handle, self._stream)

    def record_on(self, stream: int) -> None:
        """In another stream's order."""
        self._context.driver.call("cuEventRecord", self._handle, stream)

    def hold(self, stream: int) -> None:
        """Let what comes next in another stream wait for it."""
        self._context.driver.call("cuStreamWaitEvent", stream, self._handle, 0)

    def record_in_graph(self) -> None:
        """The same within a capture: each launch of the graph records it."""
        name = "cuEventRecordWithFlags"
        self._context.driver.call(name, self._handle, self._stream, _EXTERNAL)

    def wait(self) -> None:
        """Until the device has come there (the last `record`)."""
        self._context.use()
        self._context.driver.call("cuEventSynchronize", self._handle)

    def done(self) -> bool:
        """Whether it has."""
        self._context.use()
        if (code := self._context.driver.code("cuEventQuery", self._handle)) == NOT_READY:
            return False
        if code:
            raise self._context.driver.error("cuEventQuery", code)
        return True

    def seconds_since(self, start: "CudaEvent") -> float:
        """From another one to this one; both were recorded, with timing, and are done."""
        self._context.use()
        return self._context.driver.milliseconds(start._handle, self._handle) / 1000

    def close(self) -> None:
        """Give it back."""
        handle, self._handle = self._handle, 0
        if handle:
            self._discard("cuEventDestroy_v2", handle)

    def __del__(self) -> None:
        """What nobody can wait for any more goes."""
        if getattr(self, "_handle", 0):
            self.close()
