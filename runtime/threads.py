"""How many threads a model should run on: cores that are real, ours, and paid for (PAINS P70)."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from .cgroup import cgroup_folders, read_int, read_text


@dataclass(frozen=True, slots=True)
class Cores:
    """What there is to run on. allowed: CPUs by the affinity, None where the system has none."""

    logical: int
    allowed: int | None
    physical: int  # cores with an allowed CPU
    fast: int  # of them, without efficiency cores
    quota: float | None  # CPUs' worth of time, None without a limit

    @property
    def usable(self) -> int:
        """min(fast, floor(quota)), at least 1."""
        return max(1, self.fast if self.quota is None else min(self.fast, int(self.quota)))


def default_num_threads(root: Path = Path("/"), *, background: bool = False) -> int:
    """min(physical performance cores, affinity, floor(cgroup CPU quota)), at least 1.

    Two SMT threads of a core share its vector units, and one slow core makes all others wait at
    every barrier, so both are left out. In the background it is half of them. `root` is there for
    tests: the tree that /proc and /sys are read from.
    """
    usable = find_cores(root).usable
    return max(1, usable // 2) if background else usable


def find_cores(root: Path = Path("/")) -> Cores:
    """The cores of this machine that this process may use."""
    logical, allowed = os.cpu_count() or 1, _affinity()
    if allowed is None:
        physical = _sysctl("hw.physicalcpu") or logical
        # Apple's efficiency cores are a level of their own.
        fast = _sysctl("hw.perflevel0.physicalcpu") or physical
        return Cores(logical, None, physical, min(fast, physical), None)
    cpus = root / "sys/devices/system/cpu"
    return Cores(
        logical,
        len(allowed),
        _num_cores(allowed, cpus),
        _num_cores(_fast_cpus(allowed, cpus), cpus),
        _quota(root),
    )


def num_cpus() -> int:
    """The CPUs that this process may run on now: an administrator may change that any time."""
    allowed = _affinity()
    return len(allowed) if allowed else os.cpu_count() or 1


def _affinity() -> set[int] | None:
    """The CPUs this process may run on; None where the system does not say (macOS, Windows).

    A cpuset of a control group is part of it.
    """
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return None


def _sysctl(name: str) -> int | None:
    """A number that macOS gives by name."""
    if sys.platform != "darwin":
        return None
    import ctypes

    value, size = ctypes.c_int32(), ctypes.c_size_t(4)
    function = ctypes.CDLL(None).sysctlbyname
    failed = function(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return value.value if not failed and value.value > 0 else None


def _num_cores(allowed: set[int], cpus: Path) -> int:
    """Physical cores with one of the CPUs."""
    cores = set()
    for cpu in allowed:
        topology = cpus / f"cpu{cpu}" / "topology"
        siblings = read_text(topology / "core_cpus_list") or read_text(
            topology / "thread_siblings_list"
        )
        cores.add(siblings or f"cpu{cpu}")
    return len(cores)


def _fast_cpus(allowed: set[int], cpus: Path) -> set[int]:
    """Without efficiency cores, where sysfs tells them apart; never empty."""
    performance = read_text(cpus.parent.parent / "cpu_core" / "cpus")  # x86 hybrids
    if performance is not None:
        fast = allowed & parse_cpu_list(performance)
        return fast or allowed
    capacity = {c: read_int(cpus / f"cpu{c}" / "cpu_capacity") for c in allowed}  # Arm
    known = [c for c in capacity.values() if c is not None]
    if len(known) < len(allowed):
        return allowed
    # Big cores of one chip differ a little (prime and performance); little ones are far below.
    return {c for c, value in capacity.items() if value is not None and 2 * value > max(known)}


def _quota(root: Path) -> float | None:
    """CPUs' worth of time that the control groups allow; None without a limit."""
    quotas = []
    for folder in cgroup_folders("cpu", root):
        words = (read_text(folder / "cpu.max") or "").split()  # v2: "max 100000", "400000 100000"
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quota, period = int(words[0]), int(words[1])
        else:
            quota = read_int(folder / "cpu.cfs_quota_us") or -1
            period = read_int(folder / "cpu.cfs_period_us") or 0
        if quota > 0 and period > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def parse_cpu_list(text: str) -> set[int]:
    """The kernel's list notation.

    >>> sorted(parse_cpu_list("0-2,5"))
    [0, 1, 2, 5]
    """
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus
