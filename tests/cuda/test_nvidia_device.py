"""The real device's code over a driver that is faked: what it asks of it, and in which order."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import fake_driver as fakes
import numpy as np
import pytest

from llamba.errors import DeviceError, ResourceError
from llamba.runtime.cuda import blas, driver, ptx_cache
from llamba.runtime.cuda.device import Device
from llamba.runtime.cuda.nvidia import NvidiaDevice, open_device
from llamba.runtime.cuda.pinned import Ring
from llamba.runtime.kernels.cuda.launch import Gemm, Launch

KINDS = {"test:one": "qqf", "test:two": "fq", "test:plain": "q"}
Made = Callable[..., tuple[NvidiaDevice, Any]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """make(gpus..., version=...) -> a device on a fake driver, and that."""
    libraries: list[Any] = []

    def load(names: Any, architecture: int, progress: Any = None) -> dict[str, str]:
        return {
            n: fakes.ptx(n, KINDS[n], programmatic=n != "test:plain" and architecture >= 90)
            for n in names
        }

    monkeypatch.setattr(ptx_cache, "load", load)
    monkeypatch.setattr(driver, "_forked", False)

    def made(*gpus: Any, version: int = 13000, absent: tuple[str, ...] = ()) -> Any:
        library: Any = fakes.Library(*(gpus or (fakes.Gpu(),)), version=version)
        library.absent |= set(absent)
        library.blas = fakes.BlasLibrary(library)
        libraries.append(library)
        monkeypatch.setattr(driver, "_opened", None)
        monkeypatch.setattr(driver, "_library", lambda: library)
        monkeypatch.setattr(
            blas, "open_library", lambda v: (blas._bound(library.blas), "/fake/libcublas.so")
        )
        return NvidiaDevice(0), library

    yield made
    for library in libraries:
        assert library.mistakes == []


def test_facts(make: Made) -> None:
    gpu = fakes.Gpu("H9 PCIe", (9, 0), 114, 5 << 30)
    device, _ = make(gpu)
    assert (device.name, device.architecture, device.index) == ("H9 PCIe", 90, 0)
    assert (device.num_multiprocessors, device.total_bytes) == (114, 5 << 30)
    assert device.free_bytes() == 5 << 30
    assert device.info.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert device.info.bus_id == "0000:01:00.0" and device.info.driver_version == 13000


@pytest.mark.parametrize("num_bytes", (1, 100, 70_001))
def test_copies(make: Made, num_bytes: int) -> None:
    device, library = make()
    data = np.random.default_rng(1).integers(0, 256, num_bytes).astype(np.uint8)
    a, b = device.allocate(num_bytes), device.allocate(num_bytes)
    assert a % 256 == 0 and not device.read(a, num_bytes).any()
    device.write(a, data)
    device.copy(b, a, num_bytes)
    assert (device.read(b, num_bytes) == data).all()
    host = device.host_buffer(num_bytes + 5)
    assert not host.array.any()
    device.download(host, 5, b, num_bytes)
    assert (host.array[5:] == data).all() and not host.array[:5].any()
    host.array[:] = 7
    device.upload(b, host, 1, num_bytes)
    assert (device.read(b, num_bytes) == 7).all()
    with pytest.raises(ValueError, match="bytes at 6"):
        device.upload(b, host, 6, num_bytes)
    with pytest.raises(ValueError, match="not contiguous"):
        device.write(a, np.zeros((4, 4))[:, 1])
    device.write(a, data[:0])
    assert device.read(a, 0).size == 0
    assert library.gpus[0].allocated == 2 * num_bytes
    device.release(a)
    device.release(b)
    assert library.gpus[0].allocated == 0


def test_small_writes_wait_for_nobody_and_are_never_mixed_up(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a copy reads stays until the GPU must have read it, which a wait for its event says."""
    device, library = make()
    at = device.allocate(Ring.LARGEST)
    device.write(at, np.zeros(8, np.uint8))  # makes the ring
    copies: list[tuple[int, int, int]] = []  # how many waits there were before; where it reads

    def noted(self: Any, to: int, source: int, size: int, stream: int) -> None:
        copies.append((self.names.count("cuEventSynchronize"), source, source + size))

    monkeypatch.setattr(fakes.Library, "_cuMemcpyHtoDAsync_v2", noted)
    library._functions.pop("cuMemcpyHtoDAsync_v2")
    device._driver._functions["cuMemcpyHtoDAsync_v2"] = library.cuMemcpyHtoDAsync_v2
    sizes = (Ring.LARGEST, 3, 65, 4096)
    before = library.names.count("cuStreamSynchronize")
    for i in range(120):
        device.write(at, np.full(sizes[i % 4], i, np.uint8))
    assert library.names.count("cuStreamSynchronize") == before
    assert len(copies) == 120 and copies[-1][0] >= 3  # it went round
    for i, (turn, start, end) in enumerate(copies):
        for later, other_start, other_end in copies[i + 1 :]:
            # The second next wait is for the half that this one lies in.
            assert later - turn >= 2 or end <= other_start or other_end <= start


