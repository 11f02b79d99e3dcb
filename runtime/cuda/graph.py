"""Work captured once and started by one call."""

import ctypes
from collections.abc import Callable
from ctypes import c_uint64

from .context import Context

# Of CUstreamCaptureMode. Calls that might disturb a capture fail in the first one; cuBLAS may make
# such calls, when it loads a kernel for the first time, and has to be allowed to.
THREAD_LOCAL, RELAXED = 1, 2


class CudaGraph:
    """A captured graph, ready to be launched on its stream."""

    def __init__(
        self,
        context: Context,
        stream: int,
        issue: Callable[[], None],
        mode: int,
        discard: Callable[[str, int], None],
    ) -> None:
        """issue: gives the work to the stream. discard: destroys a handle at a good moment."""
        self._context, self._stream, self._discard = context, stream, discard
        self._executable = 0
        driver = context.driver
        context.use()
        driver.call("cuStreamBeginCapture_v2", stream, mode)
        graph = c_uint64()
        try:
            issue()
        except BaseException:
            driver.code("cuStreamEndCapture", stream, ctypes.byref(graph))
            if graph.value:
                driver.code("cuGraphDestroy", graph.value)
            raise
        driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        try:
            number = ctypes.c_size_t()
            driver.call("cuGraphGetNodes", graph.value, None, ctypes.byref(number))
            self.num_nodes = number.value
            self._executable = driver.handle("cuGraphInstantiateWithFlags", graph.value, 0)
        finally:
            driver.code("cuGraphDestroy", graph.value)
        self._launch = driver.function("cuGraphLaunch")

    def launch(self) -> None:
        """Give it to the device, in order."""
        self._context.use()
        if not self._executable:
            raise ValueError("the graph was closed")
        if code := self._launch(self._executable, self._stream):
            raise self._context.driver.error("cuGraphLaunch", code)

    def close(self) -> None:
        """Give back what it takes."""
        executable, self._executable = self._executable, 0
        if executable:
            self._discard("cuGraphExecDestroy", executable)

    def __del__(self) -> None:
        """Graphs of dropped programs go, too."""
        if getattr(self, "_executable", 0):
            self.close()


class StepwiseGraph:
    """Stands in for a graph where each launch is to be waited for (LLAMBA_CUDA_STEPWISE)."""

    def __init__(self, launch: Callable[[], None]) -> None:
        self.launch = launch

    def close(self) -> None:
        """There is nothing to give back."""
