"""The KV cache on a GPU: page after page, all layers of a page together.

A page is then one piece of memory to copy. Of a layer, KV head after KV head: K [32][key_dim], V
[32][value_dim], as float16, float32 or bytes; heads are filled up to a multiple of 32 values. One
page more than the scheduler knows takes what tokens write that only fill up a step.
"""

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ...models.architecture import Hyperparameters
from ..cache import head_bytes, layer_page_bytes

if TYPE_CHECKING:
    from .arena import DeviceArena
    from .device import Device


class DeviceKVCache:
    """Zeroed memory for `num_pages` pages; `cache.KVCache` documents the methods."""

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        num_pages: int,
        cache_type: str,
        arena: "DeviceArena",
        device: "Device | None",
        layers: range | None = None,
    ) -> None:
        self.num_pages, self.cache_type = num_pages, cache_type
        self._layers, self._device = hyperparameters.layers, device
        sizes = layer_page_bytes(hyperparameters, cache_type, layers)
        self.page_nbytes = sum(sizes)
        self._offsets = list(accumulate(sizes, initial=0))
        self._base = arena.allocate((num_pages + 1) * self.page_nbytes)

    @property
    def spare_page(self) -> int:
        """The page that no sequence has."""
        return self.num_pages

    def fields(self, layer: int) -> dict[str, Any]:
        """Where a layer finds its pages, as launches name it."""
        cache = self._layers[layer].cache
        return {
            "kv": self._base + self._offsets[cache],
            "page_bytes": self.page_nbytes,
            "head_bytes": head_bytes(self._layers[cache], self.cache_type),
            "kv_type": self.cache_type,
        }

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page, in order with the steps."""
        assert self._device is not None
        self._device.copy(self._page(target), self._page(source), self.page_nbytes)

    def read_page(self, page: int) -> bytes:
        """A page's bytes."""
        assert self._device is not None
        return self._device.read(self._page(page), self.page_nbytes).tobytes()

    def write_page(self, page: int, data: bytes) -> None:
        """Put back what `read_page` gave."""
        assert self._device is not None
        assert len(data) == self.page_nbytes, f"{len(data)} bytes, a page has {self.page_nbytes}"
        self._device.write(self._page(page), np.frombuffer(data, np.uint8))

    def _page(self, page: int) -> int:
        assert 0 <= page < self.num_pages, f"page {page} of {self.num_pages}"
        return self._base + page * self.page_nbytes