def test_out_of_memory_says_how_much(make: Made) -> None:
    device, library = make(fakes.Gpu(total_bytes=3_000_000_000))
    library.gpus[0].allocated = 1_900_000_000
    with pytest.raises(DeviceError) as caught:
        device.allocate(2_500_000_000)
    said = str(caught.value)
    assert "2.50 GB more" in said and "1.10 of 3.0 GB are free" in said
    assert isinstance(caught.value, ResourceError) and caught.value.exit_code == 7


def launched(library: Any) -> list[Any]:
    """What was launched since the last time."""
    found, library.launched[:] = list(library.launched), []
    return found


def test_launches(make: Made) -> None:
    device, library = make()
    device.load(["test:one", "test:two", "test:plain"])
    high = (1 << 62) + 5
    work = [
        Launch("test:one", (4, 3, 2), (high, -7, 0.1)),
        Launch("test:two", (1, 1, 1), (3, 1 << 40)),
        Launch("test:two", (0, 1, 1), (3.0, 0)),  # nothing to do
        Launch("test:plain", (9, 1, 1), (11,)),
    ]
    device.run(work)
    one, two, plain = launched(library)
    assert one.symbol == "llamba_test__one" and one.grid == (4, 3, 2) and one.block == (128, 1, 1)
    assert one.arguments == (high, -7, float(np.float32(0.1))) and one.programmatic
    assert two.arguments == (3.0, 1 << 40) and two.programmatic
    assert plain.arguments == (11,) and not plain.programmatic  # it would not wait
    assert one.stream == two.stream == plain.stream != 0
    packed = device.prepare(work)
    assert device.prepare(work) is packed
    work[3] = Launch("test:plain", (2, 1, 1), (12,))
    device.run(work)
    assert launched(library)[2].arguments == (12,)
    assert device.prepare(list(work)) is not packed
    long = [Launch("test:plain", (i + 1, 1, 1), (i,)) for i in range(20)]
    packed = device.prepare(long)
    for i in range(200):  # short ones, each given once, don't take its place
        device.run([Launch("test:plain", (1, 1, 1), (i,))])
    assert device.prepare(long) is packed
    assert [one.arguments for one in launched(library)] == [(i,) for i in range(200)]


@pytest.mark.parametrize(
    ("capability", "version", "absent", "variable"),
    (
        ((8, 6), 13000, (), None),  # the GPU can't
        ((9, 0), 11040, ("cuLaunchKernelEx",), None),  # the driver can't, and reads older PTX only
        ((9, 0), 13000, (), "0"),
    ),
)
def test_without_early_starts(
    make: Made,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    version: int,
    absent: tuple[str, ...],
    variable: str | None,
) -> None:
    if variable:
        monkeypatch.setenv("LLAMBA_PDL", variable)
    device, library = make(fakes.Gpu(capability=capability), version=version, absent=absent)
    assert device.ptx_architecture == (90 if variable else 80)
    device.load(["test:one"])
    device.run([Launch("test:one", (5, 6, 7), (1, 2, 3.0))])
    (one,) = launched(library)
    assert not one.programmatic and one.grid == (5, 6, 7) and one.arguments == (1, 2, 3.0)


def test_wrong_launches(make: Made) -> None:
    device, library = make()
    device.load(["test:one"])
    with pytest.raises(DeviceError, match="test:two was not loaded"):
        device.run([Launch("test:two", (1, 1, 1), (1.0, 2))])
    for arguments in ((1, 2), (1, 2, 3.0, 4), (1.5, 2, 3.0), (1, 1 << 63, 3.0)):
        with pytest.raises(ValueError, match="test:one takes 'qqf'"):
            device.run([Launch("test:one", (1, 1, 1), arguments)])
    library.fail["cuLaunchKernelEx"] = 700
    wanted = r"can't run test:one on 2x1x1 \(cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(DeviceError, match=wanted):
        device.run([Launch("test:one", (2, 1, 1), (1, 2, 3.0))])


