"""The real one of device.py: an NVIDIA GPU through its driver."""

import contextlib
import ctypes
import os
import weakref
from collections import deque
from collections.abc import Sequence
from ctypes import c_uint64
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DeviceError
from ..kernels.cuda.launch import Work
from . import ptx_cache
from .blas import WORKSPACE_BYTES, Blas
from .context import Context
from .device import Copy, Device, Event, Graph, HostBuffer, Progress
from .driver import (
    LOWEST_CAPABILITY,
    OUT_OF_MEMORY,
    device_info,
    open_driver,
    too_old,
)
from .events import CudaEvent
from .graph import RELAXED, THREAD_LOCAL, CudaGraph, StepwiseGraph
from .kernel_modules import Function, load_functions
from .pinned import PinnedBuffer, Ring
from .prepared import Prepared, describe

_NON_BLOCKING_STREAM = 1
_PREPARED, _SHORT = 64, 16  # lists of work that are kept packed: so many, and of shorter ones
_GB = 1e9
_Kept = dict[int, tuple[Sequence[Work], tuple[Work, ...], Prepared]]  # by identity


class NvidiaDevice:
    """See device.Device. Memory that was never released goes with `close`."""

    def __init__(self, index: int) -> None:
        """DeviceError: there is no such GPU, or it can't be used."""
        driver = open_driver()
        info = device_info(driver, index)
        if info.architecture < LOWEST_CAPABILITY:
            raise DeviceError(too_old(info))
        self.info, self.index, self.name = info, index, info.name
        self.architecture, self.total_bytes = info.architecture, info.total_bytes
        self.num_multiprocessors = info.num_multiprocessors
        self.ptx_architecture = ptx_cache.architecture_for(info.architecture, info.driver_version)
        self._driver = driver
        self._label = f"GPU {index} ({info.name})"
        self._context = Context(index, self._label)
        self._use = self._context.use
        try:
            self._use()
            self._stream = driver.handle("cuStreamCreate", _NON_BLOCKING_STREAM)
        except DeviceError:
            self._context.close()  # which alone takes some hundred megabytes
            raise
        self._allocated: set[int] = set()
        self._functions: dict[str, Function] = {}
        self._prepared: tuple[_Kept, _Kept] = {}, {}  # long ones, short ones
        self._blas: Blas | None = None
        self._discarded: deque[tuple[str, int]] = deque()  # from any thread, by the collector
        self._finalizers: list[Any] = []  # of host buffers
        self._handed_out: weakref.WeakSet[CudaEvent | CudaGraph] = weakref.WeakSet()
        self._ring: Ring | None = None
        self._aside: tuple[int, CudaEvent] | None = None  # the stream of `fetch`
        self.programmatic = info.architecture >= 90 and os.environ.get("LLAMBA_PDL") != "0"
        self._captures_early_starts = True  # until a graph can be made only without them
        # To find the kernel that reads or writes where it must not: wait after each.
        self.stepwise = os.environ.get("LLAMBA_CUDA_STEPWISE") == "1"

    # ---- memory --------------------------------------------------------------------------------
    def free_bytes(self) -> int:
        """Memory that can still be allocated."""
        self._tidy()
        return self._context.free_bytes()

    def allocate(self, num_bytes: int) -> int:
        """Address of zeroed memory, aligned to 256 bytes."""
        return self._allocate(num_bytes)

    def _allocate(self, num_bytes: int) -> int:
        self._tidy()
        num_bytes = max(num_bytes, 1)
        found = c_uint64()
        code = self._driver.code("cuMemAlloc_v2", ctypes.byref(found), num_bytes)
        if code == OUT_OF_MEMORY:
            free = self._context.free_bytes()
            raise DeviceError(
                f"{self._label} lacks memory: {num_bytes / _GB:.2f} GB more were needed, "
                f"{free / _GB:.2f} of {self.total_bytes / _GB:.1f} GB are free; a shorter context, "
                "fewer sequences or fewer layers on the GPU need less"
            )
        if code:
            raise self._driver.error("cuMemAlloc_v2", code)
        self._allocated.add(found.value)
        self._driver.call("cuMemsetD8Async", found.value, 0, num_bytes, self._stream)
        return found.value

    def release(self, address: int) -> None:
        """Give memory back that `allocate` gave; work that uses it is done first."""
        self._use()
        self._wait()
        self._allocated.remove(address)  # after it: where it fails, `close` tries again
        self._driver.call("cuMemFree_v2", address)

    def host_buffer(self, num_bytes: int) -> PinnedBuffer:
        """Page-locked memory of the host, zeroed."""
        self._tidy()
        buffer = PinnedBuffer(self._context, num_bytes, self._discard)
        self._finalizers = [f for f in self._finalizers if f.alive] + [buffer.finalizer]
        return buffer

    # ---- copies --------------------------------------------------------------------------------
    def write(self, address: int, data: NDArray[Any]) -> None:
        """Copy a contiguous array to the device, in order; returns when `data` may change."""
        if not data.flags.c_contiguous:
            raise ValueError("the array is not contiguous")
        self._use()
        source, size = data.ctypes.data, data.nbytes
        if 0 < size <= Ring.LARGEST:
            source = self._small().put(source, size)
        if size:
            self._driver.call("cuMemcpyHtoDAsync_v2", address, source, size, self._stream)
        if size > Ring.LARGEST:
            self._driver.call("cuStreamSynchronize", self._stream)

    def _small(self) -> Ring:
        if self._ring is None:
            self._ring = Ring(self._context, self._stream, self._discard)
            self._finalizers.append(self._ring.buffer.finalizer)
        return self._ring

    def read(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """Copy from the device, after all work before it."""
        self._use()
        data = np.empty(num_bytes, np.uint8)
        if num_bytes:
            name = "cuMemcpyDtoHAsync_v2"
            self._driver.call(name, data.ctypes.data, address, num_bytes, self._stream)
        self._driver.call("cuStreamSynchronize", self._stream)
        return data

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Within the device, in order; returns at once."""
        self._use()
        if num_bytes:
            self._driver.call("cuMemcpyDtoDAsync_v2", target, source, num_bytes, self._stream)

    def upload(self, address: int, source: HostBuffer, at: int, num_bytes: int) -> None:
        """From `source.array[at:]`, in order; returns at once: it must not change before that."""
        self._use()
        assert isinstance(source, PinnedBuffer)
        if start := source.at(at, num_bytes) if num_bytes else 0:
            self._driver.call("cuMemcpyHtoDAsync_v2", address, start, num_bytes, self._stream)

    def download(self, target: HostBuffer, at: int, address: int, num_bytes: int) -> None:
        """To `target.array[at:]`, in order; returns at once: an event says when it is there."""
        self._use()
        assert isinstance(target, PinnedBuffer)
        if start := target.at(at, num_bytes) if num_bytes else 0:
            self._driver.call("cuMemcpyDtoHAsync_v2", start, address, num_bytes, self._stream)

    def fetch(self, copies: Sequence[Copy], arrived: Event) -> None:
        """Downloads after all work so far, beside what comes later; returns at once.

        On a stream of their own: a copy between two kernels would hold up the second one.
        """
        self._use()
        assert isinstance(arrived, CudaEvent)
        if self._aside is None:
            reached = self.event()
            stream = self._driver.handle("cuStreamCreate", _NON_BLOCKING_STREAM)
            self._aside = stream, reached
        stream, reached = self._aside
        reached.record()
        reached.hold(stream)
        for target, at, address, num_bytes in copies:
            assert isinstance(target, PinnedBuffer)
            start = target.at(at, num_bytes)
            self._driver.call("cuMemcpyDtoHAsync_v2", start, address, num_bytes, stream)
        arrived.record_on(stream)

    # ---- work ----------------------------------------------------------------------------------
    def event(self, *, timed: bool = False) -> CudaEvent:
        """A new one. timed: it can say how long after another one it was reached."""
        self._tidy()
        event = CudaEvent(self._context, self._stream, self._discard, timed)
        self._handed_out.add(event)
        return event

    def load(self, kernels: Sequence[str], progress: Progress | None = None) -> None:
        """Make kernels ready, `module:function` as of Launch; compiled if no cache has them."""
        self._use()
        wanted = [name for name in dict.fromkeys(kernels) if name not in self._functions]
        if wanted:
            texts = ptx_cache.load(wanted, self.ptx_architecture, progress=progress)
            self._functions |= load_functions(self._context, texts)

    def run(self, work: Sequence[Work]) -> None:
        """Give launches and matrix products to the device; returns before they are done.

        What is given again, the same list or tuple, is not packed again.
        """
        if self.stepwise:
            self.prepare(work).issue_stepwise()
        else:
            self.prepare(work).issue()

    def capture(self, work: Sequence[Work]) -> Graph:
        """The same as a graph; nothing runs."""
        self._tidy()
        if self.stepwise:
            return StepwiseGraph(self._packed(work, False).issue_stepwise)
        if self.programmatic and self._captures_early_starts:
            try:
                return self._captured(work, True)
            except DeviceError as error:  # of drivers before CUDA 12.3, which can't; or another one
                try:
                    graph = self._captured(work, False)
                except DeviceError:
                    raise error from None
            self._captures_early_starts = False
            return graph
        return self._captured(work, False)

    def _captured(self, work: Sequence[Work], programmatic: bool) -> CudaGraph:
        prepared = self._packed(work, programmatic)
        mode = RELAXED if prepared.has_gemm else THREAD_LOCAL
        graph = CudaGraph(self._context, self._stream, prepared.issue, mode, self._discard)
        self._handed_out.add(graph)
        return graph

    def prepare(self, work: Sequence[Work]) -> Prepared:
        """Work, packed; kept as long as the same list, with the same in it, comes often."""
        kept = self._prepared[len(work) < _SHORT]  # which are mostly given only once
        entry = kept.pop(id(work), None)  # and in again as the latest
        if entry is None or entry[0] is not work or entry[1] != tuple(work):
            entry = work, tuple(work), self._packed(work, self.programmatic)
        kept[id(work)] = entry
        if len(kept) > _PREPARED:
            del kept[next(iter(kept))]
        return entry[2]

    def _packed(self, work: Sequence[Work], programmatic: bool) -> Prepared:
        self._use()
        return Prepared(
            work,
            context=self._context,
            stream=self._stream,
            functions=self._functions,
            blas=self.blas,
            programmatic=programmatic,
        )

    def blas(self) -> Blas:
        """cuBLAS, looked for when it is first needed."""
        if self._blas is None:
            workspace = self._allocate(WORKSPACE_BYTES)
            try:
                version = self.info.driver_version
                self._blas = Blas(self._context, self._stream, workspace, version)
            except DeviceError:
                self.release(workspace)
                raise
        return self._blas

    def profile(self, work: Sequence[Work], repeats: int = 5) -> list[tuple[str, float]]:
        """What each piece of work takes, in seconds: for benchmarks.

        Measured within a graph, so that launches cost nothing; the events between add about a
        microsecond each, and nothing overlaps.
        """
        prepared = self._packed(work, False)
        events = [self.event(timed=True) for _ in range(len(prepared.calls) + 1)]

        def issue() -> None:
            events[0].record_in_graph()
            for piece, event in zip(prepared.calls, events[1:], strict=True):
                prepared.issue([piece])
                event.record_in_graph()

        graph = CudaGraph(self._context, self._stream, issue, RELAXED, self._discard)
        times: list[list[float]] = []
        for _ in range(repeats):
            graph.launch()
            self.synchronize()
            times.append([b.seconds_since(a) for a, b in zip(events, events[1:], strict=False)])
        graph.close()
        names = [describe(item) for item in prepared.work]
        return [(name, median(t)) for name, t in zip(names, zip(*times, strict=True), strict=True)]

    def synchronize(self) -> None:
        """Wait for all work; an error of an earlier launch is raised here at the latest."""
        self._use()
        self._wait()
        self._tidy()

    def _wait(self) -> None:
        self._driver.call("cuStreamSynchronize", self._stream)
        if self._aside is not None:
            self._driver.call("cuStreamSynchronize", self._aside[0])

    def close(self) -> None:
        """Give everything back. Arrays of host buffers must not be used any more."""
        if not self._context.is_usable:
            return
        with contextlib.suppress(DeviceError):  # of work that failed: it was told already
            self.synchronize()
        if self._blas:
            self._blas.close()
        for kept in self._prepared:
            kept.clear()
        self._ring = None
        for found in (*self._handed_out,):
            found.close()
        for finalizer in self._finalizers:
            finalizer()
        self._tidy()
        code = self._driver.code
        for function in self._functions.values():
            code("cuModuleUnload", function.module)
        for address in self._allocated:
            code("cuMemFree_v2", address)
        self._functions.clear()
        self._allocated.clear()
        code("cuStreamDestroy_v2", self._stream)
        if self._aside is not None:
            code("cuStreamDestroy_v2", self._aside[0])
        self._context.close()

    def _discard(self, name: str, handle: int) -> None:
        """Destroy something later: the collector may come in any thread, in a capture."""
        self._discarded.append((name, handle))

    def _tidy(self) -> None:
        self._use()
        while self._discarded:
            self._driver.code(*self._discarded.popleft())


def open_device(index: int = 0) -> Device:
    """The GPU of this number, as the driver counts. DeviceError: it can't be used."""
    return NvidiaDevice(index)
