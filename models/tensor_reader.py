"""Reads the bytes of tensors from their files a piece at a time, for what streams a whole model.

Not through the memory map: a file that shrinks meanwhile would end the process with a bus error,
and the pages of a large one would count as the process's own memory.
"""

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError

if TYPE_CHECKING:
    from .gguf import GGUFFile, TensorInfo


class TensorReader:
    """The files of a model, open for reading; a context manager. Threads may read side by side."""

    def __init__(self, gguf: "GGUFFile") -> None:
        self._gguf = gguf
        self._fds: list[int] = []
        self._seeking = threading.Lock()
        for path in gguf.paths:
            try:
                self._fds.append(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)))
            except OSError as error:
                self.close()
                raise InvalidModelFileError(
                    f"{path}: the file can't be read: {error.strerror}"
                ) from None

    def read(self, tensor: "TensorInfo", start: int, num_bytes: int) -> NDArray[np.uint8]:
        """`num_bytes` bytes of a tensor from byte `start` on, in a fresh array.

        InvalidModelFileError: the file can't be read, or has become shorter.
        """
        out = np.empty(num_bytes, np.uint8)
        shard, offset = self._gguf.place_of(tensor)
        path = self._gguf.paths[shard]
        done = 0
        while done < num_bytes:
            try:
                count = self._read_into(shard, out[done:].data, offset + start + done)
            except OSError as error:
                raise InvalidModelFileError(
                    f"{path}: the file can't be read: {error.strerror}"
                ) from None
            if not count:
                raise InvalidModelFileError(
                    f"{path}: the file changed while it was read: it ends within tensor "
                    f"{tensor.name}"
                )
            done += count
        return out

    def _read_into(self, shard: int, out: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._fds[shard], [out], offset)
        with self._seeking:  # Windows
            os.lseek(self._fds[shard], offset, os.SEEK_SET)
            data = os.read(self._fds[shard], len(out))
        out[: len(data)] = data
        return len(data)

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
