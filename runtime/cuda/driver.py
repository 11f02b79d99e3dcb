"""NVIDIA's driver through ctypes: its functions, its errors, and the GPUs that it shows.

Nothing else is needed of CUDA, neither toolkit nor runtime. `import llamba` does not come here.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from ctypes import c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from ...errors import DeviceError, DeviceLostError
from ..gpus import LIBRARIES

OUT_OF_MEMORY, NO_DEVICE, STUB, NOT_READY = 2, 100, 34, 600  # of CUresult
# After these every call of the process fails: an illegal address, a trap, a lost or faulty GPU.
LOST = frozenset({214, 220, 700, 702, 709, 710, *range(714, 720), 999})
LOWEST_CAPABILITY = 80  # 8.0: what the kernels are written for
LOWEST_VERSION = 11040  # of CUDA that a driver must know, as the driver counts: 11.4 is driver 470

# Argument types as of cuda.h; results come through pointers, an address is a uint64.
_P, _I, _U, _N, _A = c_void_p, c_int, c_uint, c_size_t, c_uint64
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuGetErrorName": (_I, _P),
    "cuGetErrorString": (_I, _P),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuDeviceTotalMem_v2": (_P, _I),
    "cuDeviceGetPCIBusId": (_P, _I, _I),
    "cuDeviceGetUuid_v2": (_P, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuDevicePrimaryCtxRelease_v2": (_I,),
    "cuCtxSetCurrent": (_P,),
    "cuMemGetInfo_v2": (_P, _P),
    "cuMemAlloc_v2": (_P, _N),
    "cuMemFree_v2": (_A,),
    "cuMemHostAlloc": (_P, _N, _U),
    "cuMemFreeHost": (_P,),
    "cuMemcpyHtoDAsync_v2": (_A, _P, _N, _P),
    "cuMemcpyDtoHAsync_v2": (_P, _A, _N, _P),
    "cuMemcpyDtoDAsync_v2": (_A, _A, _N, _P),
    "cuMemsetD8Async": (_A, c_ubyte, _N, _P),
    "cuStreamCreate": (_P, _U),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamBeginCapture_v2": (_P, _I),
    "cuStreamEndCapture": (_P, _P),
    "cuEventCreate": (_P, _U),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventQuery": (_P,),
    "cuEventSynchronize": (_P,),
    "cuEventElapsedTime": (_P, _P, _P),
    "cuModuleLoadDataEx": (_P, _P, _U, _P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, c_char_p),
    "cuFuncGetAttribute": (_P, _I, _P),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuLaunchKernel": (_P, _U, _U, _U, _U, _U, _U, _U, _P, _P, _P),
    "cuGraphLaunch": (_P, _P),
    "cuGraphDestroy": (_P,),
    "cuGraphExecDestroy": (_P,),
    "cuGraphGetNodes": (_P, _P, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, c_uint64),
    "cuEventRecordWithFlags": (_P, _P, _U),
}
# What drivers before CUDA 11.8 lack.
LATER: dict[str, tuple[Any, ...]] = {"cuLaunchKernelEx": (_P, _P, _P, _P)}


class Driver:
    """The functions of the library; each nonzero result is raised, or told by `code`."""

    def __init__(self, library: Any) -> None:
        self._functions: dict[str, Callable[..., int]] = {}
        for name, arguments in (SIGNATURES | LATER).items():
            function: Any = getattr(library, name, None)
            if function is None:
                if name in LATER:
                    continue
                raise DeviceError(f"the NVIDIA driver has no {name}: a newer one is needed")
            function.restype, function.argtypes = c_int, arguments
            self._functions[name] = function

    def has(self, name: str) -> bool:
        """Whether it is new enough for this one of LATER."""
        return name in self._functions

    def function(self, name: str) -> Callable[..., int]:
        """The function itself, which returns its code."""
        return self._functions[name]

    def code(self, name: str, *arguments: Any) -> int:
        """Call it; its code: 0 where all is well."""
        return self._functions[name](*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Call it. DeviceError: it failed."""
        if code := self._functions[name](*arguments):
            raise self.error(name, code)

    def error(self, name: str, code: int, about: str = "") -> DeviceError:
        """What to raise for a code."""
        text = f"{about or 'the GPU failed'} ({name}: {self.describe(code)})"
        if code in LOST:
            return DeviceLostError(
                f"{text}; nothing runs on it in this process any more: start the program again"
            )
        if code == OUT_OF_MEMORY and name != "cuMemHostAlloc":
            text += (
                "; nvidia-smi shows which programs have its memory: end one, or pass device='cpu'"
            )
        return DeviceError(text)

    def describe(self, code: int) -> str:
        """A code's name and meaning."""
        texts = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            if self._functions[function](code, ctypes.byref(text)) or not text.value:
                return f"error {code}"
            texts.append(text.value.decode(errors="replace"))
        return ": ".join(texts)

    def integer(self, name: str, *arguments: Any) -> int:
        """The int that a function gives through its first parameter."""
        found = c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value

    def handle(self, name: str, *arguments: Any) -> int:
        """The same of a pointer or an address."""
        found = c_uint64()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value

    def milliseconds(self, start: int, end: int) -> float:
        """Between two events that were recorded with timing."""
        found = c_float()
        self.call("cuEventElapsedTime", ctypes.byref(found), start, end)
        return found.value


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A GPU that can be used.

    index: the driver's number. architecture: its compute capability, 90 is 9.0. driver_version: of
    CUDA, as the driver counts: 13000 is 13.0.
    """

    index: int
    name: str
    architecture: int
    num_multiprocessors: int
    total_bytes: int
    bus_id: str
    uuid: str
    driver_version: int


_opened: Driver | None = None  # after cuInit; the driver doesn't survive a fork
_forked = False


def open_driver() -> Driver:
    """The driver, initialised. DeviceError: there is none that can be used."""
    global _opened
    if _forked:
        raise DeviceError(
            "CUDA was used before this process was forked, and can't be used in it: "
            "load models after the fork, or start processes with the method `spawn`"
        )
    if _opened is None:
        driver = Driver(_library())
        if code := driver.code("cuInit", 0):
            raise DeviceError(_no_start(driver, code))
        version = driver.integer("cuDriverGetVersion")
        if version < LOWEST_VERSION:
            raise DeviceError(
                f"the NVIDIA driver is too old: it knows CUDA {version_text(version)}, "
                f"{version_text(LOWEST_VERSION)} is needed (driver 470)"
            )
        _opened = driver
    return _opened


def _library() -> Any:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            if sys.platform != "win32" and not str(error).startswith(f"{name}: cannot open"):
                raise DeviceError(f"the NVIDIA driver can't be loaded: {error}") from None
    raise DeviceError(f"no NVIDIA driver is installed: there is no {LIBRARIES[0]}")


def _no_start(driver: Driver, code: int) -> str:
    if code == NO_DEVICE:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        also = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
        return f"the NVIDIA driver shows no GPU{also}"
    if code == STUB:
        return "libcuda.so.1 is the toolkit's stub, not a driver: take it off the loader's path"
    return f"the NVIDIA driver can't be started: {driver.describe(code)}"


def _after_fork() -> None:
    global _opened, _forked
    _forked = _forked or _opened is not None
    _opened = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def available() -> tuple[list[DeviceInfo], str]:
    """The GPUs that can be used; and why the others, or all, can't ("" when none is left out)."""
    try:
        driver = open_driver()
        count = driver.integer("cuDeviceGetCount")
        infos = [device_info(driver, index) for index in range(count)]
    except DeviceError as error:
        return [], str(error)
    if not infos:
        return [], _no_start(driver, NO_DEVICE)
    old = [info for info in infos if info.architecture < LOWEST_CAPABILITY]
    return [info for info in infos if info not in old], "; ".join(map(too_old, old))


