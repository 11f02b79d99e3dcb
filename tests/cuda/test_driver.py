"""Which GPUs there are and why not, and where cuBLAS is found: without either of them."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_driver as fakes
import pytest

from llamba.errors import DeviceError
from llamba.runtime.cuda import blas, driver, kernel_modules, prepared, ptx_cache


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Any:
    """shown(gpus..., version=...) -> the fake driver that is there from then on."""
    monkeypatch.setattr(driver, "_forked", False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def show(*gpus: Any, version: int = 12040) -> Any:
        library = fakes.Library(*gpus, version=version)
        monkeypatch.setattr(driver, "_opened", None)
        monkeypatch.setattr(driver, "_library", lambda: library)
        return library

    return show


def test_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_opened", None)
    monkeypatch.setattr(driver, "LIBRARIES", ("libcuda-absent.so.1", "/absent/libcuda.so.1"))
    wanted = "no NVIDIA driver is installed: there is no libcuda-absent.so.1"
    assert driver.available() == ([], wanted)


def test_gpus_that_can_be_used_and_one_that_is_too_old(shown: Any) -> None:
    shown(fakes.Gpu("GTX 1080", (6, 1)), fakes.Gpu("A100", (8, 0)), fakes.Gpu("B200", (10, 0)))
    found, why = driver.available()
    assert [(i.index, i.name, i.architecture) for i in found] == [(1, "A100", 80), (2, "B200", 100)]
    assert why == "GPU 0 (GTX 1080) has compute capability 6.1; 8.0 is needed"
    with pytest.raises(DeviceError, match="compute capability 6.1"):
        from llamba.runtime.cuda.nvidia import open_device

        open_device(0)


def test_a_driver_without_gpus(shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown()
    assert driver.available() == ([], "the NVIDIA driver shows no GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    wanted = "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES is '7')"
    assert driver.available() == ([], wanted)


def test_drivers_that_cannot_be_used(shown: Any) -> None:
    shown(fakes.Gpu(), version=11020)
    wanted = "the NVIDIA driver is too old: it knows CUDA 11.2, 11.4 is needed (driver 470)"
    assert driver.available() == ([], wanted)
    shown(fakes.Gpu()).fail["cuInit"] = 999
    assert driver.available() == ([], "the NVIDIA driver can't be started: error 999")
    shown(fakes.Gpu()).fail["cuInit"] = 34
    assert "toolkit's stub" in driver.available()[1]
    shown(fakes.Gpu()).absent.add("cuStreamCreate")
    assert driver.available()[1] == "the NVIDIA driver has no cuStreamCreate: a newer one is needed"


def test_asking_needs_neither_numba_nor_llvm_and_importing_llamba_asks_nothing() -> None:
    code = """
import sys, llamba
assert not any("cuda" in name for name in sys.modules), sys.modules.keys()
from llamba.runtime.cuda import nvidia
nvidia.ptx_cache.architecture_for(90, 13000)
from llamba.runtime.cuda.driver import available
available()
heavy = {"numba", "llvmlite", "click", "jinja2"} & set(sys.modules)
assert not heavy, heavy
print("well")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "well\n", done.stderr


@pytest.mark.parametrize(
    ("capability", "version", "wanted"),
    ((80, 11040, 80), (86, 13000, 80), (90, 11080, 90), (90, 11070, 80), (120, 13000, 90)),
)
def test_ptx_for_a_gpu(capability: int, version: int, wanted: int) -> None:
    assert ptx_cache.architecture_for(capability, version) == wanted


def test_version_texts() -> None:
    assert driver.version_text(13000) == "13.0" and driver.version_text(11080) == "11.8"
    assert driver.version_text(86, 10) == "8.6" and driver.version_text(120, 10) == "12.0"


def test_the_layouts_of_c() -> None:
    """CUlaunchConfig and CUlaunchAttribute, laid out by ctypes as by a C compiler."""

    class Value(ctypes.Union):
        _fields_ = [("pad", ctypes.c_char * 64), ("allowed", ctypes.c_int), ("at", ctypes.c_void_p)]

    class Attribute(ctypes.Structure):
        _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", Value)]

    class Config(ctypes.Structure):
        _fields_ = [
            ("grid", ctypes.c_uint * 3),
            ("block", ctypes.c_uint * 3),
            ("shared", ctypes.c_uint),
            ("stream", ctypes.c_void_p),
            ("attributes", ctypes.POINTER(Attribute)),
            ("count", ctypes.c_uint),
        ]

    assert prepared._CONFIG.size == ctypes.sizeof(Config) == 56
    assert prepared._ATTRIBUTE.size == ctypes.sizeof(Attribute) == 72
    attribute = Attribute.from_buffer_copy(prepared._ATTRIBUTE.pack(6, 1))
    assert attribute.id == 6 and attribute.value.allowed == 1
    config = Config.from_buffer_copy(prepared._CONFIG.pack(*range(1, 8), 77, 88, 1))
    assert [*config.grid, *config.block, config.shared] == [1, 2, 3, 4, 5, 6, 7]
    assert config.stream == 77 and config.count == 1
    assert ctypes.cast(config.attributes, ctypes.c_void_p).value == 88


