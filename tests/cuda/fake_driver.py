"""A driver and a cuBLAS that take calls as C does, keep "device" memory here and run no kernel.

Every function is a C function pointer of the types that driver.py declares, so that arguments pass
through ctypes both ways. What was launched is in `launched`, with the arguments read through the
pointers at the time of the call.
"""

import ctypes
import re
import struct
import threading
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_uint64, cast, string_at
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llamba.runtime.cuda import blas, driver

PTX = """.version 7.8
.target sm_90
.address_size 64

.visible .entry {symbol}(
{parameters}
)
.maxntid {block}
{{
	{body}
	ret;
}}
"""


def ptx(kernel: str, kinds: str, block: int = 128, *, programmatic: bool = True) -> str:
    """The PTX of a kernel that does nothing; kinds: q and f."""
    symbol = "llamba_" + kernel.replace(":", "__")
    names = {"q": "u64", "f": "f32"}
    parameters = [f"\t.param .{names[k]} {symbol}_param_{i}" for i, k in enumerate(kinds)]
    body = "griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" if programmatic else ""
    return PTX.format(symbol=symbol, parameters=",\n".join(parameters), block=block, body=body)


@dataclass
class Gpu:
    """A GPU that the driver shows."""

    name: str = "Fake H9"
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    total_bytes: int = 1 << 20
    allocated: int = 0


@dataclass(frozen=True)
class Launched:
    """A launch as the driver saw it."""

    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[int | float, ...]
    programmatic: bool
    stream: int


def put(address: int, value: int, kind: Any = c_uint64) -> None:
    """Write a result where the caller wants it."""
    kind.from_address(address).value = value


