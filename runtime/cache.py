"""The KV cache: the memory that page ids index.

A page holds 32 positions of every layer. Within a layer, page after page: for each KV head K
transposed [head_dim][32] and V [32][head_dim], float16, adjacent.
"""

import mmap

import numpy as np

from ..models.architecture import Hyperparameters
from .batch import PAGE_SIZE
from .kernels.records import MAX_ROWS


def head_bytes(hyperparameters: Hyperparameters) -> int:
    """Bytes of one KV head's K and V in a page of one layer."""
    return 2 * PAGE_SIZE * hyperparameters.head_dim * 2


def layer_page_bytes(hyperparameters: Hyperparameters) -> int:
    """Bytes of a page in one layer."""
    return hyperparameters.num_kv_heads * head_bytes(hyperparameters)


def kv_bytes_per_page(hyperparameters: Hyperparameters) -> int:
    """Bytes of a page in all layers: 32 positions."""
    return hyperparameters.num_layers * layer_page_bytes(hyperparameters)


def arena_bytes(numbers: Hyperparameters, max_tokens: int) -> int:
    """Activation memory at most, without logits of more than 8 rows: an estimate for the door."""
    q_dim, kv_dim = numbers.num_heads * numbers.head_dim, numbers.num_kv_heads * numbers.head_dim
    floats = 2 * numbers.dim + 2 * q_dim + 2 * kv_dim + 2 * numbers.ffn_dim
    quantized = 2 * numbers.dim + q_dim + numbers.ffn_dim
    return max_tokens * (4 * floats + 2 * quantized) + 4 * MAX_ROWS * numbers.vocab_size


class KVCache:
    """Zeroed memory for `num_pages` pages; the system commits it as pages are written."""

    def __init__(self, hyperparameters: Hyperparameters, num_pages: int) -> None:
        self.num_pages = num_pages
        self.page_bytes = layer_page_bytes(hyperparameters)
        self.head_bytes = head_bytes(hyperparameters)
        self.num_bytes = num_pages * kv_bytes_per_page(hyperparameters)
        # Private where the system knows it: shared anonymous memory counts as a file's.
        private = {}
        if hasattr(mmap, "MAP_ANONYMOUS"):
            private["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, max(self.num_bytes, 1), **private)
        self._base = np.frombuffer(self._memory, np.uint8).ctypes.data

    def layer_address(self, layer: int) -> int:
        """Address of a layer's page 0."""
        return self._base + layer * self.num_pages * self.page_bytes

    def close(self) -> None:
        """Give the memory back: no record may be run any more."""
        self._memory.close()
