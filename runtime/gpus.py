"""Which GPUs this machine has, asked only when a model may run on one; nothing is loaded before."""

import sys
from typing import TYPE_CHECKING

from ..errors import DeviceError, InvalidParameterError

if TYPE_CHECKING:
    from .cuda.device import Device
    from .cuda.driver import DeviceInfo

DEVICES = "auto, cpu, cuda, or one GPU by its number such as cuda:1"
# The driver's, in the order in which they are tried.
LIBRARIES = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
if sys.platform == "win32":
    LIBRARIES = ("nvcuda.dll",)


def gpu_number(device: str) -> int | None:
    """The number of the GPU that a setting names; None: it names none.

    >>> gpu_number("cuda:1"), gpu_number("cuda"), gpu_number("auto")
    (1, 0, None)
    """
    kind, colon, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    is_number = number.isascii() and number.isdecimal() and len(number) < 4
    if kind == "cuda" and (is_number or not colon):
        return int(number or 0)
    if colon or kind not in ("auto", "cpu"):
        raise InvalidParameterError(f"device={device!r}: must be {DEVICES}")
    return None


def _can_load(library: str) -> bool:
    import ctypes

    try:
        ctypes.CDLL(library)
        return True
    except OSError:
        return False


class Gpus:
    """The driver's answers, and the GPUs that were opened to ask for their memory."""

    def __init__(self) -> None:
        self._opened: dict[int, Device] = {}

    def has_driver(self) -> bool:
        """Whether there is a driver's library at all: where there is none, this takes no time."""
        return any(map(_can_load, LIBRARIES))

    def usable(self) -> "tuple[list[DeviceInfo], str]":
        """Those that can be used; why the others, or all, can't ("": none is left out)."""
        from .cuda.driver import available

        return available()

    def check_libraries(self, gpu: "DeviceInfo") -> None:
        """Raise DeviceError if what a GPU needs beside its driver is not installed."""
        from .cuda.blas import open_library

        open_library(gpu.driver_version)

    def free_bytes(self, gpu: "DeviceInfo") -> int:
        """Memory that can still be allocated. The GPU stays open, since opening takes long."""
        if gpu.index not in self._opened:
            self._opened[gpu.index] = self._open(gpu.index)
        return self._opened[gpu.index].free_bytes()

    def take(self, number: int) -> "Device":
        """A GPU, opened, which is the caller's to close."""
        return self._opened.pop(number, None) or self._open(number)

    def _open(self, number: int) -> "Device":
        from .cuda.nvidia import open_device

        return open_device(number)

    def close(self) -> None:
        """Close those that nobody took."""
        while self._opened:
            self._opened.popitem()[1].close()

    def find(self, number: int, wanted: str = "") -> "DeviceInfo":
        """The GPU of a number; DeviceError if it isn't there, or can't be used.

        wanted: the setting that asked for it.
        """
        found, why = self.usable()
        for gpu in found:
            if gpu.index == number:
                return gpu
        wanted = wanted or f"device='cuda:{number}'"
        if not found:
            by_layers = wanted.startswith("gpu_layers")  # which device='cpu' contradicts
            out = "leave it out to run" if by_layers else "device='cpu' runs"
            raise DeviceError(f"{wanted}: {why or 'there is no GPU'}; {out} without one")
        names = ", ".join(f"cuda:{gpu.index} ({gpu.name})" for gpu in found)
        more = f"; {why}" if why else ""
        raise DeviceError(
            f"{wanted}: there is no such GPU that can be used; there is {names}{more}"
        )
