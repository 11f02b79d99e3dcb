"""Which CPU the kernels are compiled for, and what it can do.

The instruction set is a property of the *code generation target*, never of the host alone: emitting
an instruction that the target lacks makes LLVM abort the process. `LLAMBA_TARGET` chooses another
target than the host's (tests run the AVX2 code on an AVX-512 machine so); a target of another
architecture can be compiled for, but not run.
"""

import os
import platform
from dataclasses import dataclass
from functools import lru_cache

from ..errors import KernelError

_X86_V2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt"
_X86_V3 = f"{_X86_V2},+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_ARM_V8 = "+v8a,+fp-armv8,+neon"
_ARM_DOT = "+v8.2a,+fp-armv8,+neon,+dotprod"

# Named targets for LLAMBA_TARGET: architecture, LLVM's CPU name and the features that go with it.
NAMED_TARGETS = {
    "x86-64": ("x86_64", "x86-64", "+sse2"),
    "x86-64-v2": ("x86_64", "x86-64-v2", _X86_V2),
    "avx2": ("x86_64", "haswell", _X86_V3),
    "avxvnni": ("x86_64", "alderlake", f"{_X86_V3},+avxvnni"),
    "avx512": (
        "x86_64",
        "cascadelake",
        f"{_X86_V3},+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512vnni",
    ),
    "cortex-a72": ("aarch64", "cortex-a72", _ARM_V8),
    "cortex-a76": ("aarch64", "cortex-a76", _ARM_DOT),
    "arm-i8mm": ("aarch64", "neoverse-v1", f"{_ARM_DOT},+i8mm"),
}


@dataclass(frozen=True)
class Target:
    """A CPU to compile for.

    arch: "x86_64" or "aarch64".
    isa: selects the lowerings in quant/cpu/simd.py.
    lanes: tokens side by side in the prefill layout, in as many 32-bit lanes of a vector.
    rows: weight rows of the prefill micro kernel; with `lanes` they fill the registers.
    """

    arch: str
    cpu: str
    features: str
    isa: str
    lanes: int
    rows: int

    @property
    def is_host(self) -> bool:
        """Whether this machine's processes can run its code (if the CPU has the features)."""
        return self.arch == machine()


def machine() -> str:
    """The architecture of this process, by the names of Linux."""
    name = platform.machine()
    return {"AMD64": "x86_64", "amd64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"}.get(
        name, name
    )


def classify(cpu: str, features: frozenset[str], arch: str) -> Target:
    """The target of a CPU with these features (LLVM's names).

    Raises:
        KernelError: there are no kernels for it.
    """
    text = ",".join(f"+{f}" for f in sorted(features))
    if arch == "x86_64":
        if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"} <= features:
            return Target(arch, cpu, text, "avx512vnni", 16, 8)
        if not {"avx2", "fma", "f16c"} <= features:
            raise KernelError(
                f"this CPU ({cpu}) lacks AVX2, FMA or F16C; llamba needs an x86-64-v3 CPU "
                "(Intel Haswell 2013, AMD Excavator 2015, or newer)"
            )
        if "avxvnni" in features:
            return Target(arch, cpu, text, "avxvnni", 8, 4)
        return Target(arch, cpu, text, "avx2", 8, 4)
    if arch == "aarch64":
        if {"dotprod", "i8mm"} <= features:
            return Target(arch, cpu, text, "neon_i8mm", 8, 4)
        if "dotprod" in features:
            return Target(arch, cpu, text, "neon_dot", 8, 4)
        return Target(arch, cpu, text, "neon", 8, 4)
    raise KernelError(f"no kernels for the architecture {arch} (there are for x86-64 and ARM64)")


def named(name: str) -> Target:
    """A target of NAMED_TARGETS, or "host".

    Raises:
        KernelError: the name is not known, or the host is below the floor.
    """
    if name in ("", "host"):
        return _host()
    if name not in NAMED_TARGETS:
        known = ", ".join(["host", *NAMED_TARGETS])
        raise KernelError(f"LLAMBA_TARGET={name!r} is not a known target (known: {known})")
    arch, cpu, features = NAMED_TARGETS[name]
    return classify(cpu, frozenset(f[1:] for f in features.split(",")), arch)


def name_of(wanted: Target) -> str:
    """The name that gives this target in `named`."""
    features = set(wanted.features.split(","))
    for name, (arch, cpu, text) in NAMED_TARGETS.items():
        if (arch, cpu, set(text.split(","))) == (wanted.arch, wanted.cpu, features):
            return name
    return "host"


@lru_cache
def target() -> Target:
    """The target of this process: `LLAMBA_TARGET`, or the host.

    Raises:
        KernelError: the CPU is below the floor, or LLAMBA_TARGET is not a known name.
    """
    return named(os.environ.get("LLAMBA_TARGET", ""))


def _host() -> Target:
    import llvmlite.binding as llvm

    host = llvm.get_host_cpu_features()
    on = frozenset(name for name, enabled in host.items() if enabled)
    return classify(llvm.get_host_cpu_name(), on, machine())
