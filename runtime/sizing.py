"""The sizes of an engine: what was asked for, and the rest by what the model and machine allow."""

import logging
from collections.abc import Callable
from dataclasses import replace

from ..models.weights import Weights
from .batch import PAGE_SIZE
from .cache import CACHE_TYPES, kv_bytes_per_page
from .config import (
    DEFAULT_CONTEXT_LENGTH,
    DEFAULT_MAX_SEQUENCES,
    GPU_MAX_SEQUENCES,
    MAX_STEP_TOKENS,
    STEP_TOKENS,
    EngineConfig,
    check_choice,
    check_int,
    choose_context_length,
    choose_kv_tokens,
    num_pages_for,
)
from .footprint import arena_bytes, memory_need
from .gpus import Gpus
from .memory import RESERVE, MemoryNeed, available_memory, check_memory
from .placing import Wish, place, read_gpu_layers
from .threads import default_num_threads

logger = logging.getLogger(__name__)

# Steps of a decoder where memory is short: their activations take less, prompts a little longer.
SMALL_STEPS = (256, 128)
# A context is not made shorter than this only to keep all weights in memory.
COMFORTABLE_CONTEXT = 2048
MIN_LIMIT = 1 << 20  # of bytes: a smaller one was meant otherwise
BACKGROUND_NICE = 19
_ENDLESS = 1 << 62