def gemm_on(device: Any, *, single: bool = False, **more: Any) -> tuple[Gemm, Any, Any]:
    """A product, its output before, and what it must give."""
    rng, kind = np.random.default_rng(3), np.float32 if single else np.float16
    weight = rng.integers(-4, 5, (5, 32)).astype(kind)
    x = rng.integers(-4, 5, (3, 40)).astype(kind)
    old = rng.integers(-4, 5, (3, 9)).astype(np.float32)
    at = [device.allocate(a.nbytes) for a in (weight, x, old)]
    for address, data in zip(at, (weight, x, old), strict=True):
        device.write(address, data)
    gemm = Gemm(at[0], at[1], at[2], 5, 32, 3, 40, 9, single=single, **more)
    wanted = old.copy()
    wanted[:, :5] = gemm.alpha * (x[:, :32].astype(np.float32) @ weight.astype(np.float32).T)
    wanted[:, :5] += gemm.beta * old[:, :5]
    return gemm, old, wanted


@pytest.mark.parametrize("single", (False, True))
@pytest.mark.parametrize("factors", ({}, {"alpha": 0.5, "beta": 2.0}))
def test_products(make: Made, single: bool, factors: dict[str, float]) -> None:
    device, library = make(fakes.Gpu(total_bytes=1 << 30))
    gemm, old, wanted = gemm_on(device, single=single, **factors)
    device.run([gemm])
    assert (device.read(gemm.out, old.nbytes).view(np.float32).reshape(3, 9) == wanted).all()
    names = [name for name, _ in library.blas.calls]
    # Setting the stream gives up the workspace that was set before.
    assert names.index("cublasSetStream_v2") < names.index("cublasSetWorkspace_v2")
    assert ("cublasSetMathMode", (0xB1A5, 16)) in library.blas.calls
    library.blas.fail["cublasGemmEx"] = 13
    with pytest.raises(DeviceError, match="cuBLAS failed .*5x32, 3 tokens.*EXECUTION_FAILED"):
        device.run([gemm])


def test_a_graph_of_launches_and_products(make: Made) -> None:
    device, library = make(fakes.Gpu(total_bytes=1 << 30))
    device.load(["test:one"])
    gemm, old, wanted = gemm_on(device)
    graph: Any = device.capture([Launch("test:one", (i + 1, 1, 1), (i, 0, 0.0)) for i in range(3)])
    mixed: Any = device.capture([Launch("test:one", (7, 1, 1), (1, 2, 3.0)), gemm])
    assert launched(library) == [] and (graph.num_nodes, mixed.num_nodes) == (3, 2)
    for _ in range(2):
        graph.launch()
    assert [one.grid[0] for one in launched(library)] == [1, 2, 3] * 2
    mixed.launch()
    assert (device.read(gemm.out, old.nbytes).view(np.float32).reshape(3, 9) == wanted).all()
    graph.close()
    with pytest.raises(ValueError, match="closed"):
        graph.launch()
    del mixed
    gc.collect()
    device.synchronize()
    kinds = list(library.live.values())
    assert "executable" not in kinds and "graph" not in kinds


def test_a_capture_that_fails_leaves_the_stream_usable(make: Made) -> None:
    device, library = make()
    device.load(["test:one"])
    work = [Launch("test:one", (1, 1, 1), (1, 2, 3.0))]
    library.fail |= {"cuLaunchKernelEx": 1, "cuLaunchKernel": 1}
    with pytest.raises(DeviceError, match="test:one"):
        device.capture(work)
    library.fail.clear()
    library.fail["cuGraphInstantiateWithFlags"] = 2
    with pytest.raises(DeviceError, match="cuGraphInstantiateWithFlags"):
        device.capture(work)
    library.fail.clear()
    device.capture(work).launch()
    [one] = launched(library)
    assert one.programmatic  # which was no reason
    assert "graph" not in library.live.values()


def test_a_driver_that_does_not_capture_early_starts(make: Made) -> None:
    """Its graphs go without; what is launched one by one has them."""
    device, library = make(version=12020)
    device.load(["test:one"])
    work = [Launch("test:one", (1, 1, 1), (1, 2, 3.0))]
    library.fail["cuLaunchKernelEx"] = 900
    device.capture(work).launch()
    tries = library.names.count("cuLaunchKernelEx")
    device.capture(work).launch()
    assert tries == library.names.count("cuLaunchKernelEx") == 1
    library.fail.clear()
    device.run(work)
    assert [one.programmatic for one in launched(library)] == [False, False, True]


def test_a_gpu_without_room_for_a_stream(make: Made) -> None:
    device, library = make()
    device.close()
    library.fail["cuStreamCreate"] = 2
    with pytest.raises(DeviceError, match="cuStreamCreate"):
        type(device)(0)
    assert "context" not in library.live.values()


def test_events(make: Made) -> None:
    device, library = make()
    event = device.event()
    assert library.live[event._handle] == "event"  # without timing: it costs less
    event.record()
    assert not event.done()
    event.wait()
    assert event.done()
    library.fail["cuEventQuery"] = 700
    with pytest.raises(DeviceError, match="cuEventQuery"):
        event.done()
    del event
    gc.collect()
    device.synchronize()
    assert "event" not in library.live.values()


