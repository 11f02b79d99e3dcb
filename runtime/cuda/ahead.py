"""Which kernels a model needs on a GPU, found without one: to compile them ahead."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.weights import Weights
from ..cache import CACHE_TYPES
from ..config import DEFAULT_MAX_SEQUENCES
from ..kernels.cuda.launch import Work
from .build import build_program
from .device import Progress
from .forms import Forms

# Of a step, of the cache, of a sequence: larger ones take no other kernels.
_TOKENS, _PAGES, _POSITIONS = 512, 8, 4096


def kernels_of_model(weights: Weights) -> list[str]:
    """Names for Device.load, whatever the settings but for float32 activations."""
    listing = Listing()
    longest = min(weights.hyperparameters.context_length, _POSITIONS)
    for cache_type, copies, sequences in product(
        CACHE_TYPES, (False, True), (1, DEFAULT_MAX_SEQUENCES)
    ):
        build_program(
            weights,
            listing,
            num_pages=_PAGES,
            max_tokens=_TOKENS,
            max_sequences=sequences,
            forms=Forms(tiles=copies, half=copies),
            cache_type=cache_type,
            context_length=longest,
        ).close()
    return sorted(listing.loaded)


class Listing:
    """A device (device.py) without memory or work, that keeps the names of what it is to load."""

    index, name, architecture, num_multiprocessors = 0, "none", 90, 1
    total_bytes = 1 << 50

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self._next = 0

    def load(self, kernels: Sequence[str], progress: Progress | None = None) -> None:
        """Keep the names."""
        self.loaded.update(kernels)

    def free_bytes(self) -> int:
        """There is always enough."""
        return self.total_bytes

    def allocate(self, num_bytes: int) -> int:
        """An address that is no other's."""
        self._next += -(-max(num_bytes, 1) // 256) * 256
        return self._next

    def read(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """Zeros."""
        return np.zeros(num_bytes, np.uint8)

    def host_buffer(self, num_bytes: int) -> "ListingBuffer":
        """Memory."""
        return ListingBuffer(num_bytes)

    def event(self) -> "Nothing":
        """One that is always done."""
        return Nothing()

    def capture(self, work: Sequence[Work]) -> "Nothing":
        """Nothing to run."""
        return Nothing()

    def release(self, address: int) -> None:
        """Nothing."""

    def write(self, address: int, data: NDArray[Any]) -> None:
        """Nothing."""

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Nothing."""

    def upload(self, address: int, source: Any, at: int, num_bytes: int) -> None:
        """Nothing."""

    def download(self, target: Any, at: int, address: int, num_bytes: int) -> None:
        """Nothing."""

    def fetch(self, copies: Sequence[Any], arrived: Any) -> None:
        """There is nothing."""

    def run(self, work: Sequence[Work]) -> None:
        """Nothing."""

    def synchronize(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class ListingBuffer:
    """Host memory."""

    def __init__(self, num_bytes: int) -> None:
        self.array: NDArray[np.uint8] = np.zeros(num_bytes, np.uint8)


class Nothing:
    """An event that is done, a graph of no work."""

    def record(self) -> None:
        """Nothing."""

    def wait(self) -> None:
        """Nothing."""

    def launch(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def done(self) -> bool:
        """Always."""
        return True
