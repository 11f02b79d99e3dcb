"""The AVX2 kernels on any x86-64 machine: the same tests in a process with LLAMBA_TARGET=avx2."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from llamba.errors import KernelError
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.quant import kernel_cache
from llamba.quant.target import target
from llamba.runtime.batch import PAGE_SIZE, Batch, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.records import ACTIVATION_ORDER
from llamba.runtime.kernels.reference import log_softmax

TESTS = Path(__file__).parents[1]
SAME_TESTS = [
    "quant/test_cpu_formats.py",
    "quant/test_cpu_edges.py",
    "runtime/test_kernels_activations.py",
    "runtime/test_kernels_attention.py",
    # Whole programs of mixed formats, in every layout; the kernels' tests above have each format.
    *(
        f"runtime/test_program.py::{test}[{model}]"
        for test in ("test_exact_path_equals_the_reference", "test_int8_path_stays_near")
        for model in ("qwen2-mixed", "gemma3-mixed")
    ),
    "runtime/test_program.py::test_chunks_and_single_tokens",
    "runtime/test_fast_path.py::test_smollm2",
]
KERNELS = "runtime.kernels.cpu."
KV = ("f16", "q8_0")


def isa() -> str:
    try:
        return target().isa
    except KernelError as error:
        return str(error)


pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(
        isa() not in ("avx512vnni", "avxvnni"),
        reason=f"AVX2 is this machine's own target, or it can't run it: {isa()}",
    ),
]


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python for the AVX2 target."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=dict(os.environ, LLAMBA_TARGET="avx2", **environment),
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_the_kernel_tests_pass_on_avx2() -> None:
    files = [str(TESTS / name) for name in SAME_TESTS]
    done = python("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *files)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    counted = re.search(r"(\d+) passed", done.stdout)
    assert counted and int(counted[1]) > 200


GREEDY = """
import json, sys
import importlib.util
spec = importlib.util.spec_from_file_location("avx2", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(module.greedy(sys.argv[2], json.loads(sys.argv[3]))))
"""


def greedy(path: str, prompt: list[int]) -> list[tuple[int, float, float]]:
    """32 tokens after a prompt: (id, its log-probability, the second one's)."""
    program = build_program(Weights.open(GGUFFile.open(path)), num_pages=4, num_threads=2)
    ids, start, answer = prompt, 0, []
    try:
        for _ in range(32):
            end = start + len(ids)
            table = np.arange(-(-end // PAGE_SIZE), dtype=np.int32)
            segment = Segment(np.array(ids, np.int32), start, table)
            logprobs = log_softmax(program.run(Batch((segment,)))[0].astype(np.float64))
            second, first = (int(i) for i in np.argsort(logprobs)[-2:])
            answer.append((first, float(logprobs[first]), float(logprobs[second])))
            start, ids = end, [first]
    finally:
        program.close()
    return answer


@pytest.mark.model("smollm2")
def test_a_greedy_answer(shared: Path, model_path: Path) -> None:
    """The same answer as from this machine's own kernels, until two tokens are nearly alike."""
    golden = json.loads((shared / "open" / "variants_smollm2-135m.json").read_text())
    prompt = next(c["prompt_ids"] for c in golden["cases"] if c["name"] == "chat")
    done = python("-c", GREEDY, __file__, str(model_path), json.dumps(prompt))
    assert done.returncode == 0, done.stderr
    there, here = json.loads(done.stdout), greedy(str(model_path), prompt)
    for number, (a, b) in enumerate(zip(there, here, strict=True)):
        assert a[1] == pytest.approx(b[1], abs=0.02)
        if a[0] != b[0]:
            assert abs(b[1] - b[2]) < 0.02, number
            return


COMPILE = "import sys; from llamba.quant import jit; jit.load(sys.argv[1:])"
SOME = [
    *(f"matmul:matmul_rows_{name}" for name in ("q4_1", "q4_k", "q5_0", "q6_k", "q8_0")),
    "matmul_lanes:matmul_lanes_q4_k",
    "attention:attention_rows_3_f16",
    "attention:attention_rows_3_q8_0",
    "attention_lanes:attention_lanes_f16",
    "attention_words:attention_words_f16",
    "activation:activate_rows",
    "norm:norm_lanes",
]
OTHERS = [
    *(f"matmul:matmul_rows_{name}" for name in ACTIVATION_ORDER),
    *(f"matmul_lanes:matmul_lanes_{name}" for name in ACTIVATION_ORDER),
    *(f"matmul_few:matmul_few{width}_{name}" for width in (4, 8) for name in ACTIVATION_ORDER),
    *(f"matmul:matmul_float_rows_{name}" for name in ("f16", "bf16", "q5_k")),
    *(f"attention:attention_rows_{group}_{kv}" for group in range(1, 9) for kv in KV),
    *(f"rope:rope_{layout}_{kv}" for layout in ("rows", "lanes") for kv in KV),
    *("attention_lanes:attention_lanes_q8_0", "attention_words:attention_words_q8_0"),
    "attention_combine:combine_lanes",
    *("norm:norm_rows", "activation:activate_lanes"),
    *("attention_combine:combine_rows", "gather:gather_lanes", "embedding:embed_rows_q6_k"),
    "interpreter:run_program",
]
# Registers and instructions that only AVX-512 (or AVX-VNNI) has.
FOREIGN = re.compile(
    r"zmm|%k[1-7]\b|[xy]mm(1[6-9]|2\d|3[01])|vpdp(busd|wssd)|vpternlog|\{[xy]?vex\}"
)


def assembly(folder: Path, kernels: list[str], wanted: str) -> dict[str, str]:
    """What kernels become for a target, by name."""
    names = [KERNELS + name for name in kernels]
    folder.mkdir(exist_ok=True)
    cache = {"LLAMBA_ASM": str(folder), "LLAMBA_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, *names],
        env=dict(os.environ, LLAMBA_TARGET=wanted, **cache),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: (folder / f"{kernel_cache.symbol(KERNELS + name)}.s").read_text() for name in kernels
    }


def check_assembly(found: dict[str, str]) -> None:
    for name, text in found.items():
        foreign = FOREIGN.search(text)
        assert foreign is None, f"{name} has {foreign[0]}"  # type: ignore[index]
        if "attention_words" in name:
            assert "vpmaddwd" in text
        if "matmul_rows_q" in name or "matmul_lanes_q" in name:
            assert "vpmaddwd" in text and ("vpmaddubsw" in text or "q8_0" in name)


def test_the_object_code_is_avx2_only(tmp_path: Path) -> None:
    check_assembly(assembly(tmp_path, SOME, "avx2"))


@pytest.mark.slow
def test_all_object_code_is_avx2_only(tmp_path: Path) -> None:
    check_assembly(assembly(tmp_path, OTHERS, "avx2"))


def test_the_object_code_of_avx512_uses_it(tmp_path: Path) -> None:
    """The same check finds what it looks for; and the named target compiles."""
    (text,) = assembly(tmp_path, SOME[1:2], "avx512").values()
    assert FOREIGN.search(text) and "vpdpbusd" in text and "zmm" in text


def test_what_both_targets_share() -> None:
    """Lanes are the native width, and each target has a cache directory of its own."""
    code = (
        "from llamba.quant import kernel_cache, target as t; "
        "print(t.target().lanes, t.target().isa, kernel_cache.cache_key(t.target()))"
    )
    lanes, found, key = python("-c", code).stdout.split()
    assert (lanes, found) == ("8", "avx2") and key != kernel_cache.cache_key(target())
