"""The one transformer forward pass: an Architecture and weights become a Program."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..errors import InvalidParameterError, UnsupportedModelError
from ..models.architecture import Hyperparameters
from ..models.lora import Adapter
from ..models.weights import Weights
from ..quant import jit
from ..quant.target import target
from .adapters import AdapterScales, AdapterWeights, kernels_of
from .arena import Arena
from .cache import KVCache
from .hidden import HiddenStates
from .kernels.records import MAX_GROUP, MAX_HEAD_DIM, MAX_ROWS, SPLIT_PAGES, STEP, TILE_ROWS
from .lowering import Lowering
from .program import LANES, Program
from .rope_table import RopeTables
from .step import slots_of
from .team import Team

MAX_LOGITS = MAX_ROWS  # rows of logits a step can return
_RUN, _WORK = (f"runtime.kernels.cpu.interpreter:{name}" for name in ("run_program", "work"))


def build_program(
    weights: Weights,
    *,
    num_pages: int,
    num_threads: int,
    max_tokens: int = 512,
    max_sequences: int = MAX_ROWS,
    activations: str = "int8",
    cache_type: str = "f16",
    deterministic: bool = False,
    context_length: int | None = None,
    adapters: Sequence[Adapter] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Program:
    """Lower a model.

    Args:
        num_pages: pages of 32 KV positions.
        max_tokens: tokens a step.
        max_sequences: that decode in one step. More than that work as well, only slower: kernels
            that few sequences never need are not compiled.
        activations: "int8", or "float32" for the exact path.
        cache_type: "f16" or "q8_0": how K and V are kept.
        deterministic: a token's results never depend on what else runs in the step, bit for bit;
            steps then have at most MAX_ROWS tokens.
        context_length: of the longest sequence, for rotations that depend on it; the file's by
            default.
        adapters: that segments may use; a segment's scales are in their order.
        progress: called with (compiled, to compile) when kernels must be compiled.

    Raises:
        InvalidParameterError: another kind of activations.
        ResourceError: the system does not give so many threads.
        UnsupportedModelError: a format or head size that the kernels do not run, an adapter of
            what is no matrix.
        KernelError: the CPU is not supported or a kernel did not compile.
    """
    if activations not in ("int8", "float32"):
        raise InvalidParameterError(f"activations={activations!r}: must be 'int8' or 'float32'")
    numbers = weights.hyperparameters
    numbers = numbers.for_context(context_length or numbers.context_length)
    weights = replace(weights, hyperparameters=numbers)
    _check_sizes(numbers)
    architecture = weights.architecture
    lanes = target().lanes
    # Deterministic: one layout for all steps, whose arithmetic for a token is the same with any
    # other tokens beside it.
    max_tokens = MAX_ROWS if deterministic else -(-max_tokens // lanes) * lanes
    step = np.zeros(len(STEP), np.int64)
    arena, cache = Arena(), KVCache(numbers, num_pages, cache_type)
    ropes = RopeTables()
    logits = np.empty((MAX_LOGITS, numbers.vocab_size), np.float32)
    common = (weights, arena, cache, ropes, logits)
    scales = adapted = None
    if adapters:
        scales = AdapterScales(len(adapters), slots_of(max_tokens, lanes), MAX_LOGITS)
        adapted = AdapterWeights(adapters, arena, scales)
    exact, splits = activations == "float32", _splits(num_pages)
    plain = exact or deterministic or max_sequences <= 2
    widths = {MAX_ROWS: 0} if plain else _row_layouts(lanes)
    hidden = arena.allocate(MAX_ROWS * numbers.dim * 4)
    in_rows = {
        limit: Lowering(
            *common,
            exact=exact,
            capacity=limit,
            width=width,
            hidden=hidden,
            max_splits=splits,
            adapters=adapted,
        )
        for limit, width in widths.items()
    }
    builders = [*in_rows.values()]
    bodies = {limit: rows.body() for limit, rows in in_rows.items()}
    tails = {limit: rows.tail(hidden) for limit, rows in in_rows.items()}
    hidden_in_lanes = 0
    if not deterministic:
        many = Lowering(
            *common,
            exact=exact,
            capacity=slots_of(max_tokens, lanes),
            lanes=lanes,
            max_splits=splits,
            adapters=adapted,
        )
        bodies[LANES], hidden_in_lanes = many.body(), many.hidden
        builders.append(many)
        tails |= {-limit: rows.tail(many.hidden, lanes=True) for limit, rows in in_rows.items()}
    if adapted is not None:
        adapted.check_used()
    names = kernels_of([op for ops in (*bodies.values(), *tails.values()) for op in ops])
    addresses = jit.load([_RUN, _WORK, *sorted(names)], progress=progress)
    return Program(
        bodies=bodies,
        tails=tails,
        step=step,
        addresses=addresses,
        arena=arena,
        cache=cache,
        ropes=ropes,
        team=Team(addresses[_RUN], addresses[_WORK], step, num_threads),
        num_lanes=lanes,
        logits=logits,
        hidden=_hidden_states(weights, hidden, hidden_in_lanes, lanes),
        causal=architecture.causal,
        scales=scales,
        max_tokens=max_tokens,
        scratch_bytes=_scratch_bytes(numbers, lanes, max(b.widest for b in builders)),
    )


def _row_layouts(lanes: int) -> dict[int, int]:
    """Most tokens of a step -> how many its matmuls take side by side (0: one after the other).

    Two tokens cost less one by one, since nothing is unpacked to memory for them.
    """
    return {2: 0, 4: 4, 8: 8, MAX_ROWS: lanes} if lanes > 8 else {2: 0, 4: 4, MAX_ROWS: 8}


def _hidden_states(weights: Weights, rows: int, in_lanes: int, lanes: int) -> HiddenStates:
    numbers, normed = weights.hyperparameters, weights.architecture.output_norm
    bias = weights.optional("output_norm.bias") is not None
    return HiddenStates(
        rows=rows,
        in_lanes=in_lanes,
        num_lanes=lanes,
        dim=numbers.dim,
        norm=weights.f32("output_norm.weight") if normed else None,
        bias=weights.f32("output_norm.bias") if bias else None,
        kind=weights.architecture.norm,
        eps=float(numbers.norm_eps),
    )


def _check_sizes(numbers: Hyperparameters) -> None:
    """What matmuls read must be whole vectors of 32, and heads whole ones of 16."""
    experts = numbers.experts
    for layer in numbers.layers:
        sizes = numbers.dim, layer.num_heads * layer.value_dim, layer.ffn_dim
        if layer.experts and experts is not None:
            sizes = *sizes[:2], experts.ffn_dim, experts.shared_ffn_dim
        if any(size % 32 for size in sizes):
            raise UnsupportedModelError(
                "embedding, attention and feed-forward sizes must be multiples of 32, "
                f"this model has {', '.join(map(str, sizes))}"
            )
        heads = layer.key_dim, layer.value_dim
        if any(size % 16 or size > MAX_HEAD_DIM for size in heads):
            raise UnsupportedModelError(
                f"head sizes must be multiples of 16 up to {MAX_HEAD_DIM}, "
                f"this model has {', '.join(map(str, heads))}"
            )


def _splits(num_pages: int) -> int:
    return -(-num_pages // SPLIT_PAGES)


def _scratch_bytes(numbers: Hyperparameters, lanes: int, widest: int) -> int:
    """What one thread needs of its own: the prefill tile in float32, or attention's page.

    widest: columns of the widest matrix, or norm, or number of experts.
    """
    n = numbers.layers
    key = -(-max(layer.key_dim for layer in n) // 32) * 32
    value = -(-max(layer.value_dim for layer in n) // 32) * 32
    wide = max(max(layer.num_heads * max(layer.key_dim, layer.value_dim) for layer in n), key)
    longest = max(widest, wide)
    tile = 8 * 16 * 4 + TILE_ROWS * longest * 4 + 16 * longest
    in_lanes = 4 * 32 * (key + value + lanes) + 8 * 16 * lanes
    in_rows = MAX_GROUP * (4 * MAX_HEAD_DIM + 4 * 512 + 256 + 128)
    rope = 2 * max(key, value) * lanes * 4
    return -(-(max(tile, in_lanes, in_rows, rope) + 4096) // 4096) * 4096
