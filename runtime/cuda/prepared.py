"""Launches and products with their arguments packed as the driver takes them, to be given often.

A launch from Python costs what the driver takes and half a microsecond: no argument is touched
again.
"""

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_uint, c_void_p
from functools import lru_cache, partial
from typing import Any

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
_WORD = 8  # bytes of an argument, and of a pointer to it


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
        self.work = [item for item in work if isinstance(item, Gemm) or min(item.grid) > 0]
        launches = [item for item in self.work if isinstance(item, Launch)]
        self.has_gemm = len(launches) < len(self.work)
        self._blas = blas() if self.has_gemm else None
        # Of each launch: its arguments, pointers to them, a configuration. In the end an attribute.
        words = sum(2 * len(launch.arguments) for launch in launches)
        size = _WORD * words + _CONFIG.size * len(launches)
        self._memory = ctypes.create_string_buffer(size + _ATTRIBUTE.size)
        self._address = ctypes.addressof(self._memory)
        self._attribute = self._address + size
        self._at = 0
        _ATTRIBUTE.pack_into(self._memory, size, _PROGRAMMATIC_STREAM_SERIALIZATION, 1)
        programmatic = programmatic and context.driver.has("cuLaunchKernelEx")
        self.calls: list[Callable[[], int]] = []
        for item in self.work:
            if isinstance(item, Gemm):
                assert self._blas is not None
                self.calls.append(self._blas.prepared(item))
            else:
                self.calls.append(self._packed(item, functions, programmatic))

    def _packed(
        self, launch: Launch, functions: Mapping[str, Function], programmatic: bool
    ) -> Callable[[], int]:
        """A call that launches it."""
        if (function := functions.get(launch.kernel)) is None:
            raise DeviceError(f"the kernel {launch.kernel} was not loaded")
        entry, memory, driver = function.entry, self._memory, self._context.driver
        arguments, pointers = _packers(entry.kinds)
        first = self._address + self._at
        try:
            arguments.pack_into(memory, self._at, *launch.arguments)
        except struct.error as error:
            raise ValueError(
                f"{launch.kernel} takes {entry.kinds!r}, not {launch.arguments}: {error}"
            ) from None
        self._at += arguments.size
        at, handle = c_void_p(first + arguments.size), c_void_p(function.handle)
        pointers.pack_into(memory, self._at, *range(first, first + arguments.size, _WORD))
        self._at += pointers.size
        sizes = (*launch.grid, entry.block, 1, 1, 0)
        if not (programmatic and entry.programmatic):
            stream = c_void_p(self._stream)
            return partial(
                driver.function("cuLaunchKernel"), handle, *map(c_uint, sizes), stream, at, None
            )
        config = c_void_p(self._address + self._at)
        _CONFIG.pack_into(memory, self._at, *sizes, self._stream, self._attribute, 1)
        self._at += _CONFIG.size
        return partial(driver.function("cuLaunchKernelEx"), config, handle, at, None)

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


@lru_cache
def _packers(kinds: str) -> tuple[Any, Any]:
    """Of arguments, a word each (a float32 is the first half of one), and of as many pointers."""
    return struct.Struct("=" + kinds.replace("f", "f4x")), struct.Struct(f"={len(kinds)}Q")
