"""What a model takes in memory: mapped weights, KV pages, and the activations of a step."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..models.architecture import Hyperparameters
from ..models.weights import Weights
from .arena import Arena
from .cache import KVCache, kv_bytes_per_page
from .config import EngineConfig, num_pages_for
from .kernels.records import SPLIT_PAGES
from .memory import MemoryNeed
from .rope_table import RopeTables

if TYPE_CHECKING:
    from ..models.gguf import TensorInfo
    from .layouts import Layouts


def memory_need(weights: Weights, config: EngineConfig) -> MemoryNeed:
    """Bytes that a model takes with these sizes, of the machine's memory: not on a GPU."""
    layers = config.cpu_layers(weights.hyperparameters.num_layers)
    if not layers:  # the file was read once
        return MemoryNeed(weights=0, kv=0, arena=0)
    page = kv_bytes_per_page(weights.hyperparameters, config.cache_type, layers)
    part = layers if config.gpu_layers else None
    mapped = sum(info.num_bytes for info in tensors_of(weights, part)) if part else 0
    return MemoryNeed(
        weights=mapped or weights.gguf.num_bytes,
        kv=config.num_pages * page,
        arena=arena_bytes(weights, config),
        streamed=streamed_bytes(weights, part),
        kept=not config.mmap or config.mlock,
    )


# Tensors that layers' first op reads; what else is no layer's, its last ops do.
_BEFORE = ("token_embd", "per_layer_", "position_embd", "token_types")


def tensors_of(weights: Weights, layers: range | None = None) -> "Iterator[TensorInfo]":
    """The tensors that layers need, with those before the first and after the last one."""
    if layers is None:
        yield from weights.gguf.tensors.values()
        return
    last = layers.stop == weights.hyperparameters.num_layers
    output = weights.output.name if weights.architecture.causal else ""
    for name, info in weights.gguf.tensors.items():
        if (found := re.match(r"blk\.(\d+)\.", name)) is not None:
            needed = int(found[1]) in layers
        elif name.startswith(_BEFORE):
            needed = layers.start == 0 or (last and name == output)
        else:
            needed = last
        if needed:
            yield info


def streamed_bytes(weights: Weights, layers: range | None = None) -> int:
    """Bytes of weights without the tables of which a token needs a row: embeddings."""
    tables = {"token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight"}
    if layers is None or layers.stop == weights.hyperparameters.num_layers:
        tables.discard(weights.output.name if weights.architecture.causal else "")
    return sum(t.num_bytes for t in tensors_of(weights, layers) if t.name not in tables)


def shapes_of(weights: Weights, numbers: Hyperparameters) -> Weights:
    """Weights whose values don't matter."""
    return _Shapes(weights.architecture, numbers, weights.gguf)


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
    layers = config.cpu_layers(numbers.num_layers)
    cache = KVCache(numbers, 1, config.cache_type, layers)
    layouts = lower(
        shapes_of(weights, numbers),
        arena,
        cache,
        ropes,
        logits := np.empty((MAX_LOGITS, numbers.vocab_size), np.float32),
        exact=config.activations == "float32",
        deterministic=config.deterministic,
        max_tokens=config.max_tokens,
        max_sequences=config.max_sequences,
        max_splits=-(-num_pages_for(longest) // SPLIT_PAGES),
        layers=layers,
    )
    cache.close()
    scratch = config.num_threads * layouts.scratch_bytes
    return layouts, arena.counted + logits.nbytes + scratch + ropes.num_bytes(longest)