def configure(
    weights: Weights,
    *,
    context_length: int | None = None,
    num_threads: int | None = None,
    activations: str = "int8",
    max_sequences: int | None = None,
    kv_tokens: int | None = None,
    cache_type: str = "f16",
    deterministic: bool = False,
    prefix_cache: bool = True,
    memory_limit: int | None = None,
    mmap: bool = True,
    mlock: bool = False,
    nice: int | None = None,
    background: bool = False,
    device: str = "cpu",
    gpu_layers: int | str | None = None,
    gpus: Gpus | None = None,
    adapter_bytes: int = 0,
) -> EngineConfig:
    """Sizes from the settings, the model and the machine; ResourceError if it does not fit.

    The context may take half of the memory that is free, the pool of all sequences a quarter. Where
    weights would then not stay in memory, or a limit not be kept, steps become smaller first, then
    the pool, then the context.

    An encoder's text runs in one step, which is as long as the context. Such steps hold one text
    each where it must be the same, bit for bit, alone and beside others.

    device, gpu_layers: placing.py; what runs on a GPU is sized by its memory (cuda/sizing.py).
    gpus: those of the machine; some may be left open.
    """
    encoder, wanted = not weights.architecture.causal, (max_sequences, deterministic)
    if encoder and deterministic:
        max_sequences, deterministic = 1, False
    check_choice("cache_type", cache_type, CACHE_TYPES)
    check_choice("background", background, (True, False))
    check_choice("mmap", mmap, (True, False))
    check_choice("mlock", mlock, (True, False))
    if memory_limit is not None:
        check_int("memory_limit", memory_limit, MIN_LIMIT, 1 << 62, " (bytes)")
    page = kv_bytes_per_page(weights.hyperparameters, cache_type)
    longest = weights.hyperparameters.context_length
    longest = min(longest, MAX_STEP_TOKENS) if encoder else longest
    step_bytes = _step_bytes_per_page(weights, activations) if encoder else 0
    kept = not mmap or mlock
    available = available_memory()
    if num_threads is None:
        num_threads = default_num_threads(background=background)
    common = EngineConfig(
        context_length=1,
        num_threads=num_threads,
        activations=activations,
        max_sequences=DEFAULT_MAX_SEQUENCES if max_sequences is None else max_sequences,
        cache_type=cache_type,
        deterministic=deterministic,
        prefix_cache=prefix_cache and not encoder if type(prefix_cache) is bool else prefix_cache,
        whole_prompts=encoder,
        mmap=mmap,
        mlock=mlock,
        nice=(BACKGROUND_NICE if background else 0) if nice is None else nice,
        background=background,
    )
    if (layers := read_gpu_layers(gpu_layers, device)) != 0 and device != "cpu":
        wish = Wish(
            device=device,
            gpu_layers=layers,
            settings=replace(
                common,
                max_sequences=GPU_MAX_SEQUENCES if wanted[0] is None else wanted[0],
                deterministic=wanted[1],
            ),
            context_length=context_length,
            kv_tokens=kv_tokens,
            longest=longest,
            has_adapters=adapter_bytes > 0,
        )
        if (placed := place(weights, gpus or Gpus(), wish)) is not None:
            if placed.gpu_layers < weights.hyperparameters.num_layers:
                _check(memory_need(weights, placed), placed, available, kv_tokens, memory_limit)
            return placed

    def sized(
        context_budget: int | None, pool_budget: int | None, step_tokens: int = STEP_TOKENS
    ) -> tuple[EngineConfig, MemoryNeed]:
        length = choose_context_length(
            context_length, longest, kv_bytes_per_page=page + step_bytes, budget=context_budget
        )
        config = replace(
            common,
            context_length=length,
            kv_tokens=choose_kv_tokens(
                kv_tokens, length, kv_bytes_per_page=page, budget=pool_budget
            ),
            max_tokens=max(step_tokens, length) if encoder else step_tokens,
        )
        need = memory_need(weights, config)
        return config, replace(need, arena=need.arena + adapter_bytes)

    beside = [] if available is None else [available - (weights.gguf.num_bytes if kept else 0)]
    beside += [] if memory_limit is None else [memory_limit - weights.gguf.num_bytes]
    half, quarter = (max(0, min(beside)) // n if beside else None for n in (2, 4))
    room = _Room(available, memory_limit)
    config, need = first = sized(half, quarter)
    if not encoder and half is not None and quarter is not None and room.comfortable(need) < 0:
        config, need = _fitted(first, room, sized, page, half, quarter)
    _check(need, config, available, kv_tokens, memory_limit)
    if context_length is None and config.context_length < (
        usual := min(longest, DEFAULT_CONTEXT_LENGTH)
    ):
        logger.warning(
            "context_length is %d instead of %d, so that the KV cache fits into memory",
            config.context_length,
            usual,
        )
    return config


def _check(
    need: MemoryNeed,
    config: EngineConfig,
    available: int | None,
    kv_tokens: int | None,
    limit: int | None,
) -> None:
    """ResourceError if it does not fit into the machine's memory."""
    by_context = kv_tokens is None
    check_memory(
        need,
        available,
        setting="context_length" if by_context else "kv_tokens",
        num_tokens=config.context_length if by_context else config.kv_tokens,
        advice=' or cache_type="q8_0"' if config.cache_type == "f16" else "",
        limit=limit,
    )


class _Room:
    """What is left beside a need, by the machine and by the limit that was set."""

    def __init__(self, available: int | None, limit: int | None) -> None:
        self._available, self._limit = available, limit

    def comfortable(self, need: MemoryNeed) -> int:
        """With all weights that tokens read in memory."""
        return min(self.hard(need), self._machine(need.comfortable))

    def hard(self, need: MemoryNeed) -> int:
        """Without which it is refused."""
        room = self._machine(need.private + RESERVE)
        return room if self._limit is None else min(room, self._limit - need.total - RESERVE)

    def _machine(self, needed: int) -> int:
        return _ENDLESS if self._available is None else self._available - needed


_Sized = tuple[EngineConfig, MemoryNeed]


def _fitted(
    first: _Sized,
    room: _Room,
    sized: Callable[[int, int, int], _Sized],
    page: int,
    half: int,
    quarter: int,
) -> _Sized:
    """Smaller sizes, if they help: `first`'s are more than what is there."""
    config, need = first
    smaller = sized(half, quarter, SMALL_STEPS[-1])
    for wanted in (config.context_length, min(COMFORTABLE_CONTEXT, config.context_length)):
        for step in (STEP_TOKENS, *SMALL_STEPS):
            of_step = smaller if step == SMALL_STEPS[-1] else sized(half, quarter, step)
            for_kv = room.comfortable(of_step[1]) + of_step[1].kv
            if for_kv >= num_pages_for(wanted) * page:
                found = sized(min(half, for_kv), min(quarter, for_kv), step)
                if room.comfortable(found[1]) >= 0:
                    return found
    if room.hard(need) >= 0:
        return first  # the weights will be read again and again whatever the KV cache takes
    for_kv = max(0, room.hard(smaller[1]) + smaller[1].kv)
    return sized(min(half, for_kv), min(quarter, for_kv), SMALL_STEPS[-1])


def _step_bytes_per_page(weights: Weights, activations: str) -> int:
    """What a page's worth of tokens takes in a step."""
    few, many = (
        EngineConfig(
            context_length=n,
            num_threads=1,
            max_tokens=n,
            activations=activations,
            whole_prompts=True,
        )
        for n in (STEP_TOKENS, MAX_STEP_TOKENS)
    )
    more = arena_bytes(weights, many) - arena_bytes(weights, few)
    return max(0, more * PAGE_SIZE // (MAX_STEP_TOKENS - STEP_TOKENS))
