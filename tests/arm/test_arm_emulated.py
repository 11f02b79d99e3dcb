"""ARM64 on an x86-64 machine: the kernels' tests in an emulated Python (see setup.sh beside it).

A CPU without the byte dot product and one with it are emulated; wrong code would die there.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llamba import LLM, SamplingParams

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".arm" / "python"
CPUS = ["cortex-a76", "cortex-a72"]
TESTS = [
    "tests/quant/test_cpu_formats.py",
    "tests/quant/test_cpu_edges.py",
    "tests/quant/test_cpu_lookup.py",
    "tests/runtime/test_kernels_activations.py",
    "tests/runtime/test_kernels_attention.py",
]
# All formats where there is a dot product; where there is none, one of each shape.
SOME = {
    "cortex-a76": "test_matmul_rows and int8 or test_matmul_lanes and int8 or test_lookup",
    "cortex-a72": "(test_matmul_rows or test_matmul_lanes) and int8 and "
    "(q4_1 or q4_k or q6_k or q8_0) or test_lookup",
}
ROWS = "runtime.kernels.cpu.matmul:matmul_rows_q8_0"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON.exists(), reason="no emulated ARM64 Python: tests/arm/setup.sh makes one"
    ),
]


def emulated(cpu: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the emulated Python."""
    own = {k: v for k, v in os.environ.items() if k not in ("LLAMBA_TARGET", "LLAMBA_CACHE")}
    return subprocess.run(
        [str(PYTHON), "-cpu", cpu, *arguments],
        env=own | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3000,
    )


def check_tests(cpu: str, *arguments: str, **environment: str) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    done = emulated(cpu, "-m", "pytest", *options, *arguments, **environment)
    print(done.stdout[-200:])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("cpu", CPUS)
def test_some_kernels(cpu: str) -> None:
    """What CI runs: a minute."""
    check_tests(cpu, *TESTS[:3:2], "-k", SOME[cpu], LLAMBA_TEST_EVERY="13")


@pytest.mark.parametrize("cpu", CPUS)
def test_all_kernels(cpu: str) -> None:
    check_tests(cpu, *TESTS, LLAMBA_TEST_EVERY="3")


ANSWER = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("emulated", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(module.answer(sys.argv[2])))
"""


def answer(path: str) -> list[int]:
    """64 tokens, greedy."""
    llm = LLM(path, num_threads=2, context_length=256, deterministic=True)
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    (output,) = llm.chat([{"role": "user", "content": "Name three rivers."}], params)
    ids = list(output.outputs[0].token_ids)
    llm.close()
    return ids


@pytest.mark.parametrize("cpu", CPUS)
def test_a_greedy_answer(cpu: str, models: Callable[[str], Path]) -> None:
    """The same tokens as this machine's own kernels give."""
    path = str(models("smollm2"))
    done = emulated(cpu, "-c", ANSWER, __file__, path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == answer(path)


# A kernel of a format in the emulated process, its target unchecked.
RUN = """
import sys
from llamba.quant import jit
jit.check_runs_here = lambda wanted: None
sys.path.insert(0, "tests")
import numpy as np, rig, tiny
from llamba.quant import FORMATS_BY_NAME
from llamba.runtime.kernels.records import MATMUL, NATURAL
fmt = FORMATS_BY_NAME["Q8_0"]
weight = tiny.weight(np.random.default_rng(0), 8, 64, "Q8_0").view(np.uint8)
q, step = rig.quantize(np.ones((1, 64), np.float32), 16)
r = rig.Rig()
out = rig.Fenced((1, 8))
r.set_step(num_tokens=1)
r.run("matmul:matmul_rows_q8_0", MATMUL, weight=r.last(weight), row_bytes=68, num_rows=8,
      columns=64, chunk=8, out=out.at, out_stride=32, **r.rows_input(q, step, NATURAL))
expected = fmt.dequantize(weight, (8, 64)).astype(np.float64).sum(axis=1)
np.testing.assert_allclose(out.array[0], expected, rtol=1e-4, atol=1e-4)
print("right")
"""


def test_code_of_another_cpu_dies() -> None:
    """So the tests above can't pass by the wrong instructions."""
    right = emulated("cortex-a76", "-c", RUN)
    assert right.stdout == "right\n", right.stderr
    wrong = emulated("cortex-a72", "-c", RUN, LLAMBA_TARGET="cortex-a76")
    assert wrong.returncode in (-signal.SIGILL, 128 + signal.SIGILL), wrong.stderr
    assert wrong.stdout == ""


def test_code_of_another_cpu_is_refused() -> None:
    load = f"from llamba.quant import jit; jit.load(['{ROWS}'])"
    done = emulated("cortex-a72", "-c", load, LLAMBA_TARGET="cortex-a76")
    assert "lacks dotprod" in done.stderr and "LLAMBA_TARGET may be host, cortex-a72" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(("cpu", "isa"), [("cortex-a72", "neon"), ("cortex-a76", "neon_dot")])
def test_compiled_there(cpu: str, isa: str, tmp_path: Path) -> None:
    """Nothing is forced: the CPU is asked, and Numba compiles where the code runs."""
    show = "from llamba.quant.target import target; print(target().isa, target().cpu)\n"
    own = {"LLAMBA_TARGET": "", "LLAMBA_CROSS": "", "LLAMBA_CACHE": str(tmp_path)}
    done = emulated(cpu, "-c", show + RUN, **own)
    assert done.stdout == f"{isa} generic\nright\n", done.stderr
