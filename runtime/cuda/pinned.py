"""Page-locked memory of the host: buffers that copies reach by themselves, and a ring of it."""

import ctypes
import weakref
from collections.abc import Callable
from ctypes import c_ubyte
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .context import Context
from .events import CudaEvent

_PORTABLE = 1  # every context knows it as page-locked
_HALF_BYTES = 1 << 19  # of the ring


class PinnedBuffer:
    """Page-locked host memory, zeroed; it lives as long as its array, or a view of that."""

    def __init__(
        self, context: Context, num_bytes: int, discard: Callable[[str, int], None]
    ) -> None:
        """discard: destroys a handle at a good moment."""
        context.use()
        size = max(num_bytes, 1)
        self.address = context.driver.handle("cuMemHostAlloc", size, _PORTABLE)
        owner: Any = (c_ubyte * size).from_address(self.address)
        self.finalizer = weakref.finalize(owner, discard, "cuMemFreeHost", self.address)
        self.finalizer.atexit = False
        self.array: NDArray[np.uint8] = np.frombuffer(owner, np.uint8)[:num_bytes]
        self.array[:] = 0

    def at(self, offset: int, num_bytes: int) -> int:
        """The address of a part."""
        if offset < 0 or num_bytes < 0 or offset + num_bytes > self.array.size:
            raise ValueError(f"{num_bytes} bytes at {offset} of {self.array.size}")
        return self.address + offset


class Ring:
    """Where small arrays wait for their copy, so that nobody else has to.

    Two halves; one is used again when the copies from it are done, which they usually are.
    """

    LARGEST = 1 << 16

    def __init__(self, context: Context, stream: int, discard: Callable[[str, int], None]) -> None:
        """As PinnedBuffer."""
        self.buffer = PinnedBuffer(context, 2 * _HALF_BYTES, discard)
        self._left = [CudaEvent(context, stream, discard, False) for _ in range(2)]
        self._half = self._used = 0

    def put(self, address: int, num_bytes: int) -> int:
        """A copy of memory of the host in the ring, at most LARGEST; its address."""
        if self._used + num_bytes > _HALF_BYTES:
            self._left[self._half].record()
            self._half, self._used = 1 - self._half, 0
            self._left[self._half].wait()
        at = self.buffer.address + self._half * _HALF_BYTES + self._used
        ctypes.memmove(at, address, num_bytes)
        self._used += (num_bytes + 63) // 64 * 64
        return at
