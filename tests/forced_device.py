"""Which device models run on in tests that don't say it: the CPU, or what LLAMBA_TEST_DEVICE names.

emulated: a GPU in NumPy (cuda/emulated_device.py), so that the tests of the engine also try the
engine on a GPU, where there is none. cuda: the first GPU. What a GPU doesn't run goes on on the
CPU, as with device="auto".
"""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

NAMES = ("cpu", "emulated", "cuda")
_MEMORY = 3 << 28
built: list[str] = []  # the files of programs that took a GPU


def install(patch: pytest.MonkeyPatch) -> str:
    """Let device="auto" mean what the environment says; returns its name."""
    name = os.environ.get("LLAMBA_TEST_DEVICE", "cpu")
    if name not in NAMES:
        raise pytest.UsageError(f"LLAMBA_TEST_DEVICE={name}: must be one of {', '.join(NAMES)}")
    from llamba.runtime import gpus
    from llamba.runtime.gpus import Gpus

    if name == "cpu":  # also where there is a GPU
        patch.setattr(gpus, "_can_load", lambda library: False)
        return name
    take = Gpus.take

    def taken(self: Gpus, number: int) -> Any:
        built.append(os.environ.get("PYTEST_CURRENT_TEST", ""))
        return take(self, number)

    patch.setattr(Gpus, "take", taken)
    if name == "emulated":
        patch.setattr(gpus, "_can_load", lambda library: True)
        _emulate(patch, Gpus)
    return name


def _emulate(patch: pytest.MonkeyPatch, gpus: Any) -> None:
    from llamba.runtime.cuda.driver import DeviceInfo

    with pytest.MonkeyPatch.context() as path:  # its modules import each other by name
        path.syspath_prepend(str(Path(__file__).parent / "cuda"))
        emulator = importlib.import_module("emulated_device")
    info = DeviceInfo(0, "emulated in NumPy", 90, 16, _MEMORY, "0000:01:00.0", "GPU-0", 13000)
    patch.setattr(gpus, "usable", lambda self: ([info], ""))
    patch.setattr(gpus, "check_libraries", lambda self, gpu: None)
    patch.setattr(gpus, "_open", lambda self, number: emulator.EmulatedDevice(_MEMORY))
