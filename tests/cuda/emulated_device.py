"""A device in NumPy: runtime/cuda/device.py's protocol, with checks that no GPU makes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from emulated import kernel_of, launch, shared_places
from emulated_memory import Fault, Memory
from numpy.typing import NDArray

from llamba.quant.cuda.compiler import find_kernel, parameters
from llamba.quant.cuda.simt import Kernel
from llamba.runtime.cuda.device import Progress
from llamba.runtime.kernels.cuda.launch import Gemm, Work

_KERNELS = "runtime.kernels.cuda"


class HostBuffer:
    """Memory of the host."""

    def __init__(self, num_bytes: int) -> None:
        self.array = np.zeros(num_bytes, np.uint8)


class Event:
    """Nothing is ever under way."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._recorded = 0

    def record(self) -> None:
        """After the last launch."""
        self._recorded = self._memory.launches

    def wait(self) -> None:
        """What was recorded is done; at once if nothing was."""
        self._memory.settle(self._recorded)

    def done(self) -> bool:
        """Yes."""
        return True


class Graph:
    """Work that runs again and again."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run: Callable[[], None] | None = run

    def launch(self) -> None:
        """Run it."""
        assert self._run is not None, "the graph is closed"
        self._run()

    def close(self) -> None:
        """Forget it."""
        self._run = None


class EmulatedDevice:
    """The GPU of tests. Work runs when it is given."""

    def __init__(self, num_bytes: int = 1 << 28, index: int = 0, architecture: int = 90) -> None:
        self.index, self.name, self.architecture = index, "emulated in NumPy", architecture
        self.num_multiprocessors = 16
        self.memory = Memory(num_bytes)
        self.total_bytes = len(self.memory.bytes)
        self.launched: list[str] = []  # the kernels that ran, for tests
        self._kernels: dict[str, Kernel] = {}
        self._kinds: dict[Kernel, list[str]] = {}

    def free_bytes(self) -> int:
        """What isn't allocated."""
        taken = sum(-(-n // 256) * 256 + 256 for n in self.memory.allocated.values())
        return max(0, self.total_bytes - 4096 - taken)

    def allocate(self, num_bytes: int) -> int:
        """Address of zeroed memory."""
        found = self.memory.allocate(num_bytes)
        if found is None:
            from llamba import errors

            kind = getattr(errors, "DeviceError", MemoryError)
            raise kind(f"{num_bytes} bytes asked for, {self.free_bytes()} are free")
        return found

    def release(self, address: int) -> None:
        """Give it back."""
        self.memory.release(address)

    def write(self, address: int, data: NDArray[Any]) -> None:
        """Copy an array to the device."""
        assert data.flags.c_contiguous, "only contiguous arrays are copied"
        self.memory.check_range("write", address, data.nbytes)
        self.memory.bytes[address : address + data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """Copy from the device."""
        self.memory.check_range("read", address, num_bytes)
        self.memory.settle(self.memory.launches)
        return self.memory.bytes[address : address + num_bytes].copy()

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Within the device."""
        self.memory.check_range("copy from", source, num_bytes)
        self.memory.check_range("copy to", target, num_bytes)
        data = self.memory.bytes
        data[target : target + num_bytes] = data[source : source + num_bytes].copy()

    def host_buffer(self, num_bytes: int) -> HostBuffer:
        """Memory of the host."""
        return HostBuffer(num_bytes)

    def upload(self, address: int, source: HostBuffer, at: int, num_bytes: int) -> None:
        """From the host."""
        assert 0 <= at and at + num_bytes <= len(source.array), "more than the buffer has"
        self.write(address, source.array[at : at + num_bytes])

    def download(self, target: HostBuffer, at: int, address: int, num_bytes: int) -> None:
        """To the host."""
        assert 0 <= at and at + num_bytes <= len(target.array), "more than the buffer has"
        self.memory.check_range("download", address, num_bytes)
        target.array[at : at + num_bytes] = self.memory.bytes[address : address + num_bytes]

    def fetch(self, copies: Any, arrived: Any) -> None:
        """To the host, all at once."""
        for copy in copies:
            self.download(*copy)
        arrived.record()

    def event(self) -> Event:
        """A new one."""
        return Event(self.memory)

    def load(self, kernels: Sequence[str], progress: Progress | None = None) -> None:
        """Find kernels and rewrite them."""
        for k, name in enumerate(kernels):
            if name not in self._kernels:
                found = find_kernel(f"{_KERNELS}.{name}")
                assert isinstance(found, Kernel), f"{name} is no kernel"
                kernel_of(found)
                self._kernels[name] = found
            if progress is not None:
                progress(k + 1, len(kernels))

    def add(self, name: str, kernel: Kernel) -> None:
        """A kernel that is in no module: of a test."""
        self._kernels[name] = kernel

    def run(self, work: Sequence[Work]) -> None:
        """Do it."""
        for each in work:
            self._check(each)
            self.memory.launches += 1
            if isinstance(each, Gemm):
                self._multiply(each)
            else:
                self.launched.append(each.kernel)
                launch(self.memory, self._kernels[each.kernel], each.grid, each.arguments)

    def capture(self, work: Sequence[Work]) -> Graph:
        """For later."""
        kept = list(work)
        for each in kept:
            self._check(each)
        return Graph(lambda: self.run(kept))

    def synchronize(self) -> None:
        """All is done."""
        self.memory.settle(self.memory.launches)

    def close(self) -> None:
        """Give everything back."""
        self.memory = Memory(4096)

    def _check(self, work: Work) -> None:
        if isinstance(work, Gemm):
            return
        name = work.kernel
        if name not in self._kernels:
            raise Fault(f"{name} was not loaded")
        found = self._kernels[name]
        if found not in self._kinds:
            self._kinds[found] = parameters(found)
        kinds = self._kinds[found]
        given = work.arguments
        if len(kinds) != len(given):
            raise Fault(f"{name} takes {len(kinds)} arguments; {len(given)} are given")
        for k, (kind, value) in enumerate(zip(kinds, given, strict=True)):
            wanted: Any = (int, np.integer) if kind == "i64" else (float, np.floating)
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise Fault(f"{name}: argument {k} is {value!r}; it takes {kind}")
        x, y, z = work.grid
        if not (0 < x < 1 << 31 and 0 < y <= 65535 and 0 < z <= 65535):
            raise Fault(f"{name}: a grid of {x} x {y} x {z} blocks")
        _, shared = shared_places(kernel_of(found).shared)
        if shared > 48 * 1024:
            raise Fault(f"{name}: {shared} bytes of shared memory; there are 49152")

    def _multiply(self, g: Gemm) -> None:
        dtype: Any = np.float32 if g.single else np.float16
        size = 4 if g.single else 2
        weight = self._matrix("Gemm weight", g.weight, g.rows, g.columns, g.columns, dtype, size)
        x = self._matrix("Gemm x", g.x, g.tokens, g.columns, g.x_stride, dtype, size)
        out = self._matrix("Gemm out", g.out, g.tokens, g.rows, g.out_stride, np.float32, 4)
        product = np.float32(g.alpha) * (x.astype(np.float32) @ weight.astype(np.float32).T)
        out[:] = product if g.beta == 0 else product + np.float32(g.beta) * out
        num_bytes = ((g.tokens - 1) * g.out_stride + g.rows) * 4
        self.memory.mark_written(g.out, num_bytes, g.out, g.out + num_bytes)

    def _matrix(
        self, what: str, at: int, rows: int, columns: int, stride: int, dtype: Any, size: int
    ) -> NDArray[Any]:
        if columns > stride:
            raise Fault(f"{what}: rows of {columns}, {stride} apart")
        if at % 16:
            raise Fault(f"{what}: address {at:#x} is not aligned to 16 bytes")
        num_bytes = ((rows - 1) * stride + columns) * size
        self.memory.check_range(what, at, num_bytes)
        flat = self.memory.bytes[at : at + num_bytes].view(dtype)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), (stride * size, size))
