"""What `llamba doctor` reads about the machine: clocks, heat, pages, limits, disks."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ..runtime.cgroup import read_int, read_text
from ..runtime.memory import group_room
from ..runtime.threads import find_cores
from .console import size

ROOT = Path("/")
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.rclone", "9p", "ceph", "glusterfs")
# These drivers choose the clock themselves; their "powersave" is the usual and no brake.
_OWN_CLOCKS = ("intel_pstate", "amd-pstate-epp", "amd-pstate")
_PI = {
    0: "the voltage is too low", 1: "the clock is capped", 2: "it is throttled",
    3: "the soft limit of temperature is reached", 16: "the voltage was too low",
    17: "the clock was capped", 18: "it was throttled", 19: "it was at the limit of temperature",
}  # fmt: skip


def threads(root: Path = ROOT) -> dict[str, Any]:
    """How many, and why."""
    cores = find_cores(root)
    quota = "none" if cores.quota is None else f"{cores.quota:g} CPUs"
    return {
        "threads": cores.usable,
        "why": {
            "logical CPUs": cores.logical,
            "CPUs we may use": "unknown" if cores.allowed is None else cores.allowed,
            "physical cores of them": cores.physical,
            "fast ones": cores.fast,
            "quota": quota,
            "rule": "the fast physical cores, not more than the control group's quota",
        },
    }


def memory_groups(root: Path = ROOT) -> dict[str, str]:
    """What every limited control group leaves."""
    return {str(folder): f"{size(max(0, room))} left" for folder, room in group_room(root).items()}


def huge_pages(root: Path = ROOT) -> str | None:
    """The kernel's policy: always, madvise (we ask for them) or never."""
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    return text.partition("[")[2].partition("]")[0] or None


def clocks(root: Path = ROOT) -> dict[str, Any]:
    """The governor, and whether clocks are held down."""
    cpu = root / "sys/devices/system/cpu/cpu0/cpufreq"
    governor, driver = read_text(cpu / "scaling_governor"), read_text(cpu / "scaling_driver")
    if governor is None:
        return {}
    most, allowed = read_int(cpu / "cpuinfo_max_freq"), read_int(cpu / "scaling_max_freq")
    found: dict[str, Any] = {"governor": f"{governor} ({driver or 'unknown driver'})"}
    if most and allowed:
        found["clock"] = f"up to {allowed / 1e6:.2f} of {most / 1e6:.2f} GHz"
        if allowed < most:
            found["held down"] = True
    if governor == "powersave" and driver not in _OWN_CLOCKS:
        found["held down"] = True
    return found


def heat(root: Path = ROOT) -> dict[str, Any]:
    """The hottest zone, and what a Raspberry Pi says of itself."""
    zones = (read_int(zone / "temp") for zone in (root / "sys/class/thermal").glob("thermal_zone*"))
    degrees = [value / 1000 for value in zones if value is not None and 0 < value < 200_000]
    found: dict[str, Any] = {"temperature": f"{max(degrees):.0f} C"} if degrees else {}
    throttled = [
        read_int(cpu / "thermal_throttle/core_throttle_count") or 0
        for cpu in (root / "sys/devices/system/cpu").glob("cpu[0-9]*")
    ]
    if any(throttled):
        found["throttled"] = f"{max(throttled)} times since the start"
    if shutil.which("vcgencmd") and (said := pi_throttling(_vcgencmd())):
        found["throttled"] = ", ".join(said)
    return found


def _vcgencmd() -> str:
    try:
        run = subprocess.run(
            ["vcgencmd", "get_throttled"], capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout


def pi_throttling(text: str) -> list[str]:
    """What the bits of `vcgencmd get_throttled` mean.

    >>> pi_throttling("throttled=0x50005")
    ['the voltage is too low', 'it is throttled', 'the voltage was too low', 'it was throttled']
    """
    try:
        bits = int(text.strip().partition("=")[2] or "0", 16)
    except ValueError:
        return []
    return [meaning for bit, meaning in _PI.items() if bits >> bit & 1]


def power(root: Path = ROOT) -> str | None:
    """Mains or battery, and the profile that the firmware was told."""
    supplies = list((root / "sys/class/power_supply").glob("*"))
    mains = [read_int(s / "online") for s in supplies if read_text(s / "type") == "Mains"]
    profile = read_text(root / "sys/firmware/acpi/platform_profile")
    if not mains and profile is None:
        return None
    source = "battery" if mains and not any(mains) else "mains"
    return source + (f", profile {profile}" if profile else "")


def load_average() -> float | None:
    """How many want to run: of the last minute."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def file_system(path: Path, root: Path = ROOT) -> dict[str, str]:
    """Where a folder lies: the kind of file system, and of disk if it is a slow one."""
    path = path if path.exists() else next((p for p in path.parents if p.exists()), path)
    try:
        resolved = str(path.resolve())
    except OSError:
        return {}
    best = ("", "", "")
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        words, _, rest = line.partition(" - ")
        fields, kind = words.split(), rest.split()
        if len(fields) < 5 or len(kind) < 2:
            continue
        mount = fields[4].replace("\\040", " ")
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = mount, kind[0], kind[1]
    if not best[0]:
        return {}
    found = {"kind": best[1]}
    if best[1] in NETWORK:
        found["slow"] = "it is reached over a network"
    elif (why := _slow_disk(best[2], root)) is not None:
        found["slow"] = why
    return found


def _slow_disk(source: str, root: Path) -> str | None:
    name = source.rpartition("/")[2]
    for block in sorted((root / "sys/block").glob("*"), key=lambda b: -len(b.name)):
        if name.startswith(block.name):
            if block.name.startswith("mmcblk") and read_text(block / "device/type") == "SD":
                return "it is an SD card"
            if read_int(block / "queue/rotational") == 1 and not name.startswith(("vd", "xvd")):
                return "it is a spinning disk"
            return None
    return None


def autogroup(root: Path = ROOT) -> bool:
    """Whether `nice` counts only among the processes of one terminal."""
    return read_int(root / "proc/sys/kernel/sched_autogroup_enabled") == 1
