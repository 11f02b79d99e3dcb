"""Old x86-64 CPUs, by qemu's user mode: an instruction that they lack ends a process there.

So llamba must find out what such a CPU can run, refuse the rest, and run it.
"""

import platform
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from llamba.quant import jit
from llamba.quant.target import named

Python = Callable[..., subprocess.CompletedProcess[str]]  # see conftest.py

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(
        platform.machine() != "x86_64" or not shutil.which("qemu-x86_64-static"),
        reason="qemu-x86_64-static is not installed, or this is no x86-64 machine",
    ),
]


def slow(*values: str) -> Any:
    """Parameters that only a thorough run needs."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("cpu", "isa"), [("Nehalem", "sse4"), slow("SandyBridge", "sse4"), slow("Haswell", "avx2")]
)
def test_an_old_cpu_is_recognized(python: Python, cpu: str, isa: str) -> None:
    done = python("", "-c", "from llamba.quant.target import target; print(target().isa)", cpu=cpu)
    assert done.stdout.split() == [isa], done.stderr


@pytest.mark.parametrize(("cpu", "wanted"), [("Nehalem", "avx2")])
def test_an_old_cpu_refuses_what_it_cannot_run(python: Python, cpu: str, wanted: str) -> None:
    """With a message, not with SIGILL; the code itself is there."""
    kernel = ["runtime.kernels.cpu.gather:gather_rows"]
    jit.build(kernel, wanted=named(wanted))
    load = "import sys; from llamba.quant import jit; jit.load(sys.argv[1:])"
    done = python(wanted, "-c", load, *kernel, cpu=cpu)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "KernelError: kernels for haswell can't run on this CPU (nehalem)" in last
    assert "avx2" in last and "LLAMBA_TARGET may be host, x86-64-v2, x86-64 here" in last


@pytest.mark.model("smollm2")
@pytest.mark.parametrize(
    ("cpu", "name"),
    [("Nehalem", "x86-64-v2"), slow("Nehalem", "x86-64"), slow("Haswell", "avx2")],
)
def test_an_answer_of_an_old_cpu(ask: Callable[..., Any], cpu: str, name: str) -> None:
    """To the bit what the same code says here, where it is compiled: Numba would take minutes."""
    here = ask(name, 4, "int8")
    assert ask(name, 4, "int8", cpu=cpu) == here
