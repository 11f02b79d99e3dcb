"""All layouts of a model as ops: for a program, or only to count what a program takes."""

from dataclasses import dataclass, field

import numpy as np

from ..models.architecture import Hyperparameters
from ..models.weights import Weights
from ..quant.target import target
from .adapters import AdapterWeights, kernels_of
from .arena import Arena
from .cache import KVCache
from .kernels.records import MAX_GROUP, MAX_HEAD_DIM, MAX_ROWS, TILE_ROWS
from .lowering import Lowering
from .program import LANES, Op
from .rope_table import RopeTables
from .step import slots_of


@dataclass
class Layouts:
    """The ops and buffers of each layout, keyed as Program has them.

    hidden, hidden_in_lanes: where the bodies put the last hidden state; 0: no such layout.
    """

    max_tokens: int  # of a step
    bodies: dict[int, list[Op]] = field(default_factory=dict)
    tails: dict[int, list[Op]] = field(default_factory=dict)
    hidden: int = 0
    hidden_in_lanes: int = 0
    scratch_bytes: int = 0  # of each thread

    @property
    def kernels(self) -> list[str]:
        """The names of all kernels."""
        every = (*self.bodies.values(), *self.tails.values())
        return sorted(kernels_of([op for ops in every for op in ops]))


def lower(
    weights: Weights,
    arena: Arena,
    cache: KVCache,
    ropes: RopeTables,
    logits: np.ndarray,
    *,
    exact: bool,
    deterministic: bool,
    max_tokens: int,
    max_sequences: int,
    max_splits: int,
    layers: range | None = None,
    states: int = 0,
    adapters: AdapterWeights | None = None,
) -> Layouts:
    """Every layout of a model, or of some of its layers; forward.build_program documents the sizes.

    max_splits: pieces of SPLIT_PAGES pages that the longest sequence has. layers, states: as
    Lowering has them.
    """
    numbers, causal, lanes = weights.hyperparameters, weights.architecture.causal, target().lanes
    # Deterministic: one layout for all steps, whose arithmetic for a token is the same with any
    # other tokens beside it.
    max_tokens = MAX_ROWS if deterministic and causal else -(-max_tokens // lanes) * lanes
    max_rows = MAX_ROWS if causal or not deterministic else max_tokens  # a text runs in one step
    found = Layouts(max_tokens)
    common = (weights, arena, cache, ropes, logits.ctypes.data)
    last = layers is None or layers.stop == numbers.num_layers
    plain = exact or deterministic or max_sequences <= 2 or not causal
    widths = {max_rows: 0} if plain else row_layouts(lanes)
    found.hidden = arena.allocate(max_rows * numbers.dim * 4)
    in_rows = {
        limit: Lowering(
            *common,
            exact=exact,
            capacity=limit,
            width=width,
            hidden=found.hidden,
            max_splits=max_splits,
            layers=layers,
            states=states,
            adapters=adapters,
        )
        for limit, width in widths.items()
    }
    builders = [*in_rows.values()]
    for limit, rows in in_rows.items():
        found.bodies[limit] = rows.body()
        if causal and last:
            found.tails[limit] = rows.tail(found.hidden)
    if not deterministic:
        slots = slots_of(max_tokens, lanes)
        many = Lowering(
            *common,
            exact=exact,
            capacity=slots,
            lanes=lanes,
            max_splits=max_splits,
            packed=min(slots, max_sequences * lanes),
            layers=layers,
            states=states,
            adapters=adapters,
        )
        builders.append(many)
        found.bodies[LANES], found.hidden_in_lanes = many.body(), many.hidden
        for limit, rows in in_rows.items() if causal and last else ():
            found.tails[-limit] = rows.tail(many.hidden, lanes=True)
    widest = max(builder.widest for builder in builders)
    found.scratch_bytes = scratch_bytes(numbers, lanes, widest)
    return found


def row_layouts(lanes: int) -> dict[int, int]:
    """Most tokens of a step -> how many its matmuls take side by side (0: one after the other).

    Two tokens cost less one by one, since nothing is unpacked to memory for them.
    """
    return {2: 0, 4: 4, 8: 8, MAX_ROWS: lanes} if lanes > 8 else {2: 0, 4: 4, MAX_ROWS: 8}


def scratch_bytes(numbers: Hyperparameters, lanes: int, widest: int) -> int:
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
    # A tile of 64 keys and values in float32, both as words, their scores, and 12 kB of state.
    in_words = 64 * (4 * max(key, value) + 2 * (key + value) + 4 * lanes) + value + 12352
    in_rows = MAX_GROUP * (4 * MAX_HEAD_DIM + 4 * 512 + 256 + 128)
    rope = 2 * max(key, value) * lanes * 4
    embedding = 8 * len(n) * numbers.per_layer_dim  # a row, and what decoding it takes
    return -(-(max(tile, in_lanes, in_words, in_rows, rope, embedding) + 4096) // 4096) * 4096
