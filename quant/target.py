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
from .cpuinfo import cpuinfo_features

_X86_V2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt"
_X86_V3 = f"{_X86_V2},+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_X86_V4 = f"{_X86_V3},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"
_ARM_V8 = "+v8a,+fp-armv8,+neon"
_ARM_DOT = "+v8.2a,+fp-armv8,+neon,+dotprod"

# Named targets for LLAMBA_TARGET: architecture, LLVM's CPU name and the features that go with it,
# all that the name implies and code generation makes use of. From least to best.
NAMED_TARGETS = {
    "x86-64": ("x86_64", "x86-64", "+sse2"),
    "x86-64-v2": ("x86_64", "x86-64-v2", _X86_V2),
    "avx2": ("x86_64", "haswell", _X86_V3),
    "avx512bw": ("x86_64", "skylake-avx512", _X86_V4),
    "avxvnni": ("x86_64", "alderlake", f"{_X86_V3},+gfni,+avxvnni"),
    "avx512": ("x86_64", "cascadelake", f"{_X86_V4},+avx512vnni"),
    "cortex-a72": ("aarch64", "cortex-a72", _ARM_V8),
    "cortex-a76": ("aarch64", "cortex-a76", _ARM_DOT),
    "arm-i8mm": ("aarch64", "neoverse-v1", f"{_ARM_DOT},+i8mm"),
}

# The instruction sets of x86-64, best first: what of its features LLVM must report. Each level asks
# for those below it, too: a virtual machine may hide any of them.
_SSE4 = frozenset({"sse3", "ssse3", "sse4.1"})
_AVX2 = _SSE4 | {"sse4.2", "popcnt", "avx", "avx2", "fma", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_X86_LEVELS = (
    ("avx512vnni", _AVX512 | {"avx512vnni"}),
    ("avxvnni", _AVX2 | {"avxvnni"}),
    ("avx512bw", _AVX512),
    ("avx2", _AVX2),
    ("sse4", _SSE4),
    ("sse2", frozenset()),
)
# Lanes and rows; see Target.
_SHAPES = {"avx512vnni": (16, 8), "avx512bw": (16, 8)}
_SHAPE = (8, 4)


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

    @property
    def enabled(self) -> frozenset[str]:
        """The features that it has, by LLVM's names."""
        return frozenset(f[1:] for f in self.features.split(",") if f[:1] == "+")


def machine() -> str:
    """The architecture of this process, by the names of Linux."""
    name = platform.machine()
    return {"AMD64": "x86_64", "amd64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"}.get(
        name, name
    )


def classify(
    cpu: str, features: frozenset[str], arch: str, lacking: frozenset[str] = frozenset()
) -> Target:
    """The target of a CPU with these features (LLVM's names).

    `lacking` are features that LLVM must not take from the CPU's name: a virtual machine hides some
    of its CPU's.

    Raises:
        KernelError: there are no kernels for it.
    """
    text = ",".join([*(f"+{f}" for f in sorted(features)), *(f"-{f}" for f in sorted(lacking))])
    if arch == "x86_64":
        isa = next(isa for isa, needed in _X86_LEVELS if needed <= features)
        return Target(arch, cpu, text, isa, *_SHAPES.get(isa, _SHAPE))
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
        KernelError: there are no kernels for the CPU, or LLAMBA_TARGET is not a known name.
    """
    return named(os.environ.get("LLAMBA_TARGET", ""))


def missing_features(wanted: Target, host: Target) -> list[str]:
    """What the host's CPU lacks of a target of its own architecture."""
    levels = {f for f in wanted.enabled if f[0] == "v" and f[1:2].isdigit()}  # ARM's "v8.2a"
    return sorted(wanted.enabled - levels - host.enabled)


def compatible(host: Target) -> list[Target]:
    """The named targets whose code a host can run, best first."""
    found = [named(name) for name in reversed(NAMED_TARGETS)]
    return [t for t in found if t.arch == host.arch and not missing_features(t, host)]


def check_runs_here(wanted: Target) -> None:
    """Refuse a target whose code this machine can't run: it would end in SIGILL.

    Raises:
        KernelError: it is another architecture's, or asks for what this CPU lacks.
    """
    if not wanted.is_host:
        raise KernelError(f"kernels for {wanted.cpu} can't run on this {machine()} machine")
    host = _host()
    if wanted == host:
        return
    if absent := missing_features(wanted, host):
        names = ", ".join(["host", *(name_of(t) for t in compatible(host))])
        raise KernelError(
            f"kernels for {wanted.cpu} can't run on this CPU ({host.cpu}), which lacks "
            f"{', '.join(absent)}; LLAMBA_TARGET may be {names} here"
        )


@lru_cache
def _host() -> Target:
    arch = machine()
    cpu, features = _reported()
    if arch == "x86_64":
        if not any(features.values()):
            features = cpuinfo_features()
        if cpu in ("", "generic"):
            cpu = "x86-64"
    on = frozenset(name for name, enabled in features.items() if enabled)
    return classify(cpu, on, arch, frozenset(features) - on if arch == "x86_64" else frozenset())


def _reported() -> tuple[str, dict[str, bool]]:
    """LLVM's name of this CPU and its features; empty where it can't find out.

    On x86 LLVM asks the CPU itself, and leaves out what the system doesn't save (AVX, AVX-512).
    """
    import llvmlite.binding as llvm

    try:
        return llvm.get_host_cpu_name(), dict(llvm.get_host_cpu_features())
    except RuntimeError:
        return "", {}
