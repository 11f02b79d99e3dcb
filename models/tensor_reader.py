"""Reads the bytes of tensors from their files a piece at a time, for what streams a whole model.

Not through the memory map: a file that shrinks meanwhile would end the process with a bus error,
and the pages of a large one would count as the process's own memory.
"""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError

if TYPE_CHECKING:
    from .gguf import GGUFFile, TensorInfo


_MOST_BYTES = 1 << 26  # of one read: some systems refuse more than 2 GB
_SEEKING = threading.Lock()  # on Windows, which can't read from an offset


def open_source(path: Path) -> int:
    """A descriptor for `read_into`. InvalidModelFileError: the file can't be opened."""
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise _unreadable(path, error) from None


def read_into(out: NDArray[np.uint8], fd: int, offset: int, path: Path, tensor: str) -> None:
    """Fill an array with the bytes from `offset` on. Threads may share a descriptor.

    path, tensor: for the message of InvalidModelFileError: the file can't be read, or has become
    shorter.
    """
    done = 0
    while done < len(out):
        try:
            count = _read_some(out[done : done + _MOST_BYTES].data, fd, offset + done)
        except OSError as error:
            raise _unreadable(path, error) from None
        if not count:
            raise InvalidModelFileError(
                f"{path}: the file changed while it was read: it ends within tensor {tensor}"
            )
        done += count


def _read_some(out: memoryview, fd: int, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [out], offset)
    with _SEEKING:
        os.lseek(fd, offset, os.SEEK_SET)
        data = os.read(fd, len(out))
    out[: len(data)] = data
    return len(data)


def _unreadable(path: Path, error: OSError) -> InvalidModelFileError:
    return InvalidModelFileError(f"{path}: the file can't be read: {error.strerror}")


class TensorReader:
    """The files of a model, open for reading; a context manager. Threads may read side by side."""

    def __init__(self, gguf: "GGUFFile") -> None:
        self._gguf = gguf
        self._fds: list[int] = []
        try:
            for path in gguf.paths:
                self._fds.append(open_source(path))
        except BaseException:
            self.close()
            raise

    def read(self, tensor: "TensorInfo", start: int, num_bytes: int) -> NDArray[np.uint8]:
        """`num_bytes` bytes of a tensor from byte `start` on, in a fresh array.

        InvalidModelFileError: the file can't be read, or has become shorter.
        """
        out = np.empty(num_bytes, np.uint8)
        shard, offset = self._gguf.place_of(tensor)
        path = self._gguf.paths[shard]
        read_into(out, self._fds[shard], offset + start, path, tensor.name)
        return out

    def close(self) -> None:
        """Close the files; may be repeated."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
