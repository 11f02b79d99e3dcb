"""The angles of rotary positions (Su et al., 2021, arXiv 2104.09864), as tables by position."""

import numpy as np
from numpy.typing import NDArray

from ..models.architecture import Rotation

_FIRST = 512  # positions at first; doubled as needed


class RopeTables:
    """One table a rotation: float32 [position][cos, sin][its pairs].

    Kernels reach a table through a cell that holds its address, since it moves when it grows.
    """

    def __init__(self) -> None:
        self._rotations: dict[int, Rotation] = {}
        self._tables: dict[int, NDArray[np.float32]] = {}
        self._cells: dict[int, NDArray[np.int64]] = {}
        self._length = _FIRST

    def cell(self, rotation: Rotation) -> int:
        """Address of the cell that holds the address of a rotation's table."""
        key = id(rotation)
        if key not in self._cells:
            self._cells[key], self._rotations[key] = np.zeros(1, np.int64), rotation
            self._build(key)
        return self._cells[key].ctypes.data

    def _build(self, key: int) -> None:
        rotation = self._rotations[key]
        angles = np.arange(self._length, dtype=np.float64)[:, None] * rotation.frequencies
        table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * rotation.magnitude
        self._tables[key] = np.ascontiguousarray(table, np.float32)
        self._cells[key][0] = self._tables[key].ctypes.data

    def reach(self, length: int) -> None:
        """Make every table hold positions 0..length-1."""
        if length <= self._length:
            return
        while self._length < length:
            self._length *= 2
        for key in self._cells:
            self._build(key)
