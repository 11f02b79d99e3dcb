"""Launches and products with their arguments packed as the driver takes them, to be given often.

A launch from Python costs what the driver takes and a microsecond: no argument is touched again.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_uint, c_void_p
from functools import partial
from typing import Any

import numpy as np

from ...errors import DeviceError
from ..kernels.cuda.launch import Gemm, Launch, Work
from .blas import Blas
from .context import Context
from .kernel_modules import Function

# CUlaunchConfig: grid and block, bytes of dynamic shared memory; stream, attributes and how many.
_CONFIG = struct.Struct("=7I4xQQI4x")
# CUlaunchAttribute: its id, and a union of 64 bytes. This one lets a kernel start before the one
# before it in the stream is done, which says when it may; after all else it waits as ever.
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_ATTRIBUTE = struct.Struct("=I4xi60x")
_WORD = 8  # bytes of an argument


class Prepared:
    """A list of work, packed."""

    def __init__(
        self,
        work: Sequence[Work],
        *,
        context: Context,
        stream: int,
        functions: Mapping[str, Function],
        blas: Callable[[], Blas],
        programmatic: bool,
    ) -> None:
        """functions: by the names of Launch. blas: called where there is a Gemm.

        Raises:
            DeviceError: a kernel was not loaded, or cuBLAS is not there.
            ValueError: arguments are not those of the kernel.
        """
        self._context, self._stream = context, stream
        self.has_gemm = any(isinstance(item, Gemm) for item in work)
        self._blas = blas() if self.has_gemm else None
        self.work = [item for item in work if isinstance(item, Gemm) or min(item.grid) > 0]
        launches = [item for item in self.work if isinstance(item, Launch)]
        found = [_function(functions, launch) for launch in launches]
        arguments = _packed_arguments(launches, found)
        self._programmatic = programmatic and context.driver.has("cuLaunchKernelEx")
        self._configs = _packed_configs(launches, found, stream)
        self._kept: list[Any] = [arguments]
        calls = self._calls(launches, found, stream, arguments)
        self.calls: list[Callable[[], int]] = []
        for item in self.work:
            if isinstance(item, Gemm):
                assert self._blas is not None
                self.calls.append(self._blas.prepared(item))
            else:
                self.calls.append(next(calls))

    def issue(self, calls: Sequence[Callable[[], int]] | None = None) -> None:
        """Give all of it to the stream, or some of its calls. DeviceError: one was refused."""
        self._context.use()
        for call in self.calls if calls is None else calls:
            if code := call():
                raise self._error(self.calls.index(call), code)

    def issue_stepwise(self) -> None:
        """The same, waiting after each: a DeviceError says in what an invalid access was made."""
        for i, call in enumerate(self.calls):
            self.issue([call])
            if code := self._context.driver.code("cuStreamSynchronize", self._stream):
                raise self._error(i, code, "cuStreamSynchronize")

    def _calls(
        self, launches: list[Launch], found: list[Function], stream: int, arguments: Any
    ) -> Any:
        driver = self._context.driver
        addresses = arguments.ctypes.data + _WORD * np.arange(len(arguments), dtype=np.uint64)
        first, configs = addresses.ctypes.data, self._configs.ctypes.data
        self._kept.append(addresses)
        for i, (launch, function) in enumerate(zip(launches, found, strict=True)):
            handle, at = c_void_p(function.handle), c_void_p(first)
            first += _WORD * len(launch.arguments)
            if self._programmatic and function.entry.programmatic:
                config = c_void_p(configs + i * _CONFIG.size)
                yield partial(driver.function("cuLaunchKernelEx"), config, handle, at, None)
            else:
                sizes = map(c_uint, (*launch.grid, function.entry.block, 1, 1, 0))
                launcher = driver.function("cuLaunchKernel")
                yield partial(launcher, handle, *sizes, c_void_p(stream), at, None)

    def _error(self, index: int, code: int, function: str = "") -> DeviceError:
        item = self.work[index]
        if isinstance(item, Gemm) and not function:
            assert self._blas is not None
            return self._blas.error(describe(item), code)
        about = f"{self._context.label} can't run {describe(item)}"
        return self._context.driver.error(function or "cuLaunchKernel", code, about)


def describe(item: Work) -> str:
    """A launch or a product, short."""
    if isinstance(item, Gemm):
        kind = "single" if item.single else "half"
        return f"gemm of {kind} {item.rows}x{item.columns}, {item.tokens} tokens"
    return f"{item.kernel} on {'x'.join(map(str, item.grid))}"


def _function(functions: Mapping[str, Function], launch: Launch) -> Function:
    if (found := functions.get(launch.kernel)) is None:
        raise DeviceError(f"the kernel {launch.kernel} was not loaded")
    return found


def _packed_arguments(launches: list[Launch], found: list[Function]) -> Any:
    """All arguments one after the other, a word each; a float32 lies in the first half of it."""
    packed, structs = [], {f.entry.kinds: _packer(f.entry.kinds) for f in found}
    for launch, function in zip(launches, found, strict=True):
        try:
            packed.append(structs[function.entry.kinds].pack(*launch.arguments))
        except struct.error as error:
            raise ValueError(
                f"{launch.kernel} takes {function.entry.kinds!r}, not {launch.arguments}: {error}"
            ) from None
    return np.frombuffer(b"".join(packed) or bytes(_WORD), np.uint64)


def _packer(kinds: str) -> struct.Struct:
    return struct.Struct("=" + kinds.replace("f", "f4x"))


def _packed_configs(launches: list[Launch], found: list[Function], stream: int) -> Any:
    """A CUlaunchConfig a launch, and the attribute that they share."""
    attribute_at = len(launches) * _CONFIG.size
    memory = np.zeros(attribute_at + _ATTRIBUTE.size, np.uint8)
    address = memory.ctypes.data + attribute_at
    _ATTRIBUTE.pack_into(memory.data, attribute_at, _PROGRAMMATIC_STREAM_SERIALIZATION, 1)
    for i, (launch, function) in enumerate(zip(launches, found, strict=True)):
        sizes = (*launch.grid, function.entry.block, 1, 1, 0)
        _CONFIG.pack_into(memory.data, i * _CONFIG.size, *sizes, stream, address, 1)
    return memory
