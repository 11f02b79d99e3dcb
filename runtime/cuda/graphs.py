"""Captured work by what it is for; what was not launched for the longest time goes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from ..kernels.cuda.launch import Work

if TYPE_CHECKING:
    from .device import Device, Graph


class Graphs:
    """Graphs of a device, which each take some of its memory.

    Args:
        most: how many are kept.
    """

    def __init__(self, device: "Device", most: int) -> None:
        self._device, self._most = device, most
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()

    def launch(self, key: Hashable, work: Callable[[], Sequence[Work]]) -> None:
        """Give a key's graph to the device; `work` is what is captured if it isn't there."""
        if (graph := self._graphs.get(key)) is None:
            graph = self._graphs[key] = self._device.capture(work())
            if len(self._graphs) > self._most:
                self._graphs.popitem(last=False)[1].close()
        self._graphs.move_to_end(key)
        graph.launch()

    def close(self) -> None:
        """Give all back."""
        while self._graphs:
            self._graphs.popitem()[1].close()
