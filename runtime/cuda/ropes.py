"""Tables by position on a GPU: all positions at once, where kernels' fields name them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..rope_table import RopeTables
from .arena import DeviceArena


class DeviceRopes(RopeTables):
    """Like RopeTables, but a cell's address is the table's own.

    Args:
        length: positions of the longest sequence.
    """

    def __init__(self, arena: DeviceArena, length: int) -> None:
        super().__init__()
        self._arena, self._length = arena, length
        self._addresses: dict[object, int] = {}

    def _cell(self, key: object, make: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> int:
        if key not in self._addresses:
            table = make(np.arange(self._length, dtype=np.float64))
            self._addresses[key] = self._arena.keep(np.ascontiguousarray(table, np.float32))
        return self._addresses[key]
