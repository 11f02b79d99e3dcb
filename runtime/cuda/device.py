"""What a program needs of a GPU. nvidia.py has the real one; tests have one in NumPy."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..kernels.cuda.launch import Work

Progress = Callable[[int, int], None]


class HostBuffer(Protocol):
    """Page-locked host memory, which copies reach without the host's help."""

    array: NDArray[np.uint8]


class Event(Protocol):
    """A point in the device's order of work."""

    def record(self) -> None:
        """Here, after all that was given to the device so far."""
        ...

    def wait(self) -> None:
        """Until the device has come there (the last `record`)."""
        ...

    def done(self) -> bool:
        """Whether it has."""
        ...


class Graph(Protocol):
    """Captured work that one call starts."""

    def launch(self) -> None:
        """Give it to the device, in order."""
        ...

    def close(self) -> None:
        """Give back what it takes."""
        ...


Copy = tuple[HostBuffer, int, int, int]  # as `download` takes it: target, at, address, bytes


class Device(Protocol):
    """One GPU. All its work is in one order: a copy or launch sees what those before it wrote.

    Not thread-safe, but any thread may use it, one at a time. Errors are errors.DeviceError.
    """

    index: int
    name: str
    architecture: int  # compute capability: 90 is 9.0
    num_multiprocessors: int
    total_bytes: int

    def free_bytes(self) -> int:
        """Memory that can still be allocated."""
        ...

    def allocate(self, num_bytes: int) -> int:
        """Address of zeroed memory, aligned to 256 bytes."""
        ...

    def release(self, address: int) -> None:
        """Give memory back that `allocate` gave."""
        ...

    def write(self, address: int, data: NDArray[Any]) -> None:
        """Copy a contiguous array to the device, in order; returns when `data` may change."""
        ...

    def read(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """Copy from the device, after all work before it."""
        ...

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Within the device, in order; returns at once."""
        ...

    def host_buffer(self, num_bytes: int) -> HostBuffer:
        """Page-locked memory of the host."""
        ...

    def upload(self, address: int, source: HostBuffer, at: int, num_bytes: int) -> None:
        """From `source.array[at:]`, in order; returns at once: it must not change before that."""
        ...

    def download(self, target: HostBuffer, at: int, address: int, num_bytes: int) -> None:
        """To `target.array[at:]`, in order; returns at once: an event says when it is there."""
        ...

    def fetch(self, copies: Sequence[Copy], arrived: Event) -> None:
        """Downloads after all work so far, beside what comes later; returns at once.

        `arrived` says when they are there. What is given later must not write what they read
        before that.
        """
        ...

    def event(self) -> Event:
        """A new one."""
        ...

    def load(self, kernels: Sequence[str], progress: Progress | None = None) -> None:
        """Make kernels ready, `module:function` as of Launch; compiled if no cache has them."""
        ...

    def run(self, work: Sequence[Work]) -> None:
        """Give launches and matrix products to the device; returns before they are done.

        Its kernels must have been loaded.
        """
        ...

    def capture(self, work: Sequence[Work]) -> Graph:
        """The same as a graph; nothing runs."""
        ...

    def synchronize(self) -> None:
        """Wait for all work; an error of an earlier launch is raised here at the latest."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
