"""What a model takes in memory: mapped weights, KV pages, and the activations of a step."""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..models.weights import Weights
from .arena import Arena
from .cache import KVCache, kv_bytes_per_page
from .config import EngineConfig, num_pages_for
from .kernels.records import SPLIT_PAGES
from .memory import MemoryNeed
from .rope_table import RopeTables

if TYPE_CHECKING:
    from .layouts import Layouts


def memory_need(weights: Weights, config: EngineConfig) -> MemoryNeed:
    """Bytes that a model takes with these sizes."""
    page = kv_bytes_per_page(weights.hyperparameters, config.cache_type)
    return MemoryNeed(
        weights=weights.gguf.num_bytes,
        kv=config.num_pages * page,
        arena=arena_bytes(weights, config),
        streamed=streamed_bytes(weights),
        kept=not config.mmap or config.mlock,
    )


def streamed_bytes(weights: Weights) -> int:
    """Bytes of weights without the tables of which a token needs a row: embeddings."""
    tables = {"token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight"}
    tables.discard(weights.output.name if weights.architecture.causal else "")
    return sum(t.num_bytes for name, t in weights.gguf.tensors.items() if name not in tables)


class _Shapes(Weights):
    """Weights whose values don't matter."""

    def f32(self, name: str) -> NDArray[np.float32]:
        """Zeros that take no memory, of the tensor's shape."""
        return _zeros(self.tensor(name).shape)


@lru_cache
def _zeros(shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.broadcast_to(np.float32(0), shape)


def arena_bytes(weights: Weights, config: EngineConfig) -> int:
    """Memory of a program beside KV that may come to be touched: activations, logits, tables."""
    return layouts_of(weights, config)[1]


def layouts_of(weights: Weights, config: EngineConfig) -> "tuple[Layouts, int]":
    """A model's ops, which can't be run, and the bytes of `arena_bytes`.

    Counted by lowering the model into an arena that holds nothing.
    """
    from .forward import MAX_LOGITS
    from .layouts import lower

    longest = config.max_sequence_length
    numbers = weights.hyperparameters.for_context(longest)
    arena, ropes = Arena(dry=True), RopeTables()
    cache = KVCache(numbers, 1, config.cache_type)
    layouts = lower(
        _Shapes(weights.architecture, numbers, weights.gguf),
        arena,
        cache,
        ropes,
        logits := np.empty((MAX_LOGITS, numbers.vocab_size), np.float32),
        exact=config.activations == "float32",
        deterministic=config.deterministic,
        max_tokens=config.max_tokens,
        max_sequences=config.max_sequences,
        max_splits=-(-num_pages_for(longest) // SPLIT_PAGES),
    )
    cache.close()
    scratch = config.num_threads * layouts.scratch_bytes
    return layouts, arena.counted + logits.nbytes + scratch + ropes.num_bytes(longest)
