"""Whether the path to the GPU works at all: python benchmarks/cuda/smoke.py [DEVICE]

Opens the device, copies, runs a kernel and products in every way there is, and checks them against
NumPy. What fails is printed, and the rest goes on; ends with 1 when anything did. Kernels come from
the cache, or from LLAMBA_KERNEL_PATH: llamba kernels build --target cuda-sm90 -o FOLDER.
"""

import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from package import use_checkout

use_checkout()

from llamba.errors import DeviceError  # noqa: E402
from llamba.runtime.cuda import driver, kernel_modules  # noqa: E402
from llamba.runtime.cuda.nvidia import NvidiaDevice  # noqa: E402
from llamba.runtime.kernels.cuda.launch import Gemm, Launch  # noqa: E402
from llamba.runtime.kernels.records import NORM_RMS  # noqa: E402

COLUMNS, TOKENS = 4096, 3
RNG = np.random.default_rng(7)


class Norm:
    """norm:norm on random rows, and what it must give."""

    def __init__(self, device: NvidiaDevice) -> None:
        self.device = device
        self.x = RNG.standard_normal((TOKENS, COLUMNS)).astype(np.float32)
        self.weight = RNG.standard_normal(COLUMNS).astype(np.float32)
        self.x_at, self.weight_at = upload(device, self.x), upload(device, self.weight)
        self.out_at = device.allocate(self.x.nbytes)
        self.q_at = device.allocate(self.x.size)
        self.scales_at = device.allocate(self.x.size // 32 * 8)
        self.half_at = device.allocate(self.x.size * 2)
        strides = (self.x_at, 4 * COLUMNS, self.weight_at, 0, 1e-5, COLUMNS, NORM_RMS)
        put = (self.q_at, self.scales_at, self.half_at, 0, 0)
        self.launch = Launch("norm:norm", (TOKENS, 1, 1), (*strides, self.out_at, *put))
        wide = self.x.astype(np.float64)
        self.wanted = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * self.weight

    def clear(self) -> None:
        """So that an old result is not taken for a new one."""
        self.device.write(self.out_at, np.full(self.x.shape, np.nan, np.float32))

    def check(self) -> str:
        """The error of all that it wrote."""
        shape = self.x.shape
        out = self.device.read(self.out_at, self.x.nbytes).view(np.float32).reshape(shape)
        worst = float(np.abs(out - self.wanted).max())
        assert worst < 1e-4, f"out is {worst} off"
        half = self.device.read(self.half_at, self.x.size * 2).view(np.float16).reshape(shape)
        assert np.abs(half - self.wanted).max() < 5e-3
        q = self.device.read(self.q_at, self.x.size).view(np.int8).reshape(TOKENS, -1, 32)
        pairs = self.device.read(self.scales_at, self.x.size // 4).view(np.float32)
        d = pairs.reshape(TOKENS, -1, 2)
        back = (q * d[:, :, :1]).reshape(shape)
        assert (np.abs(back - self.wanted) <= np.repeat(d[:, :, 0], 32, 1) * 0.51 + 1e-4).all()
        assert np.allclose(d[:, :, 1], d[:, :, 0] * q.sum(2), rtol=1e-5, atol=1e-5)
        return f"largest error {worst:.2g}"


def upload(device: NvidiaDevice, data: Any) -> int:
    """A copy of an array on the device."""
    at = device.allocate(data.nbytes)
    device.write(at, data)
    return at


def facts(device: NvidiaDevice) -> str:
    """Who it is."""
    version = driver.version_text(device.info.driver_version)
    return f"{device.info}\n    CUDA {version}, {device.free_bytes() / 1e9:.1f} GB free"


def memory(device: NvidiaDevice) -> str:
    """Zeroed memory and copies of all kinds."""
    data = RNG.integers(0, 256, 1 << 20).astype(np.uint8)
    a, b = device.allocate(data.size), device.allocate(data.size)
    assert a % 256 == b % 256 == 0
    assert not device.read(a, data.size).any(), "not zeroed"
    device.write(a, data)
    device.copy(b, a, data.size)
    assert (device.read(b, data.size) == data).all(), "write, copy, read"
    host, event = device.host_buffer(data.size), device.event()
    device.download(host, 16, b, 1000)
    event.record()
    event.wait()
    assert event.done() and (host.array[16:1016] == data[:1000]).all(), "download"
    host.array[:] = data[::-1]
    device.upload(b, host, 0, data.size)
    assert (device.read(b, data.size) == data[::-1]).all(), "upload"
    for address in (a, b):
        device.release(address)
    return "write, read, copy, upload, download, event"


def kernels(device: NvidiaDevice) -> str:
    """Load them."""
    start = time.perf_counter()
    device.load(["norm:norm", "norm:norm_add"])
    return f"{(time.perf_counter() - start) * 1e3:.1f} ms for two (from PTX, or the driver's cache)"


def eager(device: NvidiaDevice) -> str:
    """One launch, and three in a row, with and without early starts."""
    norm, told = Norm(device), []
    usual = device.programmatic
    for device.programmatic in (False, usual):
        norm.clear()
        device.run([norm.launch] * 3)
        device.synchronize()
        told.append(f"early starts {device.programmatic}: {norm.check()}")
    return "; ".join(told)


def graphs(device: NvidiaDevice) -> str:
    """The same in graphs."""
    norm, told = Norm(device), []
    usual = device.programmatic
    for device.programmatic in (False, usual):
        graph: Any = device.capture([norm.launch] * 3)
        norm.clear()
        graph.launch()
        told.append(f"early starts {device.programmatic}: {graph.num_nodes} nodes, {norm.check()}")
        graph.close()
    return "; ".join(told)


def products(device: NvidiaDevice) -> str:
    """cuBLAS: float16 and float32, strides wider than the rows, alpha and beta."""
    rows, columns, tokens, told = 320, COLUMNS, 48, []
    for kind, single in ((np.float16, False), (np.float32, True)):
        weight = RNG.standard_normal((rows, columns)).astype(kind)
        x = RNG.standard_normal((tokens, columns + 64)).astype(kind)
        old = RNG.standard_normal((tokens, rows + 16)).astype(np.float32)
        product = x[:, :columns].astype(np.float64) @ weight.astype(np.float64).T
        addresses = [upload(device, data) for data in (weight, x, old)]
        sizes = [rows, columns, tokens, columns + 64, rows + 16]
        gemm = Gemm(*addresses, *sizes, alpha=0.5, beta=2.0, single=single)
        for graphed in (False, True):
            device.write(addresses[2], old)
            device.capture([gemm]).launch() if graphed else device.run([gemm])
            out = device.read(addresses[2], old.nbytes).view(np.float32).reshape(old.shape)
            wanted = old.astype(np.float64)
            wanted[:, :rows] = 0.5 * product + 2.0 * wanted[:, :rows]
            worst = float(np.abs(out - wanted).max())
            assert worst < 2e-2, f"{gemm} is {worst} off"
            told.append(f"{kind.__name__}{' in a graph' if graphed else ''}: {worst:.2g}")
    version = device.blas().version()
    return f"largest errors {', '.join(told)}\n    cuBLAS {version} of {device.blas().path}"


def mixed(device: NvidiaDevice) -> str:
    """A kernel, a product of its result, and a kernel again, in one graph."""
    norm, rows = Norm(device), 256
    weight = RNG.standard_normal((rows, COLUMNS)).astype(np.float16)
    out_at = device.allocate(TOKENS * rows * 4)
    gemm = Gemm(upload(device, weight), norm.half_at, out_at, rows, COLUMNS, TOKENS, COLUMNS, rows)
    graph: Any = device.capture([norm.launch, gemm, norm.launch, gemm])
    norm.clear()
    graph.launch()
    error = norm.check()
    half = device.read(norm.half_at, norm.x.size * 2).view(np.float16).reshape(norm.x.shape)
    out = device.read(out_at, TOKENS * rows * 4).view(np.float32).reshape(TOKENS, rows)
    wanted = half.astype(np.float64) @ weight.astype(np.float64).T
    worst = float(np.abs(out - wanted).max())
    assert worst < 2e-2, f"the product is {worst} off"
    return f"{graph.num_nodes} nodes, {error}, product {worst:.2g}"


def times(device: NvidiaDevice) -> str:
    """What launches cost, and the profile."""
    norm = Norm(device)
    work, told = [norm.launch] * 300, []
    graph = device.capture(work)
    for name, start_all in (("eager", lambda: device.run(work)), ("graph", graph.launch)):
        best_issue = best = float("inf")
        for _ in range(5):
            device.synchronize()
            start = time.perf_counter()
            start_all()
            issued = time.perf_counter()
            device.synchronize()
            best_issue = min(best_issue, (issued - start) / 300 * 1e6)
            best = min(best, (time.perf_counter() - start) / 300 * 1e6)
        told.append(f"{name} {best_issue:.2f} us to launch, {best:.2f} us in all")
    found = device.profile(work[:5])
    each = ", ".join(f"{seconds * 1e6:.1f}" for _, seconds in found)
    return "; ".join(told) + f"\n    profile of {found[0][0]}: {each} us"


def errors(device: NvidiaDevice) -> str:
    """Messages of what must fail."""
    told = []
    attempts: list[Callable[[], Any]] = [
        lambda: device.allocate(1 << 50),
        lambda: device.run([Launch("norm:absent", (1, 1, 1), ())]),
        lambda: device.run([Launch("norm:norm", (1 << 20, 1 << 20, 1), (0,) * 13)]),
        lambda: kernel_modules.load_function(device._context, "broken", BROKEN),
        lambda: NvidiaDevice(99),
    ]
    for attempt in attempts:
        try:
            attempt()
            raise AssertionError(f"attempt {len(told)} did not fail")
        except DeviceError as error:
            told.append(f"    {error}")
    return "\n" + "\n".join(told)


BROKEN = """.version 7.8
.target sm_80
.address_size 64
.visible .entry broken(.param .u64 broken_param_0)
.maxntid 32
{
    not.an.instruction %r1;
    ret;
}
"""


def forked(device: NvidiaDevice) -> str:
    """A child that was forked must be told so."""
    queue: Any = multiprocessing.get_context("fork").Queue()

    def child() -> None:
        for attempt in (device.synchronize, lambda: NvidiaDevice(0)):
            try:
                attempt()
                queue.put("did not fail")
            except DeviceError as error:
                queue.put(str(error))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    said = [queue.get(timeout=20) for _ in range(2)]
    process.join(20)
    assert all("forked" in text for text in said), said
    return "\n    " + "\n    ".join(said)


def again(device: NvidiaDevice) -> str:
    """Close it and open it once more."""
    index = device.index
    device.close()
    device.close()
    other = NvidiaDevice(index)
    other.load(["norm:norm"])
    norm = Norm(other)
    other.run([norm.launch])
    told = norm.check()
    other.close()
    return told


def main() -> None:
    """Everything, in order."""
    found, why = driver.available()
    print(f"GPUs: {len(found)} {why}")
    try:
        device = NvidiaDevice(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    except DeviceError as error:
        sys.exit(f"FAILED: {error}")
    steps = (facts, memory, kernels, eager, graphs, products, mixed, times, errors, forked, again)
    failed = []
    for step in steps:
        try:
            print(f"{step.__name__}: {step(device)}", flush=True)
        except Exception:
            failed.append(step.__name__)
            print(f"{step.__name__}: FAILED\n{traceback.format_exc()}", flush=True)
    print(f"failed: {', '.join(failed) or 'nothing'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
