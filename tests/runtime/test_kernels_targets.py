"""The kernels of other x86-64 CPUs than this one: the same tests, in a process of that target.

All targets that this machine can run are run, by `LLAMBA_TARGET`. What the kernels become for each
is searched for instructions that the target lacks. Emulated CPUs: test_kernels_emulated.py.
"""

import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llamba.errors import KernelError
from llamba.quant import jit, kernel_cache
from llamba.quant.target import NAMED_TARGETS, compatible, name_of, named, target
from llamba.runtime.kernels.records import ACTIVATION_ORDER

TESTS = Path(__file__).parents[1]
X86 = [name for name, (arch, *_) in NAMED_TARGETS.items() if arch == "x86_64"]
KV = ("f16", "q8_0")
Python = Callable[..., subprocess.CompletedProcess[str]]  # see conftest.py


def runnable() -> list[str]:
    """Named targets whose code this machine runs; none where it is no x86-64 one."""
    try:
        return [name_of(t) for t in compatible(named("host"))]
    except KernelError:
        return []


RUNNABLE = runnable()
OWN = target().isa if RUNNABLE else "no kernels here"

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif("x86-64" not in RUNNABLE, reason="this machine runs no x86-64 code"),
]


def slow(*values: str) -> Any:
    """Parameters that only a thorough run needs."""
    return pytest.param(*values, marks=pytest.mark.slow)


# ---- the same tests ----------------------------------------------------------------------------
def cases(file: str, *tests: str) -> list[str]:
    return [f"{file}::{test}" for test in tests]


FORMATS, ATTENTION = "quant/test_cpu_formats.py", "runtime/test_kernels_attention.py"
ACTIVATIONS, PROGRAM = "runtime/test_kernels_activations.py", "runtime/test_program.py"
# One of each lowering: dot products of bytes within and beyond 127; scales as float16 by themselves
# or side by side, as powers; nibbles, fifth bits, tables, codebooks; K and V in float16 and int8;
# exp, and rounding at the limits.
FEW_TESTS = [
    *(f"{FORMATS}::test_matmul_rows[{n}-int8]" for n in ("q5_0", "q8_0", "q4_k", "iq4_xs")),
    *(f"{FORMATS}::test_matmul_rows[{n}-int8]" for n in ("mxfp4", "iq2_xs", "iq1_m")),
    *cases(FORMATS, "test_matmul_lanes[q8_0-int8]", "test_matmul_lanes[q4_k-int8]"),
    *cases(FORMATS, "test_matmul_few[4-q4_k]", "test_embed_rows[f16]"),
    *(f"{ATTENTION}::test_decode[{kv}-3-64]" for kv in KV),
    *(f"{ATTENTION}::test_prefill[{kv}-3-64]" for kv in KV),
    *cases(ACTIVATIONS, "test_activate", "test_quantization_at_the_limits"),
]
FAST_PATH = "runtime/test_fast_path.py::test_smollm2"
MIXED = [
    # Whole programs of mixed formats, in every layout.
    *(
        f"{PROGRAM}::{test}[{model}]"
        for test in ("test_exact_path_equals_the_reference", "test_int8_path_stays_near")
        for model in ("qwen2-mixed", "gemma3-mixed")
    ),
    f"{PROGRAM}::test_chunks_and_single_tokens",
]
# In two processes at once.
ALL_TESTS = [FORMATS, "quant/test_cpu_edges.py"], [ACTIVATIONS, ATTENTION, *MIXED]
# Formats whose code is that of these in another place, and groups of heads that only take other
# numbers of registers, are slow tests on a second target; the rows of each format are not.
SHAPES = ("q4_0", "q4_k", "q6_k", "q2_k", "q8_0", "q3_k", "iq4_xs", "mxfp4", "iq2_xs", "iq1_m")
ALIKE = [
    *(
        f"tests/{FORMATS}::{test}[{name}{end}]"
        for name in ACTIVATION_ORDER
        if name not in SHAPES
        for test, end in (("test_embed_rows", ""), ("test_matmul_lanes", "-int8"))
    ),
    *(f"tests/{ATTENTION}::test_decode[{kv}-{g}-" for kv in KV for g in (2, 5, 6, 7)),
    *(
        f"tests/{ATTENTION}::test_decode_does_not_depend_on_others[{kv}-{g}-"
        for kv in KV
        for g in (6, 7)
    ),
]
# Targets without a fused multiply-add round otherwise, so that some activations become another
# int8. Seven prompts, whose median the fast path's test takes, are too few to tell that from worse:
# 0.105 there, but over 975 positions 0.102 with either rounding (standard error 0.002).
ROUNDED_TWICE = ("x86-64", "x86-64-v2")
# What FEW_TESTS load, to be compiled at once: each test by itself would start its own compilers.
FEW_KERNELS = [
    *(f"matmul:matmul_rows_{n}" for n in ("q5_0", "q8_0", "q4_k", "iq4_xs", "mxfp4", "iq2_xs")),
    *("matmul:matmul_rows_iq1_m", "matmul_lanes:matmul_lanes_q8_0"),
    *("matmul_lanes:matmul_lanes_q4_k", "matmul_few:matmul_few4_q4_k"),
    *(f"attention:attention_rows_3_{kv}" for kv in KV),
    *(f"attention_lanes:attention_lanes_{kv}" for kv in KV),
    *(f"attention_words:attention_words_{kv}" for kv in KV),
    *("attention_combine:combine_rows", "attention_combine:combine_lanes"),
    *("activation:activate_rows", "activation:activate_lanes", "embedding:embed_rows_f16"),
]


