"""The folder on the user's disk: where it is, who may write, is there room, what was verified."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from ..errors import DownloadError, ModelError
from .progress import Progress

try:
    import fcntl
except ImportError:  # Windows: no lock, but unique temporary names and atomic renames
    fcntl = None

CHUNK = 1 << 20


def cache_dir() -> Path:
    """$LLAMBA_CACHE, else $XDG_CACHE_HOME/llamba, else ~/.cache/llamba. It need not exist."""
    if own := os.environ.get("LLAMBA_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the specification: a relative path is to be ignored
        return Path(base) / "llamba"
    return home() / ".cache" / "llamba"


def home() -> Path:
    """The user's home folder; ModelError where the user has none."""
    try:
        return Path.home()
    except RuntimeError:
        raise ModelError(
            "there is no home folder (HOME is not set): set LLAMBA_CACHE to a folder for the models"
        ) from None


@contextlib.contextmanager
def writing(folder: Path, variable: str = "LLAMBA_CACHE") -> Iterator[None]:
    """Errors of the system while writing below `folder` become one line that says what to do."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                f"the disk of {folder} is full: make room, or set {variable} to a folder elsewhere"
            ) from None
        why = error.strerror or error
        raise DownloadError(
            f"can't write {where}: {why}; set {variable} to a folder that can be written"
        ) from None


def require_space(folder: Path, num_bytes: int, what: str, variable: str = "LLAMBA_CACHE") -> None:
    """DownloadError when the disk of `folder` has less than `num_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise DownloadError(
            f"{what} needs {num_bytes / 1e6:,.0f} MB in {folder} while it is pulled, "
            f"{free / 1e6:,.0f} MB are free: make room, or set {variable} to a folder elsewhere"
        )


@contextlib.contextmanager
def exclusive(lock: Path, progress: Progress | None = None) -> Iterator[bool]:
    """Hold `lock` against other processes and threads; waits for them. False: no locks here.

    The system lets go of the lock when its holder dies, so that none is ever stale.
    """
    if fcntl is None:
        yield False
        return
    with open(lock, "ab") as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress:
                    progress("wait", 0, 0)
                fcntl.flock(file, fcntl.LOCK_EX)
            held = True
        except OSError:  # a file system without locks
            held = False
        yield held


def settle(fileno: int) -> None:
    """Bring a written file to the disk and let its page cache go.

    Written files lie in the page cache in 4 kB pieces; read afresh, they come in large ones, which
    decoding streams faster (gguf_shard.map_file).
    """
    os.fsync(fileno)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_DONTNEED)


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """The SHA-256 of a file, as hex."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress("verify", done, total)
    return digest.hexdigest()


def is_verified(path: Path, sha256: str, num_bytes: int, progress: Progress | None = None) -> bool:
    """Is the right file there? It is hashed once; then its size and time are enough."""
    try:
        found = path.stat()
    except OSError:
        return False
    if found.st_size != num_bytes:
        return False
    if _record(path) == {"sha256": sha256, "num_bytes": num_bytes, "mtime_ns": found.st_mtime_ns}:
        return True
    if sha256_of(path, progress) != sha256:
        return False
    with contextlib.suppress(OSError):  # a read-only cache serves all the same
        remember(path, sha256)
    return True


def record_path(path: Path) -> Path:
    """Where it is kept that a file was verified."""
    return path.with_name(f".{path.name}.json")


def temporary_beside(path: Path) -> Path:
    """A name in the same folder that no other process or thread uses, to be renamed to `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")


def remember(path: Path, sha256: str) -> None:
    """Keep that `path`, as it is now, has this checksum."""
    found = path.stat()
    record = {"sha256": sha256, "num_bytes": found.st_size, "mtime_ns": found.st_mtime_ns}
    new = temporary_beside(path)
    new.write_text(json.dumps(record))
    os.replace(new, record_path(path))


def _record(path: Path) -> object:
    try:
        return json.loads(record_path(path).read_text())
    except (OSError, ValueError):
        return None
