"""How many threads a model should run on: cores that are real, ours, and paid for (PAINS P70)."""

import os
from pathlib import Path

from .cgroup import cgroup_folders, read_int, read_text


def default_num_threads(root: Path = Path("/")) -> int:
    """min(physical performance cores, affinity, floor(cgroup CPU quota)), at least 1.

    Two SMT threads of a core share its vector units, and one slow core makes all others wait at
    every barrier, so both are left out. `root` is there for tests: the tree that /proc and /sys
    are read from.
    """
    allowed = _affinity()
    cores = _physical_cores(allowed, root / "sys/devices/system/cpu")
    quota = _quota(root)
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def _affinity() -> set[int] | None:
    """The CPUs this process may run on; None where the system does not say (macOS, Windows)."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return None


def _physical_cores(allowed: set[int] | None, cpus: Path) -> int:
    """Cores with at least one allowed CPU, only the fast kind."""
    if allowed is None:
        return os.cpu_count() or 1
    fast = _fast_cpus(allowed, cpus)
    cores = set()
    for cpu in fast:
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
