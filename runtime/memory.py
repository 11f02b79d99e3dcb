"""What memory the machine and its control groups leave, and whether a model fits into it."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ResourceError
from .batch import PAGE_SIZE
from .cgroup import cgroup_folders, read_int, read_text
from .config import MIN_KV_TOKENS

logger = logging.getLogger(__name__)

# Kept free of KV and arena: the interpreter, the tokenizer's tables, what others start meanwhile.
RESERVE = 128 << 20
_UNLIMITED = 1 << 60  # v1 writes "no limit" as a number near 2^63


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes a model takes. Weights are mapped from the file: the system may drop and reread."""

    weights: int
    kv: int
    arena: int

    @property
    def private(self) -> int:
        """What must really be there: KV cache and activations."""
        return self.kv + self.arena


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can still be taken: min(MemAvailable, each control group's limit - usage).

    None where the system does not say. `root` is there for tests: the tree of /proc and /sys.
    """
    limits = [*_machine(root), *_groups(root)]
    return max(0, min(limits)) if limits else None


def check_memory(
    need: MemoryNeed, available: int | None, *, setting: str, num_tokens: int, advice: str = ""
) -> None:
    """Raise ResourceError if the private memory does not fit; warn if the weights do not, too.

    Args:
        setting: the one that gave the KV cache its size, "context_length" or "kv_tokens".
        num_tokens: its value.
        advice: another way out, for the message.
    """
    if available is None:
        return
    if need.private + RESERVE > available:
        left = max(0, available - RESERVE - need.arena)
        fitting = num_tokens * left // max(1, need.kv) // PAGE_SIZE * PAGE_SIZE
        way_out = (
            f"pass a smaller {setting} (about {fitting} fits){advice}"
            if fitting >= MIN_KV_TOKENS
            else "free memory or choose a smaller model"
        )
        raise ResourceError(
            f"{setting}={num_tokens} needs {megabytes(need.kv)} for the KV cache and "
            f"{megabytes(need.arena)} for activations, but only {megabytes(available)} are "
            f"available ({megabytes(RESERVE)} stay free): {way_out}"
        )
    if need.private + need.weights > available:
        logger.warning(
            "the weights (%s) do not fit into memory beside the KV cache (%s available): they will "
            "be read from disk again and again, which is slow",
            megabytes(need.weights),
            megabytes(available - need.private),
        )


def megabytes(num_bytes: int) -> str:
    """For messages.

    >>> megabytes(350 << 20)
    '350 MB'
    """
    return (
        f"{num_bytes / (1 << 20):.0f} MB" if num_bytes >= 1 << 20 else f"{num_bytes / 1024:.0f} kB"
    )


def _machine(root: Path) -> Iterator[int]:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable" and rest.split()[0].isdigit():
            yield int(rest.split()[0]) * 1024
            return
    try:  # macOS and the BSDs tell the size, not what is free
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return


def _groups(root: Path) -> Iterator[int]:
    """Limit - usage for every memory group; file pages count as usage there but can be dropped."""
    for folder in cgroup_folders("memory", root):
        limit = read_int(folder / "memory.max")
        usage = read_int(folder / "memory.current")
        if limit is None:
            limit = read_int(folder / "memory.limit_in_bytes")
            usage = read_int(folder / "memory.usage_in_bytes")
        if limit is None or usage is None or limit >= _UNLIMITED:
            continue
        yield limit - max(0, usage - _reclaimable(folder))


def _reclaimable(folder: Path) -> int:
    numbers = {}
    for line in (read_text(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            numbers[name] = int(value)
    prefix = "total_" if "total_inactive_file" in numbers else ""  # v1 totals include sub-groups
    return numbers.get(f"{prefix}inactive_file", 0) + numbers.get(f"{prefix}active_file", 0)