def test_profile(make: Made) -> None:
    device, _ = make(fakes.Gpu(total_bytes=1 << 30))
    device.load(["test:one"])
    gemm, _, _ = gemm_on(device)
    found = device.profile([Launch("test:one", (4, 1, 1), (1, 2, 3.0)), gemm])
    assert [name for name, _ in found] == ["test:one on 4x1x1", "gemm of half 5x32, 3 tokens"]
    assert [seconds for _, seconds in found] == [0.001, 0.001]  # a tick of the fake's clock


def test_stepwise_names_the_kernel(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMBA_CUDA_STEPWISE", "1")
    device, library = make()
    device.load(["test:one"])
    work = [Launch("test:one", (i, 1, 1), (1, 2, 3.0)) for i in (1, 2)]
    graph = device.capture(work)
    graph.launch()
    assert len(launched(library)) == 2
    library.fail["cuStreamSynchronize"] = 700
    for run in (graph.launch, lambda: device.run(work)):
        with pytest.raises(DeviceError, match=r"test:one on 1x1x1 \(cuStreamSynchronize"):
            run()


def test_a_refused_kernel_says_why(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    device, library = make()
    texts = {n: fakes.ptx(n, KINDS[n]) for n in KINDS}
    texts["test:two"] = texts["test:two"].replace("ret;", "not.an.instruction;")
    monkeypatch.setattr(ptx_cache, "load", lambda *a, **k: texts)
    with pytest.raises(DeviceError, match="test:two: ptxas .* Not a name .*INVALID_PTX"):
        device.load(list(KINDS))
    assert "module" not in library.live.values()
    with pytest.raises(DeviceError, match="not loaded"):
        device.run([Launch("test:one", (1, 1, 1), (1, 2, 3.0))])


def test_any_thread_and_two_devices(make: Made) -> None:
    make(fakes.Gpu("A"), fakes.Gpu("B"))
    devices = [open_device(0), open_device(1)]
    library: Any = driver._library()
    done: list[bool] = []

    def use(order: list[Device]) -> None:
        for device in order * 3:
            at = device.allocate(16)
            device.write(at, np.full(16, device.index, np.uint8))
            done.append(bool((device.read(at, 16) == device.index).all()))

    threads = [threading.Thread(target=use, args=(o,)) for o in (devices, devices[::-1])]
    for thread in threads:
        thread.start()
        thread.join()
    assert done == [True] * 12
    assert [gpu.allocated for gpu in library.gpus] == [96, 96]
    before = library.names.count("cuCtxSetCurrent")
    for _ in range(5):
        devices[0].free_bytes()
    assert library.names.count("cuCtxSetCurrent") <= before + 1


def test_close_gives_everything_back(make: Made) -> None:
    device, library = make(fakes.Gpu(total_bytes=1 << 30))
    device.load(["test:one"])
    gemm, _, _ = gemm_on(device)
    device.run([gemm])
    graph, event, host = device.capture([gemm]), device.event(), device.host_buffer(64)
    view = host.array[3:]
    del host
    gc.collect()
    device.synchronize()
    assert "host memory" in library.live.values() and view.size == 61
    device.close()
    device.close()
    assert library.live == {} and library.gpus[0].allocated == 0
    for call in (device.synchronize, device.free_bytes, lambda: device.run([])):
        with pytest.raises(DeviceError, match="GPU 0 .* was closed"):
            call()
    event.close()
    graph.close()
    with pytest.raises(DeviceError, match="was closed"):
        event.record()


def test_close_after_a_failure_still_gives_back(make: Made) -> None:
    device, library = make()
    device.allocate(100)
    library.fail["cuStreamSynchronize"] = 700
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        device.synchronize()
    device.close()
    assert library.live == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_is_told_that_the_device_is_its_parents(make: Made) -> None:
    device, _ = make()
    event = device.event()
    event.record()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (device.synchronize, event.done, lambda: open_device(0)):
            try:
                call()
                said.append("nothing")
            except DeviceError as error:
                said.append(str(error))
        found, why = driver.available()
        device.close()  # does nothing: it is not the child's
        os.write(writing, "\n".join([*said, f"{found} {why}"]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = told.read().splitlines()
    assert len(lines) == 4 and all("forked" in line for line in lines)
    assert event.done() is False and device.free_bytes() > 0


def test_open_device_is_a_device(make: Made) -> None:
    make()
    device = open_device(0)
    for name in vars(Device):
        assert name.startswith("_") or callable(getattr(device, name))
    with pytest.raises(DeviceError, match="no GPU 3: the NVIDIA driver shows 1"):
        open_device(3)
