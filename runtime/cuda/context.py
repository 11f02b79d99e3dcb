"""The driver's context of one GPU, made current for whichever thread comes with work."""

import ctypes
import os
import threading
from ctypes import c_size_t

from ...errors import DeviceError
from .driver import Driver, open_driver


class _Thread(threading.local):
    context: "Context | None" = None


_thread = _Thread()


class Context:
    """A GPU's primary context, which other CUDA libraries of the process share."""

    def __init__(self, index: int, label: str) -> None:
        self.driver: Driver = open_driver()
        self.label = label
        self._process = os.getpid()
        self._device = self.driver.integer("cuDeviceGet", index)
        self._handle = self.driver.handle("cuDevicePrimaryCtxRetain", self._device)
        self._open = True

    def use(self) -> None:
        """Make it the calling thread's; every operation begins so.

        Raises:
            DeviceError: it is closed, or this process was forked from the one that opened it.
        """
        if _thread.context is not self or not self._open:
            self._enter()

    def _enter(self) -> None:
        if self._process != os.getpid():
            raise DeviceError(
                f"{self.label} was opened before this process was forked, and can't be used in it: "
                "load the model after the fork, or start processes with the method `spawn`"
            )
        if not self._open:
            raise DeviceError(f"{self.label} was closed")
        self.driver.call("cuCtxSetCurrent", self._handle)
        _thread.context = self

    @property
    def is_usable(self) -> bool:
        """Whether `use` would succeed."""
        return self._open and self._process == os.getpid()

    def free_bytes(self) -> int:
        """Memory that can still be allocated."""
        self.use()
        free, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def close(self) -> None:
        """Leave it; with the last of its users, all that is still in it goes."""
        if self.is_usable:
            self._open = False
            _thread.context = None
            self.driver.code("cuCtxSetCurrent", None)
            self.driver.code("cuDevicePrimaryCtxRelease_v2", self._device)


def _after_fork() -> None:
    global _thread
    _thread = _Thread()  # so that `use` looks again


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
