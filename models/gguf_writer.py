"""Writes a GGUF file as a stream, and under its name only when all of it is on the disk.

with GGUFWriter(path, pairs, tensors) as writer:
    for data in ...:
        writer.write(data)         # the tensors' bytes in order, in any pieces
writer.sha256
"""

import struct
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from .gguf_pairs import Pair, pair, text
from .gguf_types import TENSOR_TYPES
from .output_file import Bytes, OutputFile, Publication, byte_view

_VERSION = 3
DEFAULT_ALIGNMENT = 32


class NewTensor(NamedTuple):
    """A tensor to be written: `shape` in numpy order (rows, columns)."""

    name: str
    type_id: int
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its data. ValueError: rows are not whole blocks of its type."""
        kind = TENSOR_TYPES[self.type_id]
        if self.shape[-1] % kind.block_len:
            raise ValueError(
                f"{self.name}: rows of {self.shape[-1]} elements are not whole blocks of "
                f"{kind.block_len}, which {kind.name} has"
            )
        return prod(self.shape) // kind.block_len * kind.num_bytes


def file_size(
    pairs: Sequence[Pair], tensors: Sequence[NewTensor], alignment: int = DEFAULT_ALIGNMENT
) -> int:
    """Bytes of the file that GGUFWriter makes of the same arguments."""
    parts = [len(header(pairs, tensors, alignment)), *(t.num_bytes for t in tensors)]
    return sum(-(-part // alignment) * alignment for part in parts)


class GGUFWriter(Publication):
    """A context manager: without an error the file is published at its end, else it is discarded.

    sha256, num_bytes: of the whole file, when all is written.

    Args:
        path: the file's name, whose folder must exist.
        pairs: the metadata in the order of the file.
        tensors: all of them in the order in which their bytes will come.
        overwrite: whether a file of this name may be replaced.
        alignment: of each tensor's data, a power of two; `pairs` must say it where it isn't 32.

    Raises:
        OutputError: here and when writing: the name is taken, no right to write, no room.
        ValueError: a tensor that can't be, or two of one name.
    """

    def __init__(
        self,
        path: str | Path,
        pairs: Sequence[Pair],
        tensors: Sequence[NewTensor],
        *,
        overwrite: bool = False,
        alignment: int = DEFAULT_ALIGNMENT,
    ) -> None:
        head = header(pairs, tensors, alignment)
        self.tensors, self._alignment = list(tensors), alignment
        self._next = 0  # the tensor that is written
        self._left = 0  # bytes of it that are missing
        sizes = sum(-(-t.num_bytes // alignment) * alignment for t in tensors)
        self._file = OutputFile(path, num_bytes=len(head) + sizes, overwrite=overwrite)
        try:
            self._file.write(head)
        except BaseException:
            self._file.discard()
            raise
        self._start_tensor()

    @property
    def path(self) -> Path:
        """Where the file will be."""
        return self._file.path

    @property
    def sha256(self) -> str:
        """Of the bytes written so far; of the file when all are."""
        return self._file.sha256

    @property
    def num_bytes(self) -> int:
        """Written so far."""
        return self._file.num_bytes

    def write(self, data: Bytes) -> None:
        """Append bytes to the tensor whose turn it is. ValueError: more than it has."""
        data = byte_view(data)
        size = len(data)
        if size > self._left:
            name = self.tensors[self._next].name if self._next < len(self.tensors) else "the last"
            raise ValueError(f"{name}: {size - self._left} bytes too many")
        self._file.write(data)
        self._left -= size
        if self._left == 0 and size:
            self._next += 1
            self._start_tensor()

    def finish(self) -> None:
        """See that all is on the disk, without giving the file its name.

        RuntimeError: tensors are missing.
        """
        if self._next < len(self.tensors):
            raise RuntimeError(
                f"{self.tensors[self._next].name}: {self._left} bytes were not written"
            )
        self._file.finish()

    def publish(self) -> None:
        """`finish`, and give the file its name."""
        self.finish()
        self._file.publish()

    def set_aside(self) -> tuple[Path, Path] | None:
        """As OutputFile.set_aside."""
        return self._file.set_aside()

    def withdraw(self) -> None:
        """Take away the file that `publish` has put there."""
        self._file.withdraw()

    def discard(self) -> None:
        """Forget the file; no effect once it is published."""
        self._file.discard()

    def _start_tensor(self) -> None:
        """Pad to the alignment, after the last tensor too, as ggml's writer does."""
        if padding := -self._file.num_bytes % self._alignment:
            self._file.write(bytes(padding))
        if self._next < len(self.tensors):
            self._left = self.tensors[self._next].num_bytes


def header(pairs: Sequence[Pair], tensors: Sequence[NewTensor], alignment: int) -> bytes:
    """All that stands before the tensors' data, but for the padding.

    ValueError: two tensors or keys of one name, or a tensor of rows that aren't whole blocks.
    """
    for names in ([p.key for p in pairs], [t.name for t in tensors]):
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{twice} is there twice")
    parts = [b"GGUF", struct.pack("<IQQ", _VERSION, len(tensors), len(pairs))]
    parts += [p.raw for p in pairs]
    offset = 0
    for tensor in tensors:
        dims = tuple(reversed(tensor.shape))
        parts += [
            text(tensor.name),
            struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.type_id, offset),
        ]
        offset += -(-tensor.num_bytes // alignment) * alignment
    return b"".join(parts)


def alignment_pair(alignment: int) -> Pair:
    """The key for an alignment that isn't 32."""
    return pair("general.alignment", "u32", alignment)
