"""The container of checkpoints: a JSON header of dtypes, shapes and offsets, then the numbers.

Read without the package `safetensors`, which can't give bfloat16 to NumPy. Nothing of a file is
trusted: every offset, shape and dtype is checked against its bytes before one is used.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidModelFileError, UnsupportedModelError
from ..tensor_reader import open_source, read_into

MAX_HEADER = 100_000_000  # bytes; the format's own limit

# How the elements of a dtype lie in memory; what NumPy has no type for is raw bits.
DTYPES = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"), "F8_E5M2": np.dtype("u1"), "F8_E8M0": np.dtype("u1"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor where it lies: `num_bytes` bytes from `start` of the file on."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    num_bytes: int

    def raw(self) -> NDArray[Any]:
        """All elements in the dtype of DTYPES, in memory.

        InvalidModelFileError: the file can't be read, or has become shorter; so in `rows`.
        """
        out = np.empty(self.shape, DTYPES[self.dtype])
        with self._opened() as fill:
            fill(out, 0)
        return out

    def rows(self, size: int) -> Iterator[NDArray[Any]]:
        """The elements in order, whole rows of about `size` elements at a time: (n, columns).

        A vector is one row, and so is a single number; nothing comes of an empty tensor.
        """
        if not self.num_bytes:
            return
        columns = self.shape[-1] if self.shape else 1
        step, count = max(1, size // columns), math.prod(self.shape) // columns
        with self._opened() as fill:
            for first in range(0, count, step):
                out = np.empty((min(step, count - first), columns), DTYPES[self.dtype])
                fill(out, first * columns * out.itemsize)
                yield out

    @contextmanager
    def _opened(self) -> Iterator[Callable[[NDArray[Any], int], None]]:
        """A call that fills an array from a byte of the tensor on."""
        fd = open_source(self.path)
        try:
            yield lambda out, at: read_into(
                out.reshape(-1).view(np.uint8), fd, self.start + at, self.path, self.name
            )
        finally:
            os.close(fd)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by their names, in the order of the header.

    InvalidModelFileError: the bytes are not a sound safetensors file. UnsupportedModelError: a
    dtype that is not known.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            raise _invalid(path, f"only {size} bytes: not a safetensors file")
        (length,) = struct.unpack("<Q", head)
        if length > min(MAX_HEADER, size - 8):
            said = " (a Git LFS pointer: fetch the file itself)" if head == b"version " else ""
            raise _invalid(
                path,
                f"the header would have {length} bytes, the file has {size}: "
                f"cut off, or not a safetensors file{said}",
            )
        raw = file.read(length)
    try:
        header = json.loads(raw, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"the header is not sound JSON ({error})") from None
    if not isinstance(header, dict):
        raise _invalid(path, "the header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry, 8 + length, size) for name, entry in header.items()}
    _check_layout(path, list(tensors.values()), 8 + length, size)
    return tensors


def _invalid(path: Path, what: str) -> InvalidModelFileError:
    return InvalidModelFileError(f"{path}: {what}")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tensor(path: Path, name: str, entry: Any, data: int, size: int) -> StoredTensor:
    """One entry of the header, checked; the numbers begin at `data`."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (
        isinstance(dtype, str)
        and isinstance(shape, list)
        and all(map(_whole, shape))
        and isinstance(offsets, list)
        and len(offsets) == 2
        and all(map(_whole, offsets))
    ):
        raise _invalid(
            path, f"tensor {name!r}: its entry in the header is not sound: {entry!r:.200}"
        )
    if dtype not in DTYPES:
        raise UnsupportedModelError(
            f"{path}: tensor {name!r} has dtype {dtype}, which is not read "
            f"(only {', '.join(DTYPES)})"
        )
    start, end = (data + at for at in offsets)
    expected = math.prod(shape) * DTYPES[dtype].itemsize  # whole numbers: exact, however large
    if end - start != expected:
        raise _invalid(
            path,
            f"tensor {name!r} has {end - start} bytes, its shape {tuple(shape)} in {dtype} "
            f"needs {expected}",
        )
    if end > size:
        raise _invalid(
            path, f"tensor {name!r} ends at byte {end}, the file at {size}: cut off? fetch it again"
        )
    return StoredTensor(name, dtype, tuple(shape), path, start, expected)


def _check_layout(path: Path, tensors: list[StoredTensor], data: int, size: int) -> None:
    """The tensors fill the file behind the header, without gaps, and share no bytes."""
    at, before = data, "the header"
    for tensor in sorted(tensors, key=lambda t: (t.start, t.num_bytes)):
        if tensor.start != at:
            relation = "overlaps" if tensor.start < at else "leaves a gap behind"
            raise _invalid(path, f"tensor {tensor.name!r} {relation} {before}")
        at, before = tensor.start + tensor.num_bytes, f"tensor {tensor.name!r}"
    if at != size:
        raise _invalid(path, f"{size - at} bytes behind {before} belong to no tensor")