class Library:
    """Looks like ctypes.CDLL("libcuda.so.1")."""

    def __init__(self, *gpus: Gpu, version: int = 13000) -> None:
        self.gpus, self.version = list(gpus), version
        self.absent: set[str] = set()  # functions that it lacks
        self.fail: dict[str, int] = {}  # codes of functions that fail
        self.names: list[str] = []  # of all calls
        self.launched: list[Any] = []
        self.mistakes: list[Exception] = []
        self._thread = threading.local()
        self._lock = threading.Lock()
        self.live: dict[int, str] = {}  # handles that were not destroyed, and what they are
        self._next = 0x1000
        self._functions: dict[str, Any] = {}
        self._memory: dict[int, tuple[Any, int]] = {}
        self._modules: dict[int, str] = {}
        self._kernels: dict[int, tuple[str, str]] = {}
        self._graphs: dict[int, list[Any]] = {}
        self._capturing: list[Any] | None = None
        self._clock = 0.0
        self._times: dict[int, float] = {}
        self._texts = {
            2: (c_char_p(b"CUDA_ERROR_OUT_OF_MEMORY"), c_char_p(b"out of memory")),
            100: (c_char_p(b"CUDA_ERROR_NO_DEVICE"), c_char_p(b"no CUDA-capable device")),
            218: (c_char_p(b"CUDA_ERROR_INVALID_PTX"), c_char_p(b"a PTX JIT compilation failed")),
            700: (c_char_p(b"CUDA_ERROR_ILLEGAL_ADDRESS"), c_char_p(b"an illegal memory access")),
        }

    def __getattr__(self, name: str) -> Any:
        types = (driver.SIGNATURES | driver.LATER).get(name)
        if types is None or name in self.absent:
            raise AttributeError(name)
        if name not in self._functions:
            plain: Callable[..., int | None] = getattr(Library, f"_{name}")

            def call(*arguments: Any) -> int:
                with self._lock:
                    self.names.append(name)
                    if code := self.fail.get(name):
                        if name == "cuStreamEndCapture":  # it ends in any case
                            self._capturing = None
                        return code
                    try:
                        return plain(self, *arguments) or 0
                    except Exception as error:  # C knows none: the fixture looks at them
                        self.mistakes.append(error)
                        return 999

            self._functions[name] = ctypes.CFUNCTYPE(c_int, *types)(call)
        return self._functions[name]

    @property
    def current(self) -> int | None:
        """The calling thread's context."""
        return getattr(self._thread, "context", None)

    def issue(self, item: Any) -> None:
        """What a stream was given: captured, or done at once."""
        (self.launched if self._capturing is None else self._capturing).append(item)

    def _new(self, kind: str) -> int:
        self._next += 16
        self.live[self._next] = kind
        return self._next

    # ---- the driver ----------------------------------------------------------------------------
    def _cuInit(self, flags: int) -> int:
        return 0 if self.gpus else 100

    def _cuDriverGetVersion(self, at: int) -> None:
        put(at, self.version, c_int)

    def _text(self, code: int, at: int, which: int) -> int | None:
        if code not in self._texts:
            return 1
        put(at, cast(self._texts[code][which], ctypes.c_void_p).value or 0)
        return None

    def _cuGetErrorName(self, code: int, at: int) -> int | None:
        return self._text(code, at, 0)

    def _cuGetErrorString(self, code: int, at: int) -> int | None:
        return self._text(code, at, 1)

    def _cuDeviceGetCount(self, at: int) -> None:
        put(at, len(self.gpus), c_int)

    def _cuDeviceGet(self, at: int, index: int) -> int | None:
        if not 0 <= index < len(self.gpus):
            return 101
        put(at, index, c_int)
        return None

    def _cuDeviceGetName(self, at: int, size: int, device: int) -> None:
        ctypes.memmove(at, self.gpus[device].name.encode() + b"\0", len(self.gpus[device].name) + 1)

    def _cuDeviceGetPCIBusId(self, at: int, size: int, device: int) -> None:
        ctypes.memmove(at, b"0000:01:00.0\0", 13)

    def _cuDeviceGetUuid_v2(self, at: int, device: int) -> None:
        ctypes.memmove(at, bytes(range(16)), 16)

    def _cuDeviceGetAttribute(self, at: int, attribute: int, device: int) -> None:
        gpu = self.gpus[device]
        put(at, {16: gpu.multiprocessors, 75: gpu.capability[0], 76: gpu.capability[1]}[attribute],
            c_int)  # fmt: skip

    def _cuDeviceTotalMem_v2(self, at: int, device: int) -> None:
        put(at, self.gpus[device].total_bytes)

    def _cuDevicePrimaryCtxRetain(self, at: int, device: int) -> None:
        put(at, 0xC0 + device)
        self.live[0xC0 + device] = "context"

    def _cuDevicePrimaryCtxRelease_v2(self, device: int) -> None:
        del self.live[0xC0 + device]

    def _cuCtxSetCurrent(self, context: int | None) -> None:
        self._thread.context = context

    @property
    def gpu(self) -> Gpu:
        """Of the current context."""
        assert self.current is not None, "no context is current"
        return self.gpus[self.current - 0xC0]

    # ---- memory --------------------------------------------------------------------------------
    def _cuMemGetInfo_v2(self, free: int, total: int) -> None:
        put(free, self.gpu.total_bytes - self.gpu.allocated)
        put(total, self.gpu.total_bytes)

    def _cuMemAlloc_v2(self, at: int, size: int) -> int | None:
        if size > self.gpu.total_bytes - self.gpu.allocated:
            return 2
        memory = np.full(size + 256, 0xAB, np.uint8)
        address = (memory.ctypes.data + 255) // 256 * 256
        self._memory[address] = memory, size
        self.gpu.allocated += size
        self.live[address] = "memory"
        put(at, address)
        return None

    def _cuMemFree_v2(self, address: int) -> None:
        self.gpu.allocated -= self._memory.pop(address)[1]
        del self.live[address]

    def _cuMemHostAlloc(self, at: int, size: int, flags: int) -> None:
        memory = np.full(size, 0xAB, np.uint8)
        self._memory[memory.ctypes.data] = memory, size
        self.live[memory.ctypes.data] = "host memory"
        put(at, memory.ctypes.data)

    def _cuMemFreeHost(self, address: int) -> None:
        del self._memory[address], self.live[address]

    def _inside(self, address: int, size: int) -> bool:
        return any(a <= address and address + size <= a + n for a, (_, n) in self._memory.items())

    def _cuMemcpyHtoDAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        assert self._inside(to, size)
        ctypes.memmove(to, source, size)

    def _cuMemcpyDtoHAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        assert self._inside(source, size)
        ctypes.memmove(to, source, size)

    def _cuMemcpyDtoDAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        assert self._inside(source, size) and self._inside(to, size)
        ctypes.memmove(to, source, size)

    def _cuMemsetD8Async(self, to: int, value: int, size: int, stream: int) -> None:
        assert self._inside(to, size)
        ctypes.memset(to, value, size)

    # ---- streams, events, graphs ---------------------------------------------------------------
    def _cuStreamCreate(self, at: int, flags: int) -> None:
        assert flags == 1  # else work would wait for the default stream's
        put(at, self._new("stream"))

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        assert flags == 0

    def _cuEventCreate(self, at: int, flags: int) -> None:
        put(at, self._new("event" if flags == 2 else "timed event"))

    def _destroy(self, handle: int) -> None:
        del self.live[handle]

    _cuStreamDestroy_v2 = _cuEventDestroy_v2 = _cuGraphDestroy = _cuGraphExecDestroy = _destroy

    def _cuStreamSynchronize(self, stream: int) -> None:
        assert self.live[stream] == "stream" and self._capturing is None

    def _cuEventRecord(self, event: int, stream: int) -> None:
        self._clock += 1.0
        self._times[event] = self._clock

    def _cuEventRecordWithFlags(self, event: int, stream: int, flags: int) -> None:
        assert flags == 1
        self.issue(lambda: self._cuEventRecord(event, stream))

    def _cuEventQuery(self, event: int) -> int | None:
        return 600 if self._times.get(event, 0.0) == self._clock else None  # the last one: not yet

    def _cuEventSynchronize(self, event: int) -> None:
        self._clock += 1.0

    def _cuEventElapsedTime(self, at: int, start: int, end: int) -> None:
        elapsed = self._times[end] - self._times[start]
        put(at, elapsed, ctypes.c_float)  # type: ignore[arg-type]

    def _cuStreamBeginCapture_v2(self, stream: int, mode: int) -> None:
        assert self._capturing is None and mode in (1, 2)
        self._capturing = []

    def _cuStreamEndCapture(self, stream: int, at: int) -> None:
        assert self._capturing is not None
        graph = self._new("graph")
        self._graphs[graph], self._capturing = self._capturing, None
        put(at, graph)

    def _cuGraphGetNodes(self, graph: int, nodes: int | None, number: int) -> None:
        put(number, len(self._graphs[graph]))

    def _cuGraphInstantiateWithFlags(self, at: int, graph: int, flags: int) -> None:
        executable = self._new("executable")
        self._graphs[executable] = self._graphs[graph]
        put(at, executable)

    def _cuGraphLaunch(self, executable: int, stream: int) -> None:
        assert self.live[executable] == "executable"
        for item in self._graphs[executable]:
            item() if callable(item) else self.launched.append(item)

    # ---- kernels -------------------------------------------------------------------------------
    def _cuModuleLoadDataEx(
        self, at: int, text: int, count: int, options: int, values: int
    ) -> int | None:
        assert list((c_int * count).from_address(options)) == [5, 6]  # the error log, its size
        log, size = (c_uint64 * count).from_address(values)
        source = string_at(text).decode()
        if "not.an.instruction" in source:
            said = b"ptxas application ptx input, line 7; error : Not a name\n\0"
            assert len(said) <= size
            ctypes.memmove(log, said, len(said))
            return 218
        module = self._new("module")
        self._modules[module] = source
        put(at, module)
        return None

    _cuModuleUnload = _destroy

    def _cuModuleGetFunction(self, at: int, module: int, name: bytes) -> int | None:
        found = re.search(r"\.entry (\w+)\(([^)]*)\)", self._modules[module])
        assert found
        if found[1] != name.decode():
            return 500
        function = self._next = self._next + 16
        self._kernels[function] = found[1], "".join(re.findall(r"\.param \.(u|f)", found[2]))
        put(at, function)
        return None

    def _cuFuncGetAttribute(self, at: int, attribute: int, function: int) -> None:
        put(at, 0, c_int)

    def _cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        pass

    def _cuLaunchKernel(self, function: int, *rest: Any) -> int | None:
        *sizes, shared, stream, parameters, extra = rest
        assert shared == 0 and extra is None
        return self._launch(function, sizes, stream, parameters, False)

    def _cuLaunchKernelEx(
        self, config: int, function: int, parameters: int, extra: int | None
    ) -> int | None:
        # By the offsets of cuda.h, as its compiler lays them out.
        raw = string_at(config, 56)
        sizes = struct.unpack_from("=6I", raw, 0)
        shared, stream = struct.unpack_from("=I", raw, 24)[0], struct.unpack_from("=Q", raw, 32)[0]
        attributes, count = struct.unpack_from("=QI", raw, 40)
        assert shared == 0 and extra is None and count == 1
        attribute = string_at(attributes, 72)
        assert struct.unpack_from("=I", attribute, 0)[0] == 6
        allowed = struct.unpack_from("=i", attribute, 8)[0]
        return self._launch(function, sizes, stream, parameters, allowed == 1)

    def _launch(
        self, function: int, sizes: Any, stream: int, parameters: int, programmatic: bool
    ) -> int | None:
        assert self.current is not None and self.live[stream] == "stream"
        if min(sizes) < 1 or max(sizes[1:3]) > 65535:
            return 1
        symbol, kinds = self._kernels[function]
        arguments: list[int | float] = []
        for kind, at in zip(kinds, (c_uint64 * len(kinds)).from_address(parameters), strict=True):
            letter, size = ("q", 8) if kind == "u" else ("f", 4)
            arguments.append(struct.unpack("=" + letter, string_at(at, size))[0])
        grid, block = tuple(sizes[:3]), tuple(sizes[3:])
        self.issue(Launched(symbol, grid, block, tuple(arguments), programmatic, stream))  # type: ignore[arg-type]
        return None


