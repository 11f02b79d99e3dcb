"""The angles of rotary positions (Su et al., 2021, arXiv 2104.09864), as tables by position."""

import numpy as np
from numpy.typing import NDArray

_FIRST = 512  # positions at first; doubled as needed


class RopeTables:
    """One table a (base, scale, with factors): float32 [position][cos, sin][rope_dim / 2].

    Kernels reach a table through a cell that holds its address, since it moves when it grows.
    """

    def __init__(self, rope_dim: int, factors: NDArray[np.float32] | None) -> None:
        self._dim, self._factors = rope_dim, factors
        self._tables: dict[tuple[float, float, bool], NDArray[np.float32]] = {}
        self._cells: dict[tuple[float, float, bool], NDArray[np.int64]] = {}
        self._length = _FIRST

    def cell(self, base: float, scale: float, factors: bool) -> int:
        """Address of the cell that holds the address of a table.

        `factors` says whether the model's frequency factors apply: sliding layers go without.
        """
        key = (base, scale, factors)
        if key not in self._cells:
            self._cells[key] = np.zeros(1, np.int64)
            self._build(key)
        return self._cells[key].ctypes.data

    def _build(self, key: tuple[float, float, bool]) -> None:
        base, scale, factors = key
        frequencies = base ** (-np.arange(0, self._dim, 2, dtype=np.float64) / self._dim)
        if factors and self._factors is not None:
            frequencies = frequencies / self._factors
        angles = np.arange(self._length, dtype=np.float64)[:, None] / scale * frequencies
        table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        self._tables[key] = np.ascontiguousarray(table)
        self._cells[key][0] = self._tables[key].ctypes.data

    def reach(self, length: int) -> None:
        """Make every table hold positions 0..length-1."""
        if length <= self._length:
            return
        while self._length < length:
            self._length *= 2
        for key in self._cells:
            self._build(key)
