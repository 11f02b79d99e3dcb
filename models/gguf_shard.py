"""One GGUF file, mapped and checked from the first byte to the last tensor.

Layout (v2, v3): magic, version, tensor count, key count; the keys with their values; the tensor
descriptions; padding to `general.alignment`; the tensors' bytes. Every count, length and offset is
hostile until it has been compared with the size of the file: a check comes before the allocation.
"""

import contextlib
import mmap
import os
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidModelFileError, ModelNotFoundError, UnsupportedModelError
from .gguf_sniff import what_it_is
from .gguf_strings import end_of_strings
from .gguf_types import (
    ARRAY,
    BOOL,
    NUMBERS,
    STRING,
    TENSOR_TYPES,
    U64,
    Metadata,
    Span,
    TensorInfo,
)
from .unconverted import how_to_convert

# Far above any model (gemma: 0.8 million strings), so low that a hostile file is refused at once.
_MAX_KEYS, _MAX_TENSORS, _MAX_STRINGS, _MAX_NAME_LEN = 1 << 16, 1 << 17, 1 << 21, 1 << 16
_MAX_ALIGNMENT = 1 << 20
_DEFAULT_ALIGNMENT = 32

_AGAIN = "the download is incomplete or damaged: get the file again"


class Shard:
    """One file, mapped and checked: `metadata`, `tensors`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = map_file(path)
        self.size = len(self.buffer)
        self.pos = 0
        self.num_strings = 0
        self.pair_spans: dict[str, tuple[int, int]] = {}  # where a key and its value lie
        try:
            num_tensors, num_keys = self._counts()
            self.metadata = Metadata(self.buffer, self._values(num_keys))
            self.tensors = self._tensors(num_tensors)
            self._check_unchanged()
        except BaseException:
            unmap(self.buffer)
            raise

    def _fail(self, message: str) -> InvalidModelFileError:
        return InvalidModelFileError(f"{self.path}: {message}")

    def _take(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes`; where they start."""
        start = self.pos
        if num_bytes > self.size - start:
            raise self._fail(
                f"{what} needs {num_bytes:,} bytes at offset {start:,}, "
                f"{self.size - start:,} are present; {_AGAIN}"
            )
        self.pos = start + num_bytes
        return start

    def _u32(self, what: str) -> int:
        return struct.unpack_from("<I", self.buffer, self._take(4, what))[0]

    def _u64(self, what: str) -> int:
        return U64(self.buffer, self._take(8, what))[0]

    def _name(self, what: str) -> str:
        length = self._u64(f"the length of {what}")
        if not 0 < length < _MAX_NAME_LEN:
            raise self._fail(
                f"{what} is {length:,} bytes long, expected 1 to {_MAX_NAME_LEN - 1:,}"
            )
        start = self._take(length, what)
        raw = self.buffer[start : self.pos]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._fail(f"{what} is not UTF-8: {raw[:80]!r}") from None

    def _count(self, what: str, most: int, min_bytes: int) -> int:
        count = self._u64(f"the number of {what}")
        # 24: the header itself, since the second count follows the first.
        if count > most or count * min_bytes > self.size - 24:
            raise self._fail(
                f"{count:,} {what} declared, impossible in a file of {self.size:,} bytes "
                f"(at most {most:,}); {_AGAIN}"
            )
        return count

    def _counts(self) -> tuple[int, int]:
        if what := what_it_is(self.buffer[:4096]):
            raise self._fail(what)
        self._take(4, "the magic")
        version = self._u32("the version")
        if version == 1:
            raise UnsupportedModelError(
                f"{self.path}: GGUF version 1 is not supported, only 2 and 3; get a newer file"
            )
        if version and version & 0xFFFF == 0:  # the bytes of a small number, the other way round
            raise UnsupportedModelError(
                f"{self.path}: a big-endian GGUF file is not supported; get the little-endian one"
            )
        if version not in (2, 3):
            raise UnsupportedModelError(
                f"{self.path}: GGUF version {version} is not known, only 2 and 3; "
                "update llamba or get another file"
            )
        num_tensors = self._count("tensors", _MAX_TENSORS, 33)
        return num_tensors, self._count("metadata keys", _MAX_KEYS, 14)

    def _values(self, num_keys: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for i in range(num_keys):
            start = self.pos
            key = self._name(f"the name of metadata key {i}")
            if key in values:
                raise self._fail(f"metadata key {key!r} is there twice")
            values[key] = self._value(key, self._u32(f"the type of {key!r}"))
            self.pair_spans[key] = start, self.pos
        return values

    def _value(self, key: str, kind: int) -> Any:
        if kind == ARRAY:
            return self._array(key)
        if kind == STRING:
            length = self._u64(f"the length of {key!r}")
            start = self._take(length, f"the text of {key!r}")
            return Span(STRING, 1, start, self.pos, False)
        span = self._numbers(key, kind, 1)
        return np.frombuffer(self.buffer, NUMBERS[kind], 1, span.start)[0].item()

    def _array(self, key: str) -> Span:
        kind = self._u32(f"the item type of {key!r}")
        count = self._u64(f"the number of items of {key!r}")
        if kind == ARRAY:
            raise self._fail(
                f"metadata key {key!r} is an array of arrays, which GGUF files do not use"
            )
        if kind != STRING:
            return self._numbers(key, kind, count)
        self.num_strings += count
        if self.num_strings > _MAX_STRINGS or count * 8 > self.size - self.pos:
            raise self._fail(
                f"metadata key {key!r} declares {count:,} strings, {self.size - self.pos:,} bytes "
                f"are left (and at most {_MAX_STRINGS:,} strings are read); {_AGAIN}"
            )
        start = self.pos
        end = end_of_strings(self.buffer, start, count)
        if end is None:
            raise self._fail(
                f"the strings of {key!r} end after the file's {self.size:,} bytes; {_AGAIN}"
            )
        self.pos = end
        return Span(STRING, count, start, end, True)

    def _numbers(self, key: str, kind: int, count: int) -> Span:
        if kind not in NUMBERS:
            raise self._fail(
                f"metadata key {key!r} has the unknown value type {kind}, expected 0 to 12"
            )
        start = self._take(count * NUMBERS[kind].itemsize, f"the value of {key!r}")
        if kind == BOOL and count:
            worst = int(np.frombuffer(self.buffer, np.uint8, count, start).max())
            if worst > 1:
                raise self._fail(f"metadata key {key!r} is {worst}, but a bool is 0 or 1")
        return Span(kind, count, start, self.pos, True)

    def _tensors(self, num_tensors: int) -> dict[str, TensorInfo]:
        found: dict[str, tuple[int, tuple[int, ...], int, int]] = {}
        for i in range(num_tensors):
            name = self._name(f"the name of tensor {i}")
            if name in found:
                raise self._fail(f"tensor {name!r} is there twice")
            found[name] = self._tensor(name)
        alignment = self._alignment()
        data_start = -(-self.pos // alignment) * alignment
        whole = np.frombuffer(self.buffer, np.uint8)
        tensors: dict[str, TensorInfo] = {}
        for name, (type_id, shape, offset, num_bytes) in found.items():
            start = data_start + offset
            if offset % alignment:
                raise self._fail(
                    f"tensor {name!r}: offset {offset:,} is not a multiple of {alignment}"
                )
            if start + num_bytes > self.size:
                raise self._fail(
                    f"tensor {name!r} needs {num_bytes:,} bytes at offset {start:,}, "
                    f"{max(0, self.size - start):,} are present; {_AGAIN}"
                )
            data = whole[start : start + num_bytes]
            tensors[name] = TensorInfo(name, type_id, shape, num_bytes, data)
        return tensors

    def _tensor(self, name: str) -> tuple[int, tuple[int, ...], int, int]:
        num_dims = self._u32(f"the number of dimensions of tensor {name!r}")
        if not 1 <= num_dims <= 4:
            raise self._fail(f"tensor {name!r} has {num_dims:,} dimensions, expected 1 to 4")
        at = self._take(8 * num_dims + 12, f"the description of tensor {name!r}")
        *dims, type_id, offset = struct.unpack_from(f"<{num_dims}QIQ", self.buffer, at)
        if type_id not in TENSOR_TYPES:
            raise self._fail(f"tensor {name!r} has the unknown type id {type_id}, expected 0 to 42")
        kind = TENSOR_TYPES[type_id]
        if 0 in dims:
            raise self._fail(f"tensor {name!r} has a dimension of 0: {dims}")
        if dims[0] % kind.block_len:
            raise self._fail(
                f"tensor {name!r} has rows of {dims[0]:,} elements, "
                f"but {kind.name} comes in blocks of {kind.block_len}"
            )
        num_elements = 1  # Python's integers do not wrap, whatever the file says
        for dim in dims:
            num_elements *= dim
        num_bytes = num_elements // kind.block_len * kind.num_bytes
        return type_id, tuple(reversed(dims)), offset, num_bytes

    def _alignment(self) -> int:
        alignment = self.metadata.values_by_key.get("general.alignment", _DEFAULT_ALIGNMENT)
        if (
            type(alignment) is not int
            or not 1 <= alignment <= _MAX_ALIGNMENT
            or (alignment & (alignment - 1))
        ):
            shown = "not a number" if isinstance(alignment, Span) else alignment
            raise self._fail(
                f"general.alignment is {shown}, expected a power of two up to {_MAX_ALIGNMENT:,}"
            )
        return alignment

    def _check_unchanged(self) -> None:
        size = os.stat(self.path).st_size
        if size != self.size:
            raise self._fail(
                f"the file changed while it was read: it had {self.size:,} bytes, now {size:,}"
            )


def map_file(path: Path) -> mmap.mmap:
    """The whole file as a read-only map. Pages are read when they are touched, not now."""
    try:
        # Without the look at the kind, opening a pipe would wait for its writer for ever.
        if not stat.S_ISREG(mode := os.stat(path).st_mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not an ordinary file"
            raise InvalidModelFileError(
                f"{path}: this is {kind}, expected a GGUF file{how_to_convert(path)}"
            )
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise InvalidModelFileError(f"{path}: {what_it_is(b'')}")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        if os.path.islink(path):
            raise ModelNotFoundError(
                f"{path}: a link to {os.readlink(path)}, which is gone; pull the model again"
            ) from None
        raise ModelNotFoundError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidModelFileError(f"{path}: the file can't be read: {why}") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Where the file system can, the file comes into the page cache in 2 MB pieces: decoding,
        # which streams the weights, was 10 % faster. Elsewhere this is refused, which is as well.
        with contextlib.suppress(OSError):
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def unmap(buffer: mmap.mmap) -> None:
    """Give the map back now, or, while views of it live, with the last of them."""
    with contextlib.suppress(BufferError):
        buffer.close()
