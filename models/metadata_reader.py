"""Typed access to an architecture's metadata keys; every error names the file, key and value."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidModelFileError, UnsupportedModelError

MAX_COUNT = 1 << 24  # far above every real dimension; keeps products far below 2^63

LEAST, MOST = 1e-30, 1e30


class MetadataReader:
    """Reads keys of one architecture (`prefix`), each checked for its type and range."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], prefix: str) -> None:
        self.path, self.metadata, self.prefix = path, metadata, prefix

    def value(self, name: str) -> Any:
        """What the file says, None when it says nothing."""
        return self.metadata.get(f"{self.prefix}.{name}")

    def missing(self, name: str) -> InvalidModelFileError:
        """The error for a key that must be there."""
        return InvalidModelFileError(f"{self.path}: {self.prefix}.{name} is missing")

    def invalid(self, name: str, value: object, expected: str) -> InvalidModelFileError:
        """The error for a value that can't be right."""
        return InvalidModelFileError(
            f"{self.path}: {self.prefix}.{name} is {value!r}, expected {expected}"
        )

    def unsupported(self, name: str, value: object, run: str) -> UnsupportedModelError:
        """The error for a sound value that is not run."""
        return UnsupportedModelError(
            f"{self.path}: {self.prefix}.{name} is {value!r}, which is not run (only {run})"
        )

    def count(
        self, name: str, default: int | None = None, *, zero: bool = False, most: int = MAX_COUNT
    ) -> int:
        """A positive number (or 0 with `zero`); an array is taken when all its elements agree."""
        value = self.value(name)
        if isinstance(value, np.ndarray) and value.size:
            if not (value == value.flat[0]).all():
                raise self.unsupported(name, value[:8].tolist(), "one value for all layers")
            value = value.flat[0].item()
        return self._checked_count(name, default if value is None else value, zero=zero, most=most)

    def counts(self, name: str, length: int, default: int | None = None) -> list[int]:
        """A positive number for each of `length` layers: the file has one, or an array."""
        value = self.value(name)
        if not isinstance(value, np.ndarray):
            return [self.count(name, default)] * length
        if value.ndim != 1 or len(value) < length:
            raise self.invalid(name, f"{value.size} numbers", f"one for each of {length} layers")
        return [self._checked_count(name, item) for item in value[:length].tolist()]

    def number(self, name: str, default: float | None = None, *, zero: bool = False) -> float:
        """A finite positive number (or 0 with `zero`)."""
        value = self.value(name)
        if value is None:
            value = default
        if value is None:
            raise self.missing(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(name, value, "a number")
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise self.invalid(name, value, "a finite positive number")
        if value and not LEAST <= value <= MOST:  # computed with as float32
            raise self.invalid(name, value, f"a number from {LEAST:g} to {MOST:g}")
        return float(value)

    def word(self, name: str, known: Collection[str], run: str) -> str | None:
        """One of the known words, None when the file says nothing."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.invalid(name, value, "a word")
        if value not in known:
            raise self.unsupported(name, value, run)
        return value

    def flags(self, name: str, length: int) -> list[bool] | None:
        """Yes or no for each of `length` layers, None unless the file has an array."""
        value = self.value(name)
        if not isinstance(value, np.ndarray | list):
            return None
        items = np.asarray(value)
        if items.ndim != 1 or len(items) < length or items.dtype.kind not in "biu":
            raise self.invalid(name, f"{items.size} values", f"a flag for each of {length} layers")
        return [bool(item) for item in items[:length].tolist()]

    def flag(self, name: str, default: bool) -> bool:
        """Yes or no."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.invalid(name, value, "true or false")
        return value

    def _checked_count(
        self, name: str, value: object, *, zero: bool = False, most: int = MAX_COUNT
    ) -> int:
        lowest = 0 if zero else 1
        if value is None:
            raise self.missing(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, value, "a whole number")
        if not lowest <= value <= most:
            raise self.invalid(name, value, f"a number from {lowest} to {most}")
        return value
