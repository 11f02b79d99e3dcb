"""The hidden states that a step left on a GPU, token by token, after the output norm."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..hidden import HiddenStates

if TYPE_CHECKING:
    from .device import Device


class DeviceHiddenStates(HiddenStates):
    """HiddenStates of rows on a device; `**norm` as there."""

    def __init__(self, device: "Device", rows: int, dim: int, **norm: Any) -> None:
        super().__init__(rows=rows, in_lanes=0, num_lanes=1, dim=dim, **norm)
        self._device = device

    def read(self, slots: Sequence[int], *, lanes: bool) -> NDArray[np.float32]:
        """Float32 (slots, dim): the normed states of these rows, which follow each other."""
        dim, count = self._dim, len(slots)
        if not count:
            return np.empty((0, dim), np.float32)
        first, last = min(slots), max(slots)
        size = (last - first + 1) * dim * 4
        raw = self._device.read(self._rows + first * dim * 4, size).view(np.float32)
        x = raw.reshape(-1, dim)[np.asarray(slots) - first]
        if self._norm is None:
            return x.copy()
        return self._normed(x.astype(np.float64), self._norm).astype(np.float32)
