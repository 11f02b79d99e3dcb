"""What Linux says about an x86-64 CPU, for where LLVM can't ask it."""

from pathlib import Path

# Linux's flags by LLVM's names of the features that kernels use.
_FLAGS = {
    "sse2": "sse2",
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "popcnt": "popcnt",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "lzcnt": "abm",
    "movbe": "movbe",
    "gfni": "gfni",
    "avxvnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
}


def cpuinfo_features(path: Path = Path("/proc/cpuinfo")) -> dict[str, bool]:
    """Features by LLVM's names; all off where the file says nothing.

    Linux leaves out the flags of registers that it does not save.
    """
    try:
        with path.open(errors="replace") as file:
            text = file.read(8192)  # the first CPU; the file of a large machine takes long to read
    except OSError:
        text = ""
    lines = (line.partition(":") for line in text.splitlines())
    flags = next((set(value.split()) for name, _, value in lines if name.strip() == "flags"), set())
    return {feature: flag in flags for feature, flag in _FLAGS.items()}
