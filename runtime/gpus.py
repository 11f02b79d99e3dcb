"""Which GPUs this machine has, asked only when a model may run on one; nothing is loaded before."""

import ctypes
import sys
from typing import TYPE_CHECKING

from ..errors import DeviceError, InvalidParameterError

if TYPE_CHECKING:
    from .cuda.device import Device
    from .cuda.driver import DeviceInfo

DEVICES = "auto, cpu, cuda, or one GPU by its number such as cuda:1"
_WINDOWS = sys.platform == "win32"
_LIBRARIES = ("nvcuda.dll",) if _WINDOWS else ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")


def gpu_number(device: str) -> int | None:
    """The number of the GPU that a setting names; None: it names none.

    >>> gpu_number("cuda:1"), gpu_number("cuda"), gpu_number("auto")
    (1, 0, None)
    """
    kind, colon, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind == "cuda" and (number.isdecimal() and len(number) < 4 if colon else True):
        return int(number or 0)
    if colon or kind not in ("auto", "cpu"):
        raise InvalidParameterError(f"device={device!r}: must be {DEVICES}")
    return None


def has_driver() -> bool:
    """Whether there is a driver's library at all: where there is none, asking takes no time."""
    for name in _LIBRARIES:
        try:
            ctypes.CDLL(name)
            return True
        except OSError:
            continue
    return False


class Gpus:
    """The driver's answers, and the GPUs that were opened to ask for their memory."""

    def __init__(self) -> None:
        self._opened: dict[int, Device] = {}

    def usable(self) -> "tuple[list[DeviceInfo], str]":
        """Those that can be used; why the others, or all, can't ("": none is left out)."""
        from .cuda.driver import available

        return available()

    def check_libraries(self, gpu: "DeviceInfo") -> None:
        """Raise DeviceError if what a GPU needs beside its driver is not installed."""
        from .cuda.blas import open_library

        open_library(gpu.driver_version)

    def free_bytes(self, gpu: "DeviceInfo") -> int:
        """Memory that can still be allocated. It stays open, as that takes long."""
        from .cuda.nvidia import open_device

        if gpu.index not in self._opened:
            self._opened[gpu.index] = open_device(gpu.index)
        return self._opened[gpu.index].free_bytes()

    def close(self) -> None:
        """Let the GPUs go; a program that was made meanwhile keeps its own."""
        while self._opened:
            self._opened.popitem()[1].close()

    def find(self, number: int) -> "DeviceInfo":
        """The GPU of a number; DeviceError if it isn't there, or can't be used."""
        found, why = self.usable()
        for gpu in found:
            if gpu.index == number:
                return gpu
        wanted = f"device='cuda:{number}'"
        if not found:
            raise DeviceError(
                f"{wanted}: {why or 'there is no GPU'}; device='cpu' runs without one"
            )
        names = ", ".join(f"cuda:{gpu.index} ({gpu.name})" for gpu in found)
        more = f"; {why}" if why else ""
        raise DeviceError(
            f"{wanted}: there is no such GPU that can be used; there is {names}{more}"
        )
