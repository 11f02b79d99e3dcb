"""Which CPU the kernels are compiled for, and what it can do.

The instruction set is a property of the *code generation target*, never of the host alone: emitting
an instruction that the target lacks makes LLVM abort the process. `LLAMBA_TARGET` chooses another
target than the host's (tests run the AVX2 code on an AVX-512 machine so).
"""

import os
from dataclasses import dataclass
from functools import lru_cache

from ..errors import KernelError

# Named targets for LLAMBA_TARGET: LLVM's CPU name and the features that go with it.
NAMED_TARGETS = {
    "avx2": ("haswell", "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+movbe"),
    "avx512": (
        "cascadelake",
        "+avx2,+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512vnni,+fma,+f16c",
    ),
}


@dataclass(frozen=True)
class Target:
    """A CPU to compile for.

    `isa` selects the lowerings in quant/cpu/simd.py; `lanes` is the number of 32-bit lanes of a
    native vector, which is also the number of tokens side by side in the prefill layout.
    """

    cpu: str
    features: str
    isa: str
    lanes: int


def _classify(cpu: str, features: frozenset[str], arch: str) -> Target:
    text = ",".join(f"+{f}" for f in sorted(features))
    if arch == "x86_64":
        if not {"avx2", "fma", "f16c"} <= features:
            raise KernelError(
                f"this CPU ({cpu}) lacks AVX2, FMA or F16C; llamba needs an x86-64-v3 CPU "
                "(Intel Haswell 2013, AMD Excavator 2015, or newer)"
            )
        if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"} <= features:
            return Target(cpu, text, "avx512vnni", 16)
        if "avxvnni" in features:
            return Target(cpu, text, "avxvnni", 8)
        return Target(cpu, text, "avx2", 8)
    raise KernelError(f"no kernels for the architecture {arch} yet (x86-64 with AVX2 is supported)")


@lru_cache
def target() -> Target:
    """The target of this process: `LLAMBA_TARGET`, or the host.

    Raises:
        KernelError: the CPU is below the floor, or LLAMBA_TARGET is not a known name.
    """
    import platform

    arch = {"AMD64": "x86_64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())
    wanted = os.environ.get("LLAMBA_TARGET", "")
    if wanted and wanted != "host":
        if wanted not in NAMED_TARGETS:
            known = ", ".join(["host", *NAMED_TARGETS])
            raise KernelError(f"LLAMBA_TARGET={wanted!r} is not a known target (known: {known})")
        cpu, features = NAMED_TARGETS[wanted]
        return _classify(cpu, frozenset(f[1:] for f in features.split(",")), "x86_64")
    import llvmlite.binding as llvm

    host = llvm.get_host_cpu_features()
    on = frozenset(name for name, enabled in host.items() if enabled)
    return _classify(llvm.get_host_cpu_name(), on, arch)
