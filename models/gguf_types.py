"""GGUF's vocabulary: tensor formats and block sizes, metadata value types, tensors, metadata."""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .gguf_strings import as_bytes, as_texts


class TensorType(NamedTuple):
    """A tensor format of ggml: `num_bytes` bytes hold a block of `block_len` elements."""

    name: str
    block_len: int
    num_bytes: int


# All of ggml's ids. 4, 5, 31-33 and 36-38 were formats once and are gone from ggml.
TENSOR_TYPES: dict[int, TensorType] = {
    type_id: TensorType(name, block_len, num_bytes)
    for type_id, name, block_len, num_bytes in [
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40),
        (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (24, "I8", 1, 1), (25, "I16", 1, 2),
        (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8), (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18), (42, "Q2_0", 64, 18),
    ]
}  # fmt: skip

# The metadata's value types; 8 is a string, 9 an array.
NUMBERS = {
    0: np.dtype("u1"), 1: np.dtype("i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"),
    4: np.dtype("<u4"), 5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("?"),
    10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8"),
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True, eq=False)
class TensorInfo:
    """One tensor: `shape` in numpy order (rows, columns), `data` its bytes as they lie there."""

    name: str
    type_id: int
    shape: tuple[int, ...]
    num_bytes: int
    data: NDArray[np.uint8] = field(repr=False)  # (num_bytes,) uint8, read-only view of the map

    @property
    def type_name(self) -> str:
        """ggml's name of the format, for display."""
        return TENSOR_TYPES[self.type_id].name


U64 = struct.Struct("<Q").unpack_from


class Span(NamedTuple):
    """A string or array, checked and left in the file: `num_items` items in start..end."""

    kind: int
    num_items: int
    start: int
    end: int
    is_array: bool


class Metadata(Mapping[str, Any]):
    """The keys of a file; strings and arrays are decoded each time they are asked for."""

    def __init__(self, buffer: mmap.mmap, values: dict[str, Any]) -> None:
        self._buffer = buffer
        self.values_by_key = values

    def __getitem__(self, key: str) -> Any:
        value = self.values_by_key[key]
        if not isinstance(value, Span):
            return value
        if value.kind != STRING:
            raw = self._buffer[value.start : value.end]
            return np.frombuffer(raw, NUMBERS[value.kind]).copy()
        if not value.is_array:
            # A stray Latin-1 byte in a description is no reason to refuse a model.
            return self._buffer[value.start : value.end].decode("utf-8", "replace")
        at = value.start, value.end, value.num_items
        if (texts := as_texts(self._buffer, *at)) is not None:
            return texts
        strings = self.strings_bytes(key)
        try:
            return [s.decode() for s in strings]
        except UnicodeDecodeError:
            return strings

    def strings_bytes(self, key: str) -> list[bytes]:
        span = self.values_by_key[key]
        if not (isinstance(span, Span) and span.is_array and span.kind == STRING):
            raise TypeError(f"{key} is not an array of strings")
        return as_bytes(self._buffer, span.start, span.num_items)

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)

    def __contains__(self, key: object) -> bool:  # Mapping's own would decode the value
        return key in self.values_by_key