def full_names(kernels: list[str]) -> list[str]:
    return [f"runtime.kernels.cpu.{name}" for name in kernels]


def run_tests(
    python: Python, wanted: str, tests: list[str], least: int, left_out: Sequence[str] = ()
) -> None:
    files = [str(TESTS / name) for name in tests]
    files += [f"--deselect={prefix}" for prefix in left_out]
    done = python(
        wanted, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *files
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    counted = re.search(r"(\d+) passed", done.stdout)
    assert counted and int(counted[1]) >= least


def run_all_tests(python: Python, wanted: str, left_out: Sequence[str] = ()) -> None:
    first, second = ALL_TESTS
    if wanted not in ROUNDED_TWICE:
        second = [*second, FAST_PATH]
    with ThreadPoolExecutor() as pool:
        parts = [
            pool.submit(run_tests, python, wanted, part, 100, left_out) for part in (first, second)
        ]
        for part in parts:
            part.result()


def needs(name: str) -> None:
    if name not in RUNNABLE:
        pytest.skip(f"this CPU does not run {name} ({OWN})")
    if named(name).isa == OWN:
        pytest.skip(f"{name} is this machine's own target")


@pytest.mark.parametrize("name", ["x86-64", "x86-64-v2", "avx2", "avx512bw", "avxvnni"])
def test_some_tests(python: Python, name: str) -> None:
    needs(name)
    jit.build(full_names(FEW_KERNELS), wanted=named(name))
    run_tests(python, name, [*FEW_TESTS, *(MIXED if name == "avx2" else [])], 100)


@pytest.mark.slow
@pytest.mark.timeout(900)  # some hundred kernels are compiled
def test_most_tests_on_avx2(python: Python) -> None:
    needs("avx2")
    run_all_tests(python, "avx2", ALIKE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x86-64", "x86-64-v2", "avx2", "avx512bw", "avxvnni"])
def test_all_tests(python: Python, name: str) -> None:
    needs(name)
    run_all_tests(python, name)


# ---- a whole answer ----------------------------------------------------------------------------
@pytest.mark.model("smollm2")
@pytest.mark.parametrize(
    "name", ["x86-64-v2", "avx2", *(slow(n) for n in ("x86-64", "avx512bw", "avxvnni"))]
)
def test_a_greedy_answer(ask: Callable[..., Any], name: str) -> None:
    """The same as from this machine's own kernels, until two tokens are nearly alike."""
    needs(name)
    there, here = ask(name, 32, "float32"), ask("", 32, "float32")
    for number, (a, b) in enumerate(zip(there, here, strict=True)):
        assert a[1] == pytest.approx(b[1], abs=0.01)
        if a[0] != b[0]:
            assert abs(b[1] - b[2]) < 0.01, number
            return


# ---- the machine code --------------------------------------------------------------------------
SOME = [
    *(f"matmul:matmul_rows_{name}" for name in ("q4_k", "q8_0", "iq2_xs")),
    *("matmul_lanes:matmul_lanes_q4_k", "attention:attention_rows_3_f16"),
    "attention_words:attention_words_f16",
    *("activation:activate_rows", "embedding:embed_rows_f16"),
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
    *("norm:norm_rows", "norm:norm_lanes", "activation:activate_lanes"),
    *("attention_combine:combine_rows", "gather:gather_lanes", "embedding:embed_rows_q6_k"),
    "interpreter:run_program",
]

# Instructions by the extension that brought them, as LLVM writes them (AT&T).
SINCE_SSE3 = "movs[hl]dup|movddup|haddp|hsubp|addsubp|lddqu|pshufb|pmaddubsw|pabs|psign|palignr|ph"
SINCE_SSE4 = (
    "pmov[sz]x|p?blend|round[ps]|pm(in|ax)(sb|sd|uw|ud)|pmulld|pmuldq|p(ins|ext)r[bdq]|insertps|"
    "extractps|packusdw|ptest|pcmp(eq|gt)q|dpp|popcnt|crc32"
)
SINCE_AVX = "v|andn[lq]|bls|bextr|shlx|shrx|sarx|rorx|mulx|pdep|pext[lq]|bzhi|lzcnt|tzcnt|movbe"
VNNI = "vpdp"
BEYOND_SKYLAKE = (
    "vpermb|vperm[it]2b|vpmultishift|vpcompress[bw]|vpexpand[bw]|vpsh[lr]d[dqw]|vpshrdv|vpshldv|"
    "vpopcnt|vpshufbit|vgf2p8|vpmadd52|vdpbf16|vcvtne|v(add|sub|mul|fmadd\\d+)[ps]h"
)
EVEX = r"zmm|%k[1-7]\b|[xy]mm(1[6-9]|2\d|3[01])\b|\bvpternlog|\{evex\}"


def instructions(names: str) -> str:
    return rf"^\t(\{{\w+\}}\t)?({names})\w*"


FOREIGN = {
    "x86-64": instructions(f"{SINCE_SSE3}|{SINCE_SSE4}|{SINCE_AVX}"),
    "x86-64-v2": instructions(SINCE_AVX),
    "avx2": rf"{EVEX}|{instructions(f'{VNNI}|{BEYOND_SKYLAKE}')}",
    "avxvnni": EVEX,
    "avx512bw": instructions(f"{VNNI}|{BEYOND_SKYLAKE}"),
    "avx512": instructions(BEYOND_SKYLAKE),
}
# What the int8 dot products of a target are made of.
OWN_CODE = {
    "x86-64": ["pmaddwd"],
    "x86-64-v2": ["pmaddubsw", "pmaddwd"],
    "avx2": ["vpmaddubsw", "vpmaddwd", "ymm"],
    "avxvnni": ["{vex}\tvpdpbusd", "ymm"],
    "avx512bw": ["vpmaddubsw", "vpmaddwd", "zmm"],
    "avx512": ["vpdpbusd", "zmm"],
}


def assembly(folder: Path, kernels: list[str], wanted: str) -> dict[str, str]:
    """What kernels become for a target, by name. They are compiled anew, for all tests at once."""
    cache = kernel_cache.cache_root() / kernel_cache.cache_key(named(wanted))
    for kernel in full_names(kernels):
        (cache / f"{kernel_cache.symbol(kernel)}.o").unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMBA_ASM", str(folder))
        jit.build(full_names(kernels), wanted=named(wanted))
    return {
        kernel: (folder / f"{kernel_cache.symbol(kernel)}.s").read_text()
        for kernel in full_names(kernels)
    }


def check_assembly(found: dict[str, str], wanted: str) -> None:
    foreign = re.compile(FOREIGN[wanted], re.M)
    for name, text in found.items():
        wrong = foreign.search(text)
        assert wrong is None, f"{name} has {wrong[0]!r}"  # type: ignore[index]
        if "matmul_rows_q4_k" in name or "matmul_lanes_q4_k" in name:
            assert all(word in text for word in OWN_CODE[wanted]), name
        if "attention_words" in name:
            words = "vpdpwssd" if "vpdpbusd" in OWN_CODE[wanted][0] else "pmaddwd"
            assert words in text, name


@pytest.mark.parametrize("wanted", X86)
def test_the_object_code_is_the_targets_own(tmp_path: Path, wanted: str) -> None:
    found = assembly(tmp_path, SOME, wanted)
    check_assembly(found, wanted)
    for other in X86[: X86.index(wanted)]:  # the same check finds what it looks for
        # AVX-512 without VNNI comes after AVX2, AVX-VNNI has nothing of it.
        if (wanted, other) != ("avxvnni", "avx512bw"):
            assert any(re.search(FOREIGN[other], text, re.M) for text in found.values()), other


@pytest.mark.slow
@pytest.mark.parametrize("wanted", X86)
def test_all_object_code_is_the_targets_own(tmp_path: Path, wanted: str) -> None:
    check_assembly(assembly(tmp_path, OTHERS, wanted), wanted)


def test_each_target_has_a_cache_of_its_own() -> None:
    keys = {kernel_cache.cache_key(named(name)) for name in [*X86, "host"]}
    assert len(keys) == len(X86) + 1
