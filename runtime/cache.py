"""The KV cache: the memory that page ids index.

A page holds 32 positions of every layer. Layer after layer, page after page, KV head after KV head,
a head's K and V lie adjacent, K transposed, so that decode attention reads one sequential stream
with positions in lanes:

* f16: K [head_dim][32], V [32][head_dim], float16.
* q8_0: K [head_dim / 4][32][4] int8, its scales [head_dim / 32][32] float16, V [32][head_dim] int8,
  its scales as K's: 32 values of a position share a scale, as in ggml's Q8_0 (which of K's do:
  kernels/cpu/kv_q8_0.py). 53 % of f16.
"""

import mmap

import numpy as np
from numpy.typing import NDArray

from ..models.architecture import Hyperparameters
from .batch import PAGE_SIZE

# Bytes of 32 values of a position.
_GROUP_BYTES = {"f16": 64, "q8_0": 34}
CACHE_TYPES = tuple(_GROUP_BYTES)


def head_bytes(hyperparameters: Hyperparameters, cache_type: str = "f16") -> int:
    """Bytes of one KV head's K and V in a page of one layer."""
    assert cache_type in CACHE_TYPES, cache_type
    return 2 * PAGE_SIZE * hyperparameters.layers[0].key_dim // 32 * _GROUP_BYTES[cache_type]


def layer_page_bytes(hyperparameters: Hyperparameters, cache_type: str = "f16") -> int:
    """Bytes of a page in one layer."""
    return hyperparameters.layers[0].num_kv_heads * head_bytes(hyperparameters, cache_type)


def kv_bytes_per_page(hyperparameters: Hyperparameters, cache_type: str = "f16") -> int:
    """Bytes of a page in all layers: 32 positions."""
    return hyperparameters.num_layers * layer_page_bytes(hyperparameters, cache_type)


class KVCache:
    """Zeroed memory for `num_pages` pages; the system commits it as pages are written.

    Attributes:
        page_bytes: bytes of a page in one layer.
        page_nbytes: bytes of a page in all layers, what `read_page` gives.
    """

    def __init__(
        self, hyperparameters: Hyperparameters, num_pages: int, cache_type: str = "f16"
    ) -> None:
        self.num_pages, self.cache_type = num_pages, cache_type
        self.page_bytes = layer_page_bytes(hyperparameters, cache_type)
        self.head_bytes = head_bytes(hyperparameters, cache_type)
        self.page_nbytes = kv_bytes_per_page(hyperparameters, cache_type)
        self.num_bytes = num_pages * self.page_nbytes
        # Private where the system knows it: shared anonymous memory counts as a file's.
        private = {}
        if hasattr(mmap, "MAP_ANONYMOUS"):
            private["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, max(self.num_bytes, 1), **private)
        self._base = np.frombuffer(self._memory, np.uint8).ctypes.data

    def layer_address(self, layer: int) -> int:
        """Address of a layer's page 0."""
        return self._base + layer * self.num_pages * self.page_bytes

    def copy_page(self, source: int, target: int) -> None:
        """Copy K and V of all layers of a page, between steps."""
        layers = self._layers(source, target)
        layers[:, target] = layers[:, source]

    def read_page(self, page: int) -> bytes:
        """K and V of all layers of a page: `page_nbytes` bytes, for `write_page` only."""
        return self._layers(page)[:, page].tobytes()

    def write_page(self, page: int, data: bytes) -> None:
        """Put back what `read_page` gave, perhaps in another process with the same model."""
        layers = self._layers(page)
        assert len(data) == self.page_nbytes, f"{len(data)} bytes, a page has {self.page_nbytes}"
        layers[:, page] = np.frombuffer(data, np.uint8).reshape(len(layers), self.page_bytes)

    def _layers(self, *pages: int) -> NDArray[np.uint8]:
        """(layers, pages, page_bytes), a view that must not outlive the caller."""
        for page in pages:
            assert 0 <= page < self.num_pages, f"page {page} of {self.num_pages}"
        view = np.frombuffer(self._memory, np.uint8, self.num_bytes)
        return view.reshape(-1, self.num_pages, self.page_bytes)

    def close(self) -> None:
        """Give the memory back: no record may be run any more."""
        self._memory.close()
