"""The KV cache: the memory that page ids index.

A page holds 32 positions of every layer. Within a layer, page after page: for each KV head K
transposed [head_dim][32] and V [32][head_dim], float16, adjacent.
"""

import mmap

import numpy as np

from ..models.architecture import Hyperparameters
from .batch import PAGE_SIZE


def head_bytes(hyperparameters: Hyperparameters) -> int:
    """Bytes of one KV head's K and V in a page of one layer."""
    return 2 * PAGE_SIZE * hyperparameters.head_dim * 2


def layer_page_bytes(hyperparameters: Hyperparameters) -> int:
    """Bytes of a page in one layer."""
    return hyperparameters.num_kv_heads * head_bytes(hyperparameters)


def kv_bytes_per_page(hyperparameters: Hyperparameters) -> int:
    """Bytes of a page in all layers: 32 positions."""
    return hyperparameters.num_layers * layer_page_bytes(hyperparameters)


class KVCache:
    """Zeroed memory for `num_pages` pages; the system commits it as pages are written."""

    def __init__(self, hyperparameters: Hyperparameters, num_pages: int) -> None:
        self.num_pages = num_pages
        self.page_bytes = layer_page_bytes(hyperparameters)
        self.head_bytes = head_bytes(hyperparameters)
        self.num_bytes = num_pages * kv_bytes_per_page(hyperparameters)
        self._memory = mmap.mmap(-1, max(self.num_bytes, 1))
        self._base = np.frombuffer(self._memory, np.uint8).ctypes.data

    def layer_address(self, layer: int) -> int:
        """Address of a layer's page 0."""
        return self._base + layer * self.num_pages * self.page_bytes
