"""Tables by position: the angles of rotations (Su et al., 2021, arXiv 2104.09864), q's factors."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..models.architecture import Hyperparameters, Rotation

_FIRST = 512  # positions at first; doubled as needed


class RopeTables:
    """One table a rotation: float32 [position][cos, sin][its pairs].

    Kernels reach a table through a cell that holds its address, since it moves when it grows.
    """

    def __init__(self) -> None:
        self._makers: dict[object, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {}
        self._kept: list[object] = []  # whose ids are keys
        self._tables: dict[object, NDArray[np.float32]] = {}
        self._cells: dict[object, NDArray[np.int64]] = {}
        self._length = _FIRST

    def cell(self, rotation: Rotation) -> int:
        """Address of the cell that holds the address of a rotation's table."""

        def make(positions: NDArray[np.float64]) -> NDArray[np.float64]:
            angles = positions[:, None] * rotation.frequencies
            return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * rotation.magnitude

        self._kept.append(rotation)
        return self._cell(id(rotation), make)

    def temperature_cell(self, numbers: Hyperparameters) -> int:
        """The same of the table of the factors of q: float32 [position]."""
        return self._cell(
            (numbers.temperature, numbers.temperature_length),
            lambda p: 1 + numbers.temperature * np.log1p(p // numbers.temperature_length),
        )

    def _cell(self, key: object, make: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> int:
        if key not in self._cells:
            self._cells[key], self._makers[key] = np.zeros(1, np.int64), make
            self._build(key)
        return self._cells[key].ctypes.data

    def _build(self, key: object) -> None:
        table = self._makers[key](np.arange(self._length, dtype=np.float64))
        self._tables[key] = np.ascontiguousarray(table, np.float32)
        self._cells[key][0] = self._tables[key].ctypes.data

    def num_bytes(self, length: int) -> int:
        """What the tables take when they hold so many positions."""
        reached = self._length
        while reached < length:
            reached *= 2
        return sum(table.nbytes for table in self._tables.values()) // self._length * reached

    def reach(self, length: int) -> None:
        """Make every table hold positions 0..length-1."""
        if length <= self._length:
            return
        while self._length < length:
            self._length *= 2
        for key in self._cells:
            self._build(key)
