"""Metadata as GGUF writes it: a key, its type and its value, from Python values or as they lay."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .gguf_types import ARRAY, NUMBERS, STRING

# The types' names as in GGUF's specification, and their numbers.
KINDS = {
    "u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8,
    "u64": 10, "i64": 11, "f64": 12,
}  # fmt: skip


class Pair(NamedTuple):
    """One key; `raw` is key, type and value as they are written."""

    key: str
    raw: bytes


def text(value: str | bytes) -> bytes:
    """A string as GGUF has it: its length as a u64, its UTF-8 bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: str, value: Any) -> Pair:
    """A key with one value of a type of KINDS. ValueError: the value is not in the type's range."""
    return Pair(key, text(key) + struct.pack("<I", KINDS[kind]) + _items(key, kind, [value]))


def array_pair(key: str, kind: str, values: Sequence[Any] | np.ndarray) -> Pair:
    """A key with an array of items of one type. ValueError: one is not in the type's range."""
    head = text(key) + struct.pack("<IIQ", ARRAY, KINDS[kind], len(values))
    return Pair(key, head + _items(key, kind, values))


def pairs_of(raw: Mapping[str, bytes]) -> list[Pair]:
    """Pairs of another file (`GGUFFile.raw_pairs`), to be written as they lay there."""
    return [Pair(key, value) for key, value in raw.items()]


def replaced(pairs: Sequence[Pair], new: Sequence[Pair]) -> list[Pair]:
    """Pairs with those of `new` in the place of their namesakes, the others of `new` at the end."""
    by_key = {p.key: p for p in new}
    kept = [by_key.pop(p.key, p) for p in pairs]
    return [*kept, *by_key.values()]


def _items(key: str, kind: str, values: Sequence[Any] | np.ndarray) -> bytes:
    if KINDS[kind] == STRING:
        return b"".join(map(text, values))
    dtype = NUMBERS[KINDS[kind]]
    exact = np.asarray(values)
    if dtype.kind in "iu" and exact.size:
        info = np.iinfo(dtype)
        for worst in (exact.min(), exact.max()):
            if exact.dtype.kind not in "iub" or not info.min <= int(worst) <= info.max:
                raise ValueError(f"{key}: {worst} is not a {kind}")
    with np.errstate(over="ignore"):
        found = exact.astype(dtype)
    if dtype.kind == "f" and (wrong := np.isinf(found) & ~np.isinf(exact.astype(float))).any():
        raise ValueError(f"{key}: {exact[wrong][0]} is not a {kind}")
    return found.tobytes()