def too_old(info: DeviceInfo) -> str:
    """What to say of a GPU below the floor."""
    needed, has = version_text(LOWEST_CAPABILITY, 10), version_text(info.architecture, 10)
    return f"GPU {info.index} ({info.name}) has compute capability {has}; {needed} is needed"


def device_info(driver: Driver, index: int) -> DeviceInfo:
    """What the driver says of a GPU. DeviceError: there is none of this number."""
    count = driver.integer("cuDeviceGetCount")
    if not 0 <= index < count:
        raise DeviceError(f"there is no GPU {index}: the NVIDIA driver shows {count}")
    device = driver.integer("cuDeviceGet", index)

    def attribute(number: int) -> int:
        return driver.integer("cuDeviceGetAttribute", number, device)

    name, bus, uuid = (ctypes.create_string_buffer(n) for n in (256, 32, 16))
    driver.call("cuDeviceGetName", name, len(name), device)
    driver.call("cuDeviceGetPCIBusId", bus, len(bus), device)
    driver.call("cuDeviceGetUuid_v2", uuid, device)
    digits = uuid.raw.hex()
    parts = (digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    return DeviceInfo(
        index=index,
        name=name.value.decode(errors="replace"),
        architecture=attribute(75) * 10 + attribute(76),
        num_multiprocessors=attribute(16),
        total_bytes=driver.handle("cuDeviceTotalMem_v2", device),
        bus_id=bus.value.decode(errors="replace"),
        uuid="GPU-" + "-".join(parts),
        driver_version=driver.integer("cuDriverGetVersion"),
    )


def version_text(number: int, unit: int = 1000) -> str:
    """13000 is "13.0"; of a compute capability (unit 10), 86 is "8.6"."""
    return f"{number // unit}.{number % unit // (10 if unit == 1000 else 1)}"
