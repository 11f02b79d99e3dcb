"""Memory for `llamba bench`: whether the test fits, and weights that are to stay."""

from functools import partial
from typing import TYPE_CHECKING, Any

from .console import warn
from .progress import progress

if TYPE_CHECKING:
    from ..models.gguf import GGUFFile
    from ..models.weights import Weights


def check_fits(
    weights: "Weights",
    num_pages: int,
    max_tokens: int,
    settings: dict[str, Any],
    memory: dict[str, Any],
) -> None:
    """ResourceError if the KV cache of the largest test, or its steps, take too much."""
    from ..runtime.batch import PAGE_SIZE
    from ..runtime.config import MAX_STEP_TOKENS, EngineConfig
    from ..runtime.footprint import memory_need
    from ..runtime.memory import available_memory, check_memory

    num_tokens = max(2, num_pages) * PAGE_SIZE
    config = EngineConfig(
        context_length=num_tokens,
        num_threads=1,
        max_tokens=min(max_tokens, MAX_STEP_TOKENS),
        kv_tokens=num_tokens,
        mmap=memory["mmap"] is None,
        mlock=bool(memory["mlock"]),
        **settings,
    )
    check_memory(
        memory_need(weights, config),
        available_memory(),
        setting="kv_tokens",
        num_tokens=num_tokens,
        limit=memory["memory_limit"],
    )


def hold(gguf: "GGUFFile", name: str, memory: dict[str, Any]) -> None:
    """The weights into memory, if they are to stay there."""
    with progress(name) as update:
        if memory["mmap"] is False:
            gguf.read(partial(update, "read"))
        if memory["mlock"] and (why := gguf.lock(partial(update, "lock"))):
            warn(f"--mlock: the weights are not locked in memory: {why}")
