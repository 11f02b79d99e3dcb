"""Weights that stay: a file's bytes in private memory, or locked where they are mapped.

Mapped weights belong to the page cache: the system may drop pages of them and read them again. Who
does not want that reads them into memory of the process (nothing of the file is needed any more,
huge pages where the system has them), or locks the pages of the map.
"""

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ..errors import InvalidModelFileError, ResourceError

Update = Callable[[int, int], None]  # (done, total) bytes

# A disk is kept busy by a few requests at once; two threads also halve the time of the copies.
_READERS, _PIECE = 2, 16 << 20
_LOCK_PIECE = 64 << 20


def read_privately(path: Path, start: int, size: int, update: Update) -> mmap.mmap:
    """Bytes start..size of a file at their offsets in memory of this process.

    InvalidModelFileError: they can't be read, or the file has become shorter. ResourceError: there
    is not so much memory.
    """
    private = {}
    if hasattr(mmap, "MAP_ANONYMOUS"):
        private["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, size, **private)
    except OSError as error:
        raise ResourceError(
            f"{path}: the system does not give {size:,} bytes of memory ({error.strerror}): leave "
            "mmap=False out, or choose a smaller model"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = memoryview(memory)
    done = 0

    def read(at: int) -> int:
        piece = whole[at : min(at + _PIECE, size)]
        with open(path, "rb", buffering=0) as file:
            file.seek(at)
            got = 0
            while got < len(piece):
                count = file.readinto(piece[got:])
                if not count:
                    raise OSError(0, f"it ends at byte {at + got:,}")
                got += count
        return len(piece)

    try:
        with ThreadPoolExecutor(_READERS) as pool:
            for count in pool.map(read, range(start, size, _PIECE)):
                done += count
                update(done, size - start)
    except OSError as error:
        raise InvalidModelFileError(
            f"{path}: the file can't be read: {error.strerror or error}; it has changed, or the "
            "disk is faulty"
        ) from None
    finally:
        whole.release()
    return memory


def lock_in_memory(parts: Iterable[memoryview | mmap.mmap], update: Update) -> str:
    """Read the parts in and keep the system from dropping them; what was in the way, or "".

    Nothing stays locked if not all of it can be. It is unlocked when it is unmapped.
    """
    arrays = [np.frombuffer(part, np.uint8) for part in parts]
    total, done = sum(a.nbytes for a in arrays), 0
    allowed = _raise_limit(total)
    locked: list[tuple[int, int]] = []
    for array in arrays:
        base = array.ctypes.data
        for at in range(0, array.nbytes, _LOCK_PIECE):
            piece = base + at, min(_LOCK_PIECE, array.nbytes - at)
            if why := _call("mlock", *piece):
                for each in locked:
                    _call("munlock", *each)
                return _refusal(why, total, allowed)
            locked.append(piece)
            done += piece[1]
            update(done, total)
    return ""


def _call(name: str, address: int, num_bytes: int) -> int:
    """The system's function; its errno, 0 for success."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError, TypeError):
        return errno.ENOSYS
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t
    return ctypes.get_errno() or errno.EIO if function(address, num_bytes) else 0


def _raise_limit(wanted: int) -> int | None:
    """Use what the hard limit allows; bytes that may be locked, None: not known or no limit."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < wanted and (hard == resource.RLIM_INFINITY or hard > soft):
        more = wanted + (1 << 20)  # other parts of the process may have locked some
        with contextlib.suppress(OSError, ValueError):
            more = more if hard == resource.RLIM_INFINITY else min(hard, more)
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (more, hard))
            soft = more
    return soft


def _refusal(why: int, total: int, allowed: int | None) -> str:
    if why == errno.ENOSYS:
        return "this system has no mlock"
    if why in (errno.EPERM, errno.ENOMEM, errno.EAGAIN) and allowed is not None:
        kilobytes = -(-total // 1024) + 1024
        return (
            f"{allowed // 1024} kB may be locked, {kilobytes} kB are needed: `ulimit -l "
            f"{kilobytes}` (or unlimited) before llamba starts, LimitMEMLOCK={kilobytes}K in a "
            f"systemd unit, or --ulimit memlock=-1 for a container"
        )
    return os.strerror(why)
