"""The KV cache: the memory that page ids index.

A page holds 32 positions of every layer. Layer after layer, page after page, KV head after KV head,
a head's K and V lie adjacent, K transposed, so that decode attention reads one sequential stream
with positions in lanes:

* f16, f32: K [key_dim][32], V [32][value_dim], float16 or float32.
* q8_0: K [key_dim / 4][32][4] int8, its scales [key_dim / 32][32] float16, V [32][value_dim] int8,
  its scales as K's: 32 values of a position share a scale, as in ggml's Q8_0 (which of K's do:
  kernels/cpu/kv_q8_0.py). 53 % of f16.

Heads are filled up with zeros to a multiple of 32 values. Layers that use another's keys and values
take no memory.
"""

import mmap
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..models.architecture import Hyperparameters, Layer
from .batch import PAGE_SIZE

# Bytes of 32 values of a position.
_GROUP_BYTES = {"f16": 64, "f32": 128, "q8_0": 34}
CACHE_TYPES = tuple(_GROUP_BYTES)


def head_bytes(layer: Layer, cache_type: str = "f16") -> int:
    """Bytes of one KV head's K and V in a page of a layer."""
    assert cache_type in CACHE_TYPES, cache_type
    groups = -(-layer.key_dim // 32) + -(-layer.value_dim // 32)
    return PAGE_SIZE * groups * _GROUP_BYTES[cache_type]


def layer_page_bytes(
    hyperparameters: Hyperparameters, cache_type: str = "f16", layers: range | None = None
) -> tuple[int, ...]:
    """Bytes of a page in each layer: 0 where it uses an earlier one's, or is none of `layers`."""
    return tuple(
        layer.num_kv_heads * head_bytes(layer, cache_type)
        if layer.cache == index and (layers is None or index in layers)
        else 0
        for index, layer in enumerate(hyperparameters.layers)
    )


def kv_bytes_per_page(
    hyperparameters: Hyperparameters, cache_type: str = "f16", layers: range | None = None
) -> int:
    """Bytes of a page in all layers, or in `layers`: 32 positions."""
    return sum(layer_page_bytes(hyperparameters, cache_type, layers))


class KVCache:
    """Zeroed memory for `num_pages` pages; the system commits it as pages are written.

    Attributes:
        page_bytes: bytes of a page in each layer.
        page_nbytes: bytes of a page in all layers, what `read_page` gives.
    """

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        num_pages: int,
        cache_type: str = "f16",
        layers: range | None = None,
    ) -> None:
        self.num_pages, self.cache_type = num_pages, cache_type
        self._layers = hyperparameters.layers
        self.page_bytes = layer_page_bytes(hyperparameters, cache_type, layers)
        self.page_nbytes = sum(self.page_bytes)
        self.num_bytes = num_pages * self.page_nbytes
        self._offsets = [num_pages * n for n in accumulate(self.page_bytes, initial=0)]
        # Private where the system knows it: shared anonymous memory counts as a file's.
        private = {}
        if hasattr(mmap, "MAP_ANONYMOUS"):
            private["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, max(self.num_bytes, 1), **private)
        self._base = np.frombuffer(self._memory, np.uint8).ctypes.data

    def layer_address(self, layer: int) -> int:
        """Address of page 0 of the keys and values that a layer uses."""
        return self._base + self._offsets[self._layers[layer].cache]

    def fields(self, layer: int) -> dict[str, int]:
        """Where a layer finds its pages, as records name it."""
        cache = self._layers[layer].cache
        return {
            "kv": self.layer_address(layer),
            "page_bytes": self.page_bytes[cache],
            "head_bytes": head_bytes(self._layers[cache], self.cache_type),
        }

    def copy_page(self, source: int, target: int) -> None:
        """Copy K and V of all layers of a page, between steps."""
        for pages in self._pages(source, target):
            pages[target] = pages[source]

    def read_page(self, page: int) -> bytes:
        """K and V of all layers of a page: `page_nbytes` bytes, for `write_page` only."""
        return b"".join(pages[page].tobytes() for pages in self._pages(page))

    def write_page(self, page: int, data: bytes) -> None:
        """Put back what `read_page` gave, perhaps in another process with the same model."""
        every = self._pages(page)
        assert len(data) == self.page_nbytes, f"{len(data)} bytes, a page has {self.page_nbytes}"
        source, at = np.frombuffer(data, np.uint8), 0
        for pages in every:
            size = pages.shape[1]
            pages[page] = source[at : at + size]
            at += size

    def _pages(self, *checked: int) -> list[NDArray[np.uint8]]:
        """(pages, bytes) of each layer with memory of its own: views that must not outlive the
        caller.
        """
        for page in checked:
            assert 0 <= page < self.num_pages, f"page {page} of {self.num_pages}"
        view, n = np.frombuffer(self._memory, np.uint8, self.num_bytes), self.num_pages
        return [
            view[at : at + n * size].reshape(n, size)
            for at, size in zip(self._offsets, self.page_bytes, strict=False)
            if size
        ]

    def close(self) -> None:
        """Give the memory back: no record may be run any more."""
        self._memory.close()
