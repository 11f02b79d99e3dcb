"""Files of importance matrices: GGUF, and the binary form from before (.dat), read and written.

GGUF: general.type "imatrix", imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size, and of each
weight the float32 tensors NAME.in_sum2 [columns, parts], NAME.counts [1, parts] and, in newer
files, NAME.in_sum. The older form, little-endian: int32 number of entries; of each: int32 length
and bytes of the name, int32 chunks, int32 number of values, the float32 values (mean squares times
chunks); then int32 chunks in all, int32 length and bytes of the text's name, which may be missing.

Every count is compared with the bytes present before anything is made for it.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError, ModelNotFoundError
from .gguf import GGUFFile, TensorInfo
from .importance import Sums
from .tensor_reader import TensorReader

_SQUARES, _VALUES, _COUNTS = ".in_sum2", ".in_sum", ".counts"
_INT = struct.Struct("<i")
_MOST_TOKENS = float(1 << 40)  # sums of many files stay below 2^63


def read(path: Path) -> dict[str, Any]:
    """The fields of an Importance; its errors."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            data = b"" if magic == b"GGUF" else magic + file.read()
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise InvalidModelFileError(f"{path}: can't be read: {error.strerror}") from None
    found = _read_gguf(path) if magic == b"GGUF" else _Reader(path, data).read()
    return {**found, "path": path}


def _read_gguf(path: Path) -> dict[str, Any]:
    with GGUFFile.open(path) as gguf, TensorReader(gguf) as reader:
        metadata = gguf.metadata
        names = [n.removesuffix(_SQUARES) for n in gguf.tensors if n.endswith(_SQUARES)]
        if not names:
            kind = str(metadata.get("general.type", "model"))[:40]
            raise InvalidModelFileError(
                f"{path}: holds no importance matrix (general.type is {kind!r}); make one with "
                "`llamba imatrix MODEL TEXT`"
            )
        numbers = {}
        for key in ("chunk_count", "chunk_size"):
            value = metadata.get(f"imatrix.{key}")
            if type(value) is not int or not 0 <= value < 1 << 32:
                raise InvalidModelFileError(
                    f"{path}: imatrix.{key} is {value!r}, must be a number; make it again"
                )
            numbers[key] = value
        texts = metadata.get("imatrix.datasets", [])
        datasets = texts if isinstance(texts, list) else []
        return {
            "entries": {name: _entry(path, gguf, reader, name) for name in sorted(names)},
            "datasets": tuple(
                t if isinstance(t, str) else t.decode(errors="replace") for t in datasets
            ),
            **numbers,
        }


def _entry(path: Path, gguf: GGUFFile, reader: TensorReader, name: str) -> Sums:
    squares = _floats(path, reader, gguf.tensors[name + _SQUARES])
    if (info := gguf.tensors.get(name + _COUNTS)) is None:
        raise InvalidModelFileError(f"{path}: {name} has sums and no counts; make it again")
    exact = _floats(path, reader, info)
    if not exact.size or squares.size % exact.size:
        raise InvalidModelFileError(
            f"{path}: {name} has {squares.size} sums and {exact.size} counts; make it again"
        )
    if not ((exact >= 0) & (exact < _MOST_TOKENS)).all():  # False for NaN as well
        raise InvalidModelFileError(f"{path}: a count of {name} is not a number of tokens")
    counts = np.rint(exact).astype(np.int64)
    values = None
    if (info := gguf.tensors.get(name + _VALUES)) is not None:
        values = _floats(path, reader, info)
        if values.size != squares.size:
            raise InvalidModelFileError(
                f"{path}: {name} has {squares.size} sums of squares and {values.size} of values"
            )
        if not np.isfinite(values).all():
            raise InvalidModelFileError(f"{path}: a sum of {name} is not finite; make it again")
        values = values.reshape(counts.size, -1)
    return Sums(_checked(path, name, squares).reshape(counts.size, -1), counts, values)


def _floats(path: Path, reader: TensorReader, info: TensorInfo) -> NDArray[np.float32]:
    """A float32 tensor's values, in a row."""
    if info.type_name != "F32":
        raise InvalidModelFileError(f"{path}: {info.name} is {info.type_name}, must be F32")
    return reader.read(info, 0, info.num_bytes).view("<f4").astype(np.float32)


def _checked(path: Path, name: str, squares: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sums, none of which is negative, infinite or NaN, or InvalidModelFileError."""
    wrong = ~(np.isfinite(squares) & (squares >= 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise InvalidModelFileError(
            f"{path}: sum {at} of {name} is {squares[at]}, which no sum of squares is; "
            "make the importance matrix again"
        )
    return squares


class _Reader:
    """Reads the older form from its bytes."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data, self._at = path, data, 0

    def read(self) -> dict[str, Any]:
        """The fields of an Importance."""
        # An entry has at least a byte of name and a value: 17 bytes.
        number = self._int("entries", each=17)
        entries: dict[str, Sums] = {}
        for _ in range(number):
            name = self._text(self._int("bytes of a name"))
            chunks = self._int(f"chunks of {name}", least=0, each=0)
            size = self._int(f"values of {name}", each=4)
            raw = self._data[self._at : self._at + 4 * size]
            self._at += 4 * size
            if name in entries:
                raise InvalidModelFileError(f"{self._path}: {name} is there twice")
            squares = np.frombuffer(raw, "<f4").astype(np.float32)
            squares = _checked(self._path, name, squares).reshape(1, -1)
            entries[name] = Sums(squares, np.array([chunks], np.int64))
        return {"entries": entries, "chunked": True, **self._trailer()}

    def _trailer(self) -> dict[str, Any]:
        """Chunks in all and the text's name, as far as they are there."""
        if len(self._data) - self._at < 4:
            return {}
        found: dict[str, Any] = {"chunk_count": max(0, _INT.unpack_from(self._data, self._at)[0])}
        self._at += 4
        if len(self._data) - self._at > 4:
            found["datasets"] = (self._text(self._int("bytes of the text's name")),)
        return found

    def _int(self, what: str, *, least: int = 1, each: int = 1) -> int:
        """The next number: of things of so many bytes (0: none) that must all be there."""
        if len(self._data) - self._at < 4:
            raise self._error(f"it ends before the number of {what}")
        value = _INT.unpack_from(self._data, self._at)[0]
        self._at += 4
        left = len(self._data) - self._at
        if value < least or value * each > left:
            raise self._error(f"{value} {what}, with {left} bytes left")
        return value

    def _text(self, size: int) -> str:
        raw = self._data[self._at : self._at + size]
        self._at += size
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._error(f"the name {raw[:20]!r} is not UTF-8") from None

    def _error(self, what: str) -> InvalidModelFileError:
        return InvalidModelFileError(
            f"{self._path}: neither GGUF nor a whole importance matrix of the older form: {what}"
        )