@dataclass
class BlasLibrary:
    """Looks like libcublas; computes its products in NumPy."""

    driver: Library
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    fail: dict[str, int] = field(default_factory=dict)
    _functions: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name not in blas.SIGNATURES:
            raise AttributeError(name)
        if name not in self._functions:

            def call(*arguments: Any) -> int:
                self.calls.append((name, arguments))
                if code := self.fail.get(name):
                    return code
                plain = getattr(BlasLibrary, f"_{name}", None)
                return (plain(self, *arguments) if plain else None) or 0

            self._functions[name] = ctypes.CFUNCTYPE(c_int, *blas.SIGNATURES[name])(call)
        return self._functions[name]

    def _cublasCreate_v2(self, at: int) -> None:
        put(at, 0xB1A5)

    def _cublasGetVersion_v2(self, handle: int, at: int) -> None:
        put(at, 130100, c_int)

    def _cublasGemmEx(self, handle: int, *arguments: Any) -> None:
        # As in Fortran: c (m, n) = alpha * op(a) @ op(b) + beta * c, columns one after the other.
        ta, tb, m, n, k, alpha, a, ka, lda, b, kb, ldb, beta, c, kc, ldc, compute, how = arguments
        assert (ta, tb, kc, compute, how) == (1, 0, 0, 68, -1) and ka == kb and handle == 0xB1A5
        factors = [cast(p, POINTER(ctypes.c_float))[0] for p in (alpha, beta)]
        kind = {0: np.float32, 2: np.float16}[ka]

        def run() -> None:
            left = matrix(a, kind, n=m, ld=lda, length=k)
            right = matrix(b, kind, n=n, ld=ldb, length=k)
            out = matrix(c, np.float32, n=n, ld=ldc, length=m)
            product = right.astype(np.float32) @ left.astype(np.float32).T
            out[:] = factors[0] * product + (factors[1] * out if factors[1] else 0)

        if self.driver._capturing is None:
            run()
            self.driver.launched.append("gemm")
        else:
            self.driver.issue(run)


def matrix(address: int, kind: Any, *, n: int, ld: int, length: int) -> Any:
    """n columns of `length` values, `ld` apart: a (n, length) array over the memory."""
    size = ((n - 1) * ld + length) * np.dtype(kind).itemsize
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    flat = np.frombuffer(memory, kind)
    strides = (ld * flat.itemsize, flat.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (n, length), strides)
