"""ARM64 code, compiled here whatever this machine is: the instructions that it has and hasn't.

tests/arm runs it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llamba.errors import KernelError
from llamba.quant.arm_cpu import hwcap_features, name_in
from llamba.quant.kernel_cache import symbol
from llamba.quant.target import NAMED_TARGETS, classify, named

KERNELS = "runtime.kernels.cpu."
SOME = ("matmul:matmul_rows_q4_k", "matmul_lanes:matmul_lanes_q8_0", "interpreter:run_program")
BUILD = """
import sys
from llamba.quant import jit
from llamba.quant.target import named
jit.build(sys.argv[1:], wanted=named({name!r}))
"""
V8_2 = (1 << 8) | (1 << 10) | (1 << 12) | (1 << 15) | (1 << 20)


def assembly(name: str, folder: Path) -> str:
    """What SOME become for a target."""
    subprocess.run(
        [sys.executable, "-c", BUILD.format(name=name), *(KERNELS + kernel for kernel in SOME)],
        env=dict(os.environ, LLAMBA_ASM=str(folder), LLAMBA_CACHE=str(folder / "cache")),
        check=True,
    )
    return "\n".join((folder / f"{symbol(KERNELS + k)}.s").read_text() for k in SOME)


@pytest.mark.kernels
@pytest.mark.parametrize("name", [n for n, t in NAMED_TARGETS.items() if t[0] == "aarch64"])
def test_instructions(name: str, tmp_path: Path) -> None:
    text = assembly(name, tmp_path)
    found = set(re.findall(r"^\t([a-z]\w*)", text, re.M))
    dots = found & {"sdot", "udot", "usdot", "sudot", "smmla", "usmmla"}
    expected = {"neon": set(), "neon_dot": {"sdot"}, "neon_i8mm": {"usdot", "sudot"}}
    assert dots == expected[named(name).isa]
    assert {"fmla", "fcvtl", "scvtf", "prfm"} <= found
    # A weight's four bytes are taken where they are, in a lane: no broadcast before the product.
    if dots:
        assert re.search(r"\tsu?dot\tv\d+\.4s, v\d+\.16b, v\d+\.4b\[3\]", text)
    else:
        assert {"smull", "smull2", "addp", "sadalp"} <= found
    # Counters in one instruction, or a loop of exclusive accesses; never a library's function.
    assert ("ldaddal" in found) == ("lse" in named(name).enabled) != ("ldaxr" in found)
    own = set(re.findall(r"^(\w+):", text, re.M))
    assert set(re.findall(r"^\tbl\t(\w+)", text, re.M)) - own <= {"syscall", "sched_yield"}
    assert {"isb", "ldar"} <= found and "ldapr" not in found


CORTEX = "CPU implementer\t: 0x41\nCPU part\t: "
CASES = [  # HWCAP, HWCAP2, /proc/cpuinfo -> isa, CPU
    (0xFF, 0, f"{CORTEX}0xd08\n" * 4, "neon", "cortex-a72"),
    (V8_2, 0, f"{CORTEX}0xd0b\n" * 4, "neon_dot", "cortex-a76"),
    (V8_2, 0, f"{CORTEX}0xd05\n" * 4 + f"{CORTEX}0xd44\n" * 4, "neon_dot", "cortex-x1"),
    (0xFF, 0, f"{CORTEX}0xd05\n" * 4 + f"{CORTEX}0xd0d\n" * 4, "neon", "generic"),  # hidden
    (V8_2 & ~(1 << 8), 0, f"{CORTEX}0xd0b\n", "neon_dot", "generic"),
    (V8_2, 1 << 13, f"{CORTEX}0xd40\n" * 2, "neon_i8mm", "generic"),
    (V8_2, 0, f"{CORTEX}0xd0b\n{CORTEX}0xfff\n", "neon_dot", "generic"),  # one is unknown
    (0, 0, "", "neon", "generic"),
    (V8_2, 1 << 13, "vendor_id\t: AuthenticAMD\n", "neon_i8mm", "generic"),  # emulated
]


@pytest.mark.parametrize(("hwcap", "hwcap2", "cpuinfo", "isa", "cpu"), CASES)
def test_detection(hwcap: int, hwcap2: int, cpuinfo: str, isa: str, cpu: str) -> None:
    features = hwcap_features(hwcap, hwcap2) | {"neon", "fp-armv8"}
    found = classify(name_in(cpuinfo, features), features, "aarch64")
    assert (found.isa, found.cpu) == (isa, cpu)


def test_a_32_bit_system() -> None:
    with pytest.raises(KernelError, match="64-bit operating system.*Raspberry Pi OS, 64-bit"):
        classify("", frozenset(), "aarch64 (32 bits)")
