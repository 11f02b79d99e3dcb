"""Each call of the driver fails once, or from there on: an error that says so, and nothing is left.

What stays on a GPU after a failure is missing until the process ends.
"""

import os
from pathlib import Path
from typing import Any

import fake_driver as fakes
import numpy as np
import pytest

from llamba.errors import DeviceError, DeviceLostError
from llamba.runtime.cuda import blas, driver, ptx_cache
from llamba.runtime.cuda.nvidia import NvidiaDevice
from llamba.runtime.kernels.cuda.launch import Gemm, Launch

MEMORY, ILLEGAL_ADDRESS = 2, 700
_TEXTS = ("cuGetErrorName", "cuGetErrorString")
# Where it is these that fail, something stays whatever one does.
_FREES = ("Destroy", "Free", "Unload", "Release", "cuCtxSetCurrent", "EndCapture")


class Failing(dict[str, int]):
    """The codes of a library's calls: the one of this number fails, or all from it on."""

    def __init__(self, number: int, code: int, lasts: bool) -> None:
        self.number, self.code, self.lasts = number, code, lasts
        self.calls, self.failed = 0, ""

    def get(self, name: str, default: Any = None) -> Any:
        self.calls += 1
        if self.calls == self.number:
            self.failed = name
            return self.code
        if self.lasts and self.calls > self.number and name not in _TEXTS:
            return self.code
        return default


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """library() -> a new fake driver, which the next device is on."""
    monkeypatch.setattr(driver, "_forked", False)
    monkeypatch.setattr(
        ptx_cache, "load", lambda names, *_, **__: {n: fakes.ptx(n, "qqf") for n in names}
    )

    def make() -> Any:
        made = fakes.Library(fakes.Gpu(total_bytes=1 << 30))
        products = blas._bound(fakes.BlasLibrary(made))
        monkeypatch.setattr(driver, "_opened", None)
        monkeypatch.setattr(driver, "_library", lambda: made)
        monkeypatch.setattr(blas, "open_library", lambda version: (products, "/fake"))
        return made

    return make


def use_all(opened: list[NvidiaDevice]) -> None:
    """A bit of everything."""
    device = NvidiaDevice(0)
    opened.append(device)
    a, b = device.allocate(4096), device.allocate(1 << 18)
    host, event = device.host_buffer(4096), device.event()
    device.write(a, np.arange(64, dtype=np.float32))
    device.write(b, np.zeros(1 << 18, np.uint8))
    device.load(["test:one", "test:two"])
    product = Gemm(
        weight=b, x=b + 4096, out=b + 8192, rows=16, columns=16, tokens=16, x_stride=16,
        out_stride=16,
    )  # fmt: skip
    work = [Launch("test:one", (2, 1, 1), (a, b, 1.5)), product]
    device.run(work)
    graph = device.capture(work)
    graph.launch()
    device.upload(a, host, 0, 4096)
    device.fetch([(host, 0, a, 64)], event)
    event.wait()
    device.copy(b, a, 64)
    device.read(a, 64)
    graph.close()
    device.release(a)
    device.synchronize()


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("code", [MEMORY, ILLEGAL_ADDRESS])
def test_each_call_fails(library: Any, code: int, lasts: bool) -> None:
    whole = library()
    opened: list[NvidiaDevice] = []
    use_all(opened)
    opened[0].close()
    assert whole.live == {}
    errors = 0
    for number in range(1, len(whole.names) + 1):
        failing = library()
        failing.fail = Failing(number, code, lasts)
        opened = []
        try:
            use_all(opened)
        except DeviceError as error:
            errors += 1
            lost = "nothing runs on it in this process any more" in str(error)
            assert lost == isinstance(error, DeviceLostError)
            assert lost == (code == ILLEGAL_ADDRESS) or failing.fail.failed == "cuInit", error
        for device in opened:
            device.close()
        name = failing.fail.failed
        if not lasts and not any(part in name for part in _FREES):
            assert failing.live == {}, name
            assert failing.mistakes == [], name
    assert errors > len(whole.names) * 2 // 3


@pytest.mark.skipif(os.name != "posix", reason="Windows says it in other words")
def test_a_library_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, so it isn't said to be missing."""
    monkeypatch.setattr(driver, "_forked", False)
    monkeypatch.setattr(driver, "_opened", None)
    file = tmp_path / "libcuda.so.1"
    file.write_bytes(b"no library")
    for names, said in (
        ((str(tmp_path / "absent.so"),), "no NVIDIA driver is installed: there is no /"),
        ((str(tmp_path / "absent.so"), str(file)), f"driver can't be loaded: {file}: "),
    ):
        monkeypatch.setattr(driver, "LIBRARIES", names)
        found, why = driver.available()
        assert not found and said in why


def test_ptx_that_is_not_the_kernels(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kernel's, or cut short, is never launched."""
    library()
    device = NvidiaDevice(0)
    for text, said in (
        (fakes.ptx("test:two", "q"), "the kernel test:one is that of llamba_test__two: remove"),
        (fakes.ptx("test:one", "q")[:60], r"the kernel test:one is damaged \(PTX must have one"),
    ):
        monkeypatch.setattr(ptx_cache, "load", lambda *_, text=text, **__: {"test:one": text})
        with pytest.raises(DeviceError, match=said):
            device.load(["test:one"])
    device.close()
