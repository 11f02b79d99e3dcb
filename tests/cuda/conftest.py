"""The devices that tests of the CUDA path run on: one in NumPy, and a real one where there is."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
MODULES = (
    "emulated_memory",
    "emulated_words",
    "emulated_access",
    "emulated_numbers",
    "emulated_operators",
    "emulated_flow",
    "emulated_expressions",
    "emulated_source",
    "emulated",
    "emulated_device",
    "late_device",
)


def _load(name: str) -> None:
    """A module beside this file, as in tests/conftest.py: no package, not on sys.path."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise


for _name in ("random_rows", "fake_driver", "engine_rig"):  # test modules import them by name
    _load(_name)


def load_emulator() -> ModuleType:
    """The module emulated_device; needs Numba, which holds the kernels' words."""
    for name in MODULES:
        _load(name)
    return sys.modules["emulated_device"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on a GPU need to be asked for: it may be somebody else's, and CI has none."""
    if os.environ.get("LLAMBA_TEST_CUDA") != "1":
        skip = pytest.mark.skip(reason="runs on a GPU: set LLAMBA_TEST_CUDA=1")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def emulator() -> ModuleType:
    """The module emulated_device; skips where Numba isn't installed."""
    pytest.importorskip("numba", reason="numba is not installed")
    return load_emulator()


@pytest.fixture(scope="session")
def gpu() -> Iterator[Any]:
    """The real device, one for all tests."""
    from llamba.runtime.cuda.nvidia import open_device  # driver and cuBLAS, not Numba

    found = open_device(0)
    yield found
    found.close()


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A device (runtime/cuda/device.py); what a test allocates there is given back after it."""
    if request.param == "emulated":
        yield request.getfixturevalue("emulator").EmulatedDevice()
        return
    yield from _borrowed(request.getfixturevalue("gpu"))


@pytest.fixture(params=["late", pytest.param("gpu", marks=pytest.mark.gpu)])
def late_device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A device whose work is done after it was given, as far as that can be."""
    if request.param == "late":
        request.getfixturevalue("emulator")
        yield sys.modules["late_device"].LateDevice()
        return
    yield from _borrowed(request.getfixturevalue("gpu"))


def _borrowed(found: Any) -> Iterator[Any]:
    """The GPU of all tests, for one of them."""
    taken: list[int] = []
    allocate = found.allocate

    def noted(num_bytes: int) -> int:
        taken.append(allocate(num_bytes))
        return taken[-1]

    release = found.release

    def forgotten(address: int) -> None:
        taken.remove(address)
        release(address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found, "allocate", noted)
        patch.setattr(found, "release", forgotten)
        yield found
        found.synchronize()
        for address in taken:
            release(address)
