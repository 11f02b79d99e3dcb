"""What device.py promises, of the emulated device and of the real one."""

from typing import Any

import numpy as np
import pytest

from llamba.runtime.kernels.cuda.launch import Fields, Gemm, Launch, Mode, StepAddresses, StepShape
from llamba.runtime.kernels.cuda.launches.norm import norm_rows
from llamba.runtime.kernels.records import NORM_RMS

COLUMNS, TOKENS = 96, 3


def put(device: Any, data: np.ndarray) -> int:
    """An array on the device."""
    at = device.allocate(data.nbytes)
    device.write(at, data)
    return at


def floats(device: Any, address: int, *shape: int) -> np.ndarray:
    """An array of the device."""
    return device.read(address, 4 * int(np.prod(shape))).view(np.float32).reshape(shape)


def test_memory(device: Any) -> None:
    rng = np.random.default_rng(1)
    before = device.free_bytes()
    assert 0 < before <= device.total_bytes and device.architecture >= 80
    for size in (1, 1000, 70_000):  # the last is more than waits in the ring
        data = rng.integers(0, 256, size).astype(np.uint8)
        a, b = device.allocate(size), device.allocate(size)
        assert a % 256 == b % 256 == 0 and a != b
        assert not device.read(a, size).any()
        device.write(a, data)
        device.copy(b, a, size)
        assert (device.read(b, size) == data).all()
        host, event = device.host_buffer(size + 3), device.event()
        device.download(host, 3, b, size)
        event.record()
        event.wait()
        assert event.done() and (host.array[3:] == data).all()
        host.array[:size] = data[::-1]
        device.upload(b, host, 0, size)
        device.synchronize()
        assert (device.read(b, size) == data[::-1]).all()
        device.release(a)
        device.release(b)


def test_many_small_writes_keep_their_order(device: Any) -> None:
    at = device.allocate(4 * 4096)
    for i in range(600):  # several times round the ring
        device.write(at + 4 * (i % 7), np.full(4096 - i % 7, i, np.int32))
    found = device.read(at, 4 * 4096).view(np.int32)
    assert (found[4:] == 599).all() and list(found[:4]) == [595, 596, 597, 598]


def chain(device: Any, x: np.ndarray, weight: np.ndarray, length: int) -> tuple[list[Launch], int]:
    """Norms, each of the result of the one before; where the last result is."""
    addresses = [put(device, x), device.allocate(x.nbytes), device.allocate(x.nbytes)]
    shape = StepShape(len(x), Mode.INT8, len(x), 1, 0, StepAddresses(0, 0, 0, 0, 0, 0))
    weight_at, work, source = put(device, weight), [], addresses[0]
    for i in range(length):
        target = addresses[1 + i % 2]
        fields = {"x": source, "x_stride": 4 * x.shape[1], "weight": weight_at, "eps": 1e-5}
        more = {"columns": x.shape[1], "kind": NORM_RMS, "out": target}
        work += norm_rows(Fields(fields | more), shape)
        source = target
    return work, source


def normed(x: np.ndarray, weight: np.ndarray, length: int) -> np.ndarray:
    """What `chain` means."""
    wide = x.astype(np.float64)
    for _ in range(length):
        wide = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-5) * weight
    return wide


def test_launches_see_what_those_before_them_wrote(device: Any) -> None:
    """In order, whether they are started early or not, given singly or as a graph."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((TOKENS, COLUMNS), np.float32)
    weight = (1 + rng.random(COLUMNS) / 8).astype(np.float32)
    length = 9
    work, out = chain(device, x, weight, length)
    device.load(sorted({launch.kernel for launch in work}))
    wanted, found = normed(x, weight, length), []
    for early in (True, False):
        device.programmatic = early  # the real one's
        graph = device.capture(work)
        for start in (lambda: device.run(list(work)), graph.launch, graph.launch):
            device.write(out, np.full(x.shape, np.nan, np.float32))
            start()
            found.append(floats(device, out, *x.shape))
            assert np.abs(found[-1] - wanted).max() < 1e-4
        graph.close()
    device.programmatic = True
    assert all((other == found[0]).all() for other in found)


@pytest.mark.parametrize("single", (False, True))
@pytest.mark.parametrize("alpha, beta", ((1.0, 0.0), (0.5, 2.0)))
def test_products(device: Any, single: bool, alpha: float, beta: float) -> None:
    rng, kind = np.random.default_rng(3), np.float32 if single else np.float16
    for rows, columns, tokens in ((40, 64, 16), (8, 32, 1), (130, 96, 33)):
        weight = rng.standard_normal((rows, columns)).astype(kind)
        x = rng.standard_normal((tokens, columns + 32)).astype(kind)
        old = rng.standard_normal((tokens, rows + 4)).astype(np.float32)
        at = [put(device, data) for data in (weight, x, old)]
        sizes = [rows, columns, tokens, columns + 32, rows + 4]
        gemm = Gemm(*at, *sizes, alpha=alpha, beta=beta, single=single)
        wanted = old.astype(np.float64)
        product = x[:, :columns].astype(np.float64) @ weight.astype(np.float64).T
        wanted[:, :rows] = alpha * product + beta * wanted[:, :rows]
        graph = device.capture([gemm])
        for start in (lambda gemm=gemm: device.run([gemm]), graph.launch):
            device.write(at[2], old)
            start()
            assert np.abs(floats(device, at[2], *old.shape) - wanted).max() < 1e-4
        graph.close()
