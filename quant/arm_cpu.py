"""What an ARM64 CPU can do and what it is called, as the operating system says it.

LLVM's own query reads /proc/cpuinfo, of the first core only: it comes back empty in emulators, and
wrong where cores differ. What Linux promises for all of them lies in the auxiliary vector (HWCAP).
"""

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# LLVM's features by the bits of AT_HWCAP and AT_HWCAP2; those that code generation makes use of.
_HWCAP = {8: "lse", 10: "fullfp16", 12: "rdm", 15: "rcpc", 20: "dotprod"}
_HWCAP2 = {13: "i8mm", 14: "bf16"}
_AT_HWCAP, _AT_HWCAP2 = 16, 26

# What macOS calls them, below hw.optional.arm.
_SYSCTL = {
    "FEAT_LSE": "lse",
    "FEAT_FP16": "fullfp16",
    "FEAT_RDM": "rdm",
    "FEAT_LRCPC": "rcpc",
    "FEAT_DotProd": "dotprod",
    "FEAT_I8MM": "i8mm",
    "FEAT_BF16": "bf16",
}
# And Windows: numbers of IsProcessorFeaturePresent.
_WINDOWS = {34: "lse", 43: "dotprod"}

_V8_2 = frozenset({"lse", "fullfp16", "rdm", "rcpc", "dotprod"})
# (implementer, part) of the register MIDR -> LLVM's name, and what LLVM takes for granted with it.
# From little to big: of cores that differ, the biggest has the most to do. CPUs with SVE have no
# name here: LLVM would make use of that, too, and virtual machines hide it.
_CORES: dict[tuple[int, int], tuple[str, frozenset[str]]] = {
    (0x41, 0xD03): ("cortex-a53", frozenset()),
    (0x41, 0xD05): ("cortex-a55", _V8_2),
    (0x41, 0xD07): ("cortex-a57", frozenset()),
    (0x41, 0xD08): ("cortex-a72", frozenset()),
    (0x41, 0xD09): ("cortex-a73", frozenset()),
    (0x41, 0xD0A): ("cortex-a75", _V8_2),
    (0x41, 0xD0B): ("cortex-a76", _V8_2),
    (0x41, 0xD0C): ("neoverse-n1", _V8_2),
    (0x41, 0xD0D): ("cortex-a77", _V8_2),
    (0x41, 0xD41): ("cortex-a78", _V8_2),
    (0x41, 0xD44): ("cortex-x1", _V8_2),
    (0x61, 0x022): ("apple-m1", _V8_2),
    (0x61, 0x023): ("apple-m1", _V8_2),
}


def arm_features(system: str = sys.platform) -> frozenset[str]:
    """LLVM's names of what every core can do: at least what ARMv8.0 has."""
    found = {"neon", "fp-armv8"}
    if system == "darwin":
        found |= {name for key, name in _SYSCTL.items() if _sysctl(f"hw.optional.arm.{key}")}
    elif system == "win32":
        found |= {name for number, name in _WINDOWS.items() if _windows_has(number)}
    else:
        found |= hwcap_features(_auxiliary(_AT_HWCAP), _auxiliary(_AT_HWCAP2))
    return frozenset(found)


def hwcap_features(hwcap: int, hwcap2: int) -> frozenset[str]:
    """LLVM's names for the bits of Linux's two words."""
    found = {name for bit, name in _HWCAP.items() if hwcap >> bit & 1}
    return frozenset(found | {name for bit, name in _HWCAP2.items() if hwcap2 >> bit & 1})


def arm_name(features: frozenset[str], system: str = sys.platform) -> str:
    """LLVM's name of the biggest core; "generic" where it has none, or implies more features."""
    if system == "darwin":
        return "apple-m2" if {"i8mm", "bf16"} | _V8_2 <= features else "apple-m1"
    return name_in(_cpuinfo(), features) if system == "linux" else "generic"


def name_in(cpuinfo: str, features: frozenset[str]) -> str:
    """The same of the text of /proc/cpuinfo."""
    pairs = zip(
        re.findall(r"^CPU implementer\s*: *(0x[0-9a-f]+)", cpuinfo, re.M),
        re.findall(r"^CPU part\s*: *(0x[0-9a-f]+)", cpuinfo, re.M),
        strict=False,
    )
    cores = {(int(a, 16), int(b, 16)) for a, b in pairs}
    if not cores or not cores <= set(_CORES):
        return "generic"
    name, implied = _CORES[max(cores, key=list(_CORES).index)]
    return name if implied <= features else "generic"


def _auxiliary(kind: int) -> int:
    try:
        ask: Any = ctypes.CDLL(None).getauxval
    except (AttributeError, OSError):
        return 0
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return ask(kind)


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""


def _sysctl(key: str) -> bool:
    value = ctypes.c_int32(0)
    size = ctypes.c_size_t(4)
    try:
        ask: Callable[..., int] = ctypes.CDLL(None).sysctlbyname
    except (AttributeError, OSError):
        return False
    answer = ask(key.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return answer == 0 and value.value == 1


def _windows_has(number: int) -> bool:
    windows: Any = getattr(ctypes, "windll", None)
    return windows is not None and bool(windows.kernel32.IsProcessorFeaturePresent(number))
