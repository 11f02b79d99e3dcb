"""The one transformer forward pass: an Architecture and weights become a Program."""

from collections.abc import Callable

import numpy as np

from ..errors import InvalidParameterError, UnsupportedModelError
from ..models.architecture import Hyperparameters
from ..models.weights import Weights
from ..quant import jit
from ..quant.target import target
from .arena import Arena
from .cache import KVCache
from .kernels.records import MAX_ROWS, SPLIT_PAGES, STEP, TILE_ROWS
from .lowering import Lowering
from .program import OpList, Program
from .rope_table import RopeTables
from .team import Team

MAX_LOGITS = 64  # rows of logits a step can return
_RUN, _WORK = (f"runtime.kernels.cpu.interpreter:{name}" for name in ("run_program", "work"))


def build_program(
    weights: Weights,
    *,
    num_pages: int,
    num_threads: int,
    max_tokens: int = 512,
    activations: str = "int8",
    progress: Callable[[int, int], None] | None = None,
) -> Program:
    """Lower a model.

    Args:
        num_pages: pages of 32 KV positions.
        max_tokens: tokens a step.
        activations: "int8", or "float32" for the exact path.
        progress: called with (compiled, to compile) when kernels must be compiled.

    Raises:
        UnsupportedModelError: a format or head size that the kernels do not run.
        KernelError: the CPU is not supported or a kernel did not compile.
    """
    if activations not in ("int8", "float32"):
        raise InvalidParameterError(f"activations={activations!r}: must be 'int8' or 'float32'")
    numbers = weights.hyperparameters
    _check_sizes(numbers)
    lanes = target().lanes
    max_tokens = -(-max_tokens // lanes) * lanes
    step = np.zeros(len(STEP), np.int64)
    arena, cache = Arena(), KVCache(numbers, num_pages)
    ropes = RopeTables(numbers.rope_dim, numbers.rope_factors)
    logits = np.empty((MAX_LOGITS + lanes, numbers.vocab_size), np.float32)
    common = (weights, arena, cache, ropes, logits)
    exact = activations == "float32"
    rows = Lowering(*common, exact=exact, capacity=MAX_ROWS, lanes=0, max_splits=_splits(num_pages))
    row_ops = OpList(rows.body(), rows.tail(rows.hidden))
    many = Lowering(*common, exact=exact, capacity=max_tokens * 2 + MAX_ROWS * lanes, lanes=lanes)
    body = many.body()
    names = {op.kernel for op in [*row_ops.body, *row_ops.tail, *body]}
    lane_ops = OpList(body, rows.tail(many.hidden, lanes=True))
    lane_many = OpList(body, many.tail_many(-(-MAX_LOGITS // lanes) * lanes))
    names |= {op.kernel for op in [*lane_ops.tail, *lane_many.tail]}
    addresses = jit.load([_RUN, _WORK, *sorted(names)], progress=progress)
    return Program(
        rows=row_ops,
        lanes=lane_ops,
        lanes_many=lane_many,
        step=step,
        addresses=addresses,
        arena=arena,
        cache=cache,
        ropes=ropes,
        team=Team(addresses[_RUN], addresses[_WORK], step, num_threads),
        num_lanes=lanes,
        logits=logits[:MAX_LOGITS],
        max_tokens=max_tokens,
        scratch_bytes=_scratch_bytes(numbers, lanes),
        final_softcap=numbers.final_softcap,
    )


def _check_sizes(numbers: Hyperparameters) -> None:
    sizes = numbers.head_dim, numbers.dim, numbers.ffn_dim
    if any(size % 32 for size in sizes):
        raise UnsupportedModelError(
            "head, embedding and feed-forward sizes must be multiples of 32, this model has "
            + ", ".join(map(str, sizes))
        )


def _splits(num_pages: int) -> int:
    return -(-num_pages // SPLIT_PAGES)


def _scratch_bytes(numbers: Hyperparameters, lanes: int) -> int:
    """What one thread needs of its own: the prefill tile in float32, or attention's page."""
    longest = max(numbers.dim, numbers.ffn_dim, numbers.num_heads * numbers.head_dim)
    tile = 8 * 16 * 4 + TILE_ROWS * longest * 4 + 16 * longest
    group = numbers.num_heads // numbers.num_kv_heads
    attention = (3 * 32 + lanes) * numbers.head_dim * 4 + 32 * lanes * 4 + group * lanes * 8
    return -(-(max(tile, attention) + 4096) // 4096) * 4096
