"""A file that appears under its name complete or not at all, whatever stops the program.

Its bytes go to a temporary file beside it, `.NAME.*.tmp`, which takes the name when all are on the
disk. Where a link is to be replaced, that is what it leads to, and the link stays. Who writes holds
a lock on the temporary file; one that nobody holds was left by a program that was killed, and the
next writer of the same name removes it. An interrupt may come between any two instructions: what
it keeps from being discarded goes when the program ends.
"""

import atexit
import contextlib
import errno
import glob
import hashlib
import os
import secrets
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..errors import OutputError

Bytes = bytes | bytearray | memoryview | NDArray

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_MAX_STEM = 237  # bytes of a name that a temporary one, 18 longer, begins with: 255 are the limit
_begun: dict[Path, int] = {}  # temporary files, and the process (a fork isn't it) that writes them


@atexit.register
def _discard_begun() -> None:
    for path, process in list(_begun.items()):
        if process == os.getpid():
            with contextlib.suppress(OSError):
                path.unlink()


class Publication(ABC):
    """A context manager: without an error `publish` is called at its end; then `discard`."""

    @abstractmethod
    def publish(self) -> None:
        """Give what was written its name."""

    @abstractmethod
    def discard(self) -> None:
        """Forget what was written; no effect once it is published."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.publish()
        finally:
            self.discard()


class OutputFile(Publication):
    """A context manager: without an error the file is published at its end, else it is discarded.

    sha256: of what was written, hexadecimal; complete when all is written.

    Args:
        path: the file's name; its folder must exist.
        num_bytes: how many it will have, if that is known: so many are reserved now.
        overwrite: whether a file of this name may be replaced.

    Raises:
        OutputError: here and in every method: the name is taken, no right to write, no room.
    """

    def __init__(
        self, path: str | Path, *, num_bytes: int | None = None, overwrite: bool = False
    ) -> None:
        self.path, self.overwrite = Path(path), overwrite
        self.num_bytes = 0  # written so far
        self._digest = hashlib.sha256()
        self._published = False
        self._fd = -1
        try:
            _check_name(self.path, overwrite)
            self._target = Path(os.path.realpath(path)) if self.path.is_symlink() else self.path
            if self._target != self.path:
                _check_name(self._target, overwrite)
            _remove_leftovers(self._target)
            if num_bytes is not None:
                _check_room(self._target, num_bytes)
            while not self._open_temporary():
                pass
            if num_bytes:
                self._reserve(num_bytes)
        except BaseException as error:
            if self._fd >= 0:
                self.discard()
            if isinstance(error, OSError):
                raise self._failed(error) from None
            raise

    @property
    def sha256(self) -> str:
        """Of the bytes written so far."""
        return self._digest.hexdigest()

    def _open_temporary(self) -> bool:
        """Make and lock it; False: another writer took it for a leftover before it was locked."""
        self._temporary = _other_name(self._target)
        _begun[self._temporary] = os.getpid()
        self._fd = os.open(self._temporary, _NEW, 0o666)  # the rights of any new file
        if fcntl:
            fcntl.flock(self._fd, fcntl.LOCK_EX)  # who looks whether it is one holds it briefly
            if not os.fstat(self._fd).st_nlink:
                self._close()
                return False
        return True

    def write(self, data: Bytes) -> None:
        """Append."""
        view = byte_view(data)
        self._digest.update(view)
        self.num_bytes += len(view)
        try:
            while len(view):
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise self._failed(error) from None

    def finish(self) -> None:
        """See that all is on the disk; nothing can be written after it."""
        if self._fd < 0:
            return
        try:
            os.ftruncate(self._fd, self.num_bytes)
            os.fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from None

    def publish(self) -> None:
        """Give the file its name, after `finish`."""
        self.finish()
        if not fcntl:  # Windows renames no file that is open; elsewhere the lock is held until then
            self._close()
        try:
            if self.overwrite:
                os.replace(self._temporary, self._target)
            else:
                _link_new(self._temporary, self._target)
        except OSError as error:
            raise self._failed(error) from None
        self._published = True
        _begun.pop(self._temporary, None)
        self._close()
        with contextlib.suppress(OSError):  # some file systems have no such thing
            folder = os.open(self._target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def set_aside(self) -> tuple[Path, Path] | None:
        """Rename the file that will be replaced, ahead of `publish`: (its name, the other one).

        None: there is none. The other name is a temporary file's: unless the file gets its own
        back, the next writer removes it.
        """
        if not os.path.lexists(self._target):
            return None
        waits = _other_name(self._target)
        try:
            os.rename(self._target, waits)
        except OSError as error:
            raise self._failed(error) from None
        return self._target, waits

    def withdraw(self) -> None:
        """Take away the file that `publish` has put there."""
        if self._published:
            with contextlib.suppress(OSError):
                self._target.unlink()

    def discard(self) -> None:
        """Forget what was written; no effect once it is published."""
        if not fcntl:
            self._close()
        if not self._published:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            _begun.pop(self._temporary, None)
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _reserve(self, num_bytes: int) -> None:
        """A disk that is full is found out now and not after an hour's work."""
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, 0, num_bytes)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise

    def _failed(self, error: OSError) -> OutputError:
        if isinstance(error, FileExistsError):
            return taken(self.path)
        return OutputError(f"{self.path}: can't be written: {error.strerror or error}")


def byte_view(data: Bytes) -> memoryview:
    """The bytes of data, an array's in its order (a copy only where it has gaps)."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B") if len(data) else memoryview(b"")


def taken(path: Path) -> OutputError:
    """The error for a name that is in use."""
    return OutputError(f"{path}: exists already; name another file, or replace it with --force")


def _other_name(path: Path) -> Path:
    return path.with_name(f".{_stem(path)}.{secrets.token_hex(6)}.tmp")


def _check_name(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise OutputError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}; make it first")
    if os.path.lexists(path) and not overwrite:
        raise taken(path)
    if path.exists() and not path.is_file():
        raise OutputError(f"{path}: is not an ordinary file; name another")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: can't be written: no right to write in {path.parent}")


def _check_room(path: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if num_bytes > free:
        raise OutputError(
            f"{path}: needs {num_bytes:,} bytes, {free:,} are free in {path.parent}; "
            "make room or name a file on another disk"
        )


def _stem(path: Path) -> str:
    """As much of a file's name as leaves room for what makes it a temporary one's."""
    name = path.name
    while len(os.fsencode(name)) > _MAX_STEM:
        name = name[:-1]
    return name


def _link_new(temporary: Path, path: Path) -> None:
    """Rename, but never over a file that has come into being in the meantime."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError from None
        os.rename(temporary, path)
        return
    temporary.unlink()


def _remove_leftovers(path: Path) -> None:
    """Temporary files of this name whose writers are gone."""
    if not fcntl:
        return
    for name in path.parent.glob(f".{glob.escape(_stem(path))}.*.tmp"):
        with contextlib.suppress(OSError):  # another user's, or somebody is writing it
            fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                name.unlink()
            finally:
                os.close(fd)
