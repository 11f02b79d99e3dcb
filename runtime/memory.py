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
# Of that, what a loaded model takes beside: a vocabulary of 150k tokens, its tokenizer, the kernels
# (83 MB in all, of which 30 are there before).
TABLES = 64 << 20
_UNLIMITED = 1 << 60  # v1 writes "no limit" as a number near 2^63


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes a model takes. Mapped weights belong to the file: the system may drop and reread them.

    streamed: of the weights, what is read for every token: all but tables of which a row is looked
    up. kept: the weights are read into private memory, or locked.
    """

    weights: int
    kv: int
    arena: int
    streamed: int = -1
    kept: bool = False

    @property
    def private(self) -> int:
        """What must really be there: KV cache and activations, and weights that are kept."""
        return self.kv + self.arena + (self.weights if self.kept else 0)

    @property
    def total(self) -> int:
        """All of it, weights included."""
        return self.weights + self.kv + self.arena

    @property
    def comfortable(self) -> int:
        """What must be free so that no token has to wait for the disk."""
        busy = self.weights if self.streamed < 0 or self.kept else self.streamed
        return busy + self.kv + self.arena + TABLES


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can still be taken: the least of MemAvailable, and limit - usage of every control
    group and of the process (`ulimit -v`, `-d`).

    None where the system does not say. `root` is there for tests: the tree of /proc and /sys.
    """
    limits = [*_machine(root), *group_room(root).values(), *_process_limits()]
    return max(0, min(limits)) if limits else None


def check_memory(
    need: MemoryNeed,
    available: int | None,
    *,
    setting: str,
    num_tokens: int,
    advice: str = "",
    limit: int | None = None,
) -> None:
    """Raise ResourceError if the private memory does not fit; warn if the weights do not, too.

    Args:
        setting: the one that gave the KV cache its size, "context_length" or "kv_tokens".
        num_tokens: its value.
        advice: another way out, for the message.
        limit: what llamba may take in all, weights included.
    """

    def way_out(left: int, else_: str) -> str:
        fitting = max(0, left) * num_tokens // max(1, need.kv) // PAGE_SIZE * PAGE_SIZE
        if fitting < MIN_KV_TOKENS:
            return else_
        return f"pass a smaller {setting} (about {fitting} fits){advice}"

    kv = f"{setting}={num_tokens} needs {megabytes(need.kv)} for the KV cache"
    if limit is not None and need.total + RESERVE > limit:
        least = need.total + RESERVE - need.kv * max(0, num_tokens - MIN_KV_TOKENS) // num_tokens
        enough = up_megabytes(need.total + RESERVE) + " or more"
        out = way_out(limit - RESERVE - need.arena - need.weights, "")
        out = f"{out}, or a higher memory_limit" if out else "pass a higher memory_limit"
        if limit < least < need.total + RESERVE:
            enough += f"; with {setting}={MIN_KV_TOKENS}, {up_megabytes(least)}"
        raise ResourceError(
            f"the weights take {megabytes(need.weights)}, {kv}, {megabytes(need.arena)} are for "
            f"activations and {megabytes(RESERVE)} for the program itself, but "
            f"memory_limit={limit} allows {megabytes(limit)}: {out} "
            f"({enough}), or choose a smaller model"
        )
    if available is None:
        return
    if need.private + RESERVE > available:
        kept = f" and {megabytes(need.weights)} for weights that are kept" if need.kept else ""
        out = way_out(
            available - RESERVE - need.private + need.kv,
            "leave mmap=False and mlock out, free memory or choose a smaller model"
            if need.kept
            else "free memory or choose a smaller model",
        )
        raise ResourceError(
            f"{kv} and {megabytes(need.arena)} for activations{kept}, but only "
            f"{megabytes(available)} are available ({megabytes(RESERVE)} stay free): {out}"
        )
    if need.comfortable > available:
        logger.warning(
            "the weights (%s) do not fit into memory beside the KV cache (%s available): they will "
            "be read from disk again and again, which is slow; a smaller model or quant fits",
            megabytes(need.weights),
            megabytes(max(0, available - need.private)),
        )


def describe(need: MemoryNeed, num_tokens: int, cache_type: str, available: int | None) -> str:
    """What a model is going to take, in a line.

    >>> describe(MemoryNeed(weights=900 << 20, kv=96 << 20, arena=50 << 20), 8192, "f16", 4 << 30)
    'weights 900 MB (mapped), KV cache 96 MB (8192 tokens, f16), activations 50 MB; 4096 MB free'
    """
    how = "kept in memory" if need.kept else "mapped"
    free = "" if available is None else f"; {megabytes(available)} free"
    return (
        f"weights {megabytes(need.weights)} ({how}), KV cache {megabytes(need.kv)} "
        f"({num_tokens} tokens, {cache_type}), activations {megabytes(need.arena)}{free}"
    )


def megabytes(num_bytes: int) -> str:
    """For messages.

    >>> megabytes(350 << 20)
    '350 MB'
    """
    return (
        f"{num_bytes / (1 << 20):.0f} MB" if num_bytes >= 1 << 20 else f"{num_bytes / 1024:.0f} kB"
    )


def up_megabytes(num_bytes: int) -> str:
    """As a size that can be given as a limit.

    >>> up_megabytes((350 << 20) + 1)
    '351M'
    """
    return f"{-(-num_bytes >> 20)}M"


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


def _process_limits() -> Iterator[int]:
    """What the limits of address space and of private memory leave. Files count as address space.

    A model's file is mapped before anybody asks.
    """
    try:
        import resource

        sizes = [int(pages) for pages in (read_text(Path("/proc/self/statm")) or "").split()]
        page = os.sysconf("SC_PAGE_SIZE")
        for kind, used in ((resource.RLIMIT_AS, sizes[0]), (resource.RLIMIT_DATA, sizes[5])):
            limit = resource.getrlimit(kind)[0]
            if limit != resource.RLIM_INFINITY:
                yield max(0, limit - used * page)
    except (ImportError, AttributeError, IndexError, OSError, ValueError):
        return


def group_room(root: Path = Path("/")) -> dict[Path, int]:
    """Limit - usage of every memory group; file pages count as usage there but can be dropped."""
    room = {}
    for folder in cgroup_folders("memory", root):
        limit = read_int(folder / "memory.max")
        usage = read_int(folder / "memory.current")
        if limit is None:
            limit = read_int(folder / "memory.limit_in_bytes")
            usage = read_int(folder / "memory.usage_in_bytes")
        if limit is None or usage is None or limit >= _UNLIMITED:
            continue
        room[folder] = limit - max(0, usage - _reclaimable(folder))
    return room


def _reclaimable(folder: Path) -> int:
    numbers = {}
    for line in (read_text(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            numbers[name] = int(value)
    prefix = "total_" if "total_inactive_file" in numbers else ""  # v1 totals include sub-groups
    return numbers.get(f"{prefix}inactive_file", 0) + numbers.get(f"{prefix}active_file", 0)