def test_what_ptx_declares() -> None:
    entry = kernel_modules.entry_of(fakes.ptx("file:name", "qfqq", 256))
    assert entry == kernel_modules.Entry("llamba_file__name", "qfqq", 256, True)
    bare = kernel_modules.entry_of(fakes.ptx("file:name", "", 32, programmatic=False))
    assert bare == kernel_modules.Entry("llamba_file__name", "", 32, False)
    for wrong in ("", fakes.ptx("a:b", "q") + fakes.ptx("c:d", "q")):
        with pytest.raises(ValueError, match="one entry"):
            kernel_modules.entry_of(wrong)


# ---- cuBLAS ------------------------------------------------------------------------------------
@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """sys.path is this folder and one that is absent; no toolkit is known."""
    monkeypatch.setattr(sys, "path", ["/absent", str(tmp_path)])
    for name in ("LLAMBA_CUBLAS", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def file(path: Path) -> str:
    """An empty file there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


posix = pytest.mark.skipif(os.name != "posix", reason="names of Linux")


@posix
def test_where_cublas_is_looked_for(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thirteen = file(places / "nvidia/cu13/lib/libcublas.so.13")
    twelve = file(places / "nvidia/cublas/lib/libcublas.so.12")
    own = file(places / "torch/lib/libcublas.so.12")
    toolkit = file(places / "toolkit/targets/x86_64-linux/lib/libcublas.so.12")
    monkeypatch.setenv("CUDA_HOME", str(places / "toolkit"))
    found = [p for p in blas.candidates([13, 12]) if not p.startswith("/usr/local")]
    assert found == [thirteen, "libcublas.so.13", twelve, own, "libcublas.so.12", toolkit]
    # A driver of CUDA 12 can't run the library of 13.
    assert blas.majors_of(12080) == [12, 11] and blas.majors_of(13010) == [13, 12, 11]
    monkeypatch.setenv("LLAMBA_CUBLAS", twelve)
    assert list(blas.candidates([13, 12])) == [twelve]
    monkeypatch.setenv("LLAMBA_CUBLAS", str(places))
    names = [str(places / f"libcublas.so.{major}") for major in (13, 12)]
    assert list(blas.candidates([13, 12])) == names


@posix
def test_cublas_is_absent_or_broken(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_FOLDERS", ("here",))
    monkeypatch.setattr(blas, "_file_names", lambda stem, major: (f"lib{stem}-absent.so.{major}",))
    with pytest.raises(DeviceError) as caught:
        blas.open_library(13000)
    said = str(caught.value)
    assert said.startswith("cuBLAS isn't installed (libcublas-absent.so.13 or")
    assert "pip install 'llamba[cuda]'" in said and "LLAMBA_CUBLAS" in said
    with pytest.raises(DeviceError, match="with a driver for CUDA 12"):  # what pip has needs one
        blas.open_library(11080)
    broken = file(places / "here/libcublas-absent.so.12")
    with pytest.raises(DeviceError, match=f"; {broken} can't be loaded: "):
        blas.open_library(13000)
    monkeypatch.setenv("LLAMBA_CUBLAS", broken)
    with pytest.raises(DeviceError, match="has no cuBLAS for this driver; .*can't be loaded"):
        blas.open_library(13000)


@posix
def test_cublaslt_is_loaded_first(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = file(places / "nvidia/cublas/lib/libcublas.so.12")
    beside = file(places / "nvidia/cublas/lib/libcublasLt.so.12")
    loaded = []
    library = fakes.BlasLibrary(fakes.Library())

    def load(path: str, mode: int = 0) -> Any:
        loaded.append((path, mode == ctypes.RTLD_GLOBAL))
        if path != main and path != beside:
            raise OSError("not found")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert blas.open_library(12080)[1] == main
    assert loaded == [(beside, True), (main, False)]
