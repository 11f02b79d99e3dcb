"""What a program takes on a GPU beside weights and KV pages, counted without one."""

from ...models.weights import Weights
from ..config import num_pages_for
from ..footprint import shapes_of
from ..kernels.cuda.launches import matmul
from .arena import DeviceArena
from .cache import DeviceKVCache
from .forms import Forms
from .lowering import DeviceLowering
from .plan import MAX_PIECES
from .ropes import DeviceRopes
from .steps import PageTables
from .weights import DeviceWeights

BESIDE = 96 << 20  # cuBLAS' workspace, kernels, graphs, a step's small arrays
_FEW_POSITIONS = 32


def arena_bytes(
    weights: Weights,
    *,
    max_tokens: int,
    max_sequences: int,
    context_length: int,
    exact: bool,
    layers: range | None = None,
) -> int:
    """Activations, logits, tables: by lowering the layers into an arena that holds nothing."""
    numbers = weights.hyperparameters.for_context(context_length)
    layers = range(numbers.num_layers) if layers is None else layers
    arena, matrices = DeviceArena(None), DeviceArena(None)
    lowering = DeviceLowering(
        shapes_of(weights, numbers),
        arena,
        DeviceKVCache(numbers, 0, "f16", DeviceArena(None), None),
        DeviceRopes(arena, _FEW_POSITIONS),
        DeviceWeights(None, matrices, Forms(), exact=exact, staging=0),
        0,
        exact=exact,
        capacity=max_tokens,
        max_pieces=MAX_PIECES,
        layers=layers,
    )
    lowering.body()
    logits = 0
    if weights.architecture.causal and layers.stop == numbers.num_layers:
        lowering.tail(lowering.hidden)
        logits = 2 * 4 * max(64, max_sequences) * numbers.vocab_size  # of this step and the next
    states = 4 * max_tokens * numbers.dim if layers.start else 0
    ropes = sum(8 * len(rotation.frequencies) for rotation in numbers.rotations) * context_length
    tables = PageTables.num_bytes(2 * max_tokens, num_pages_for(context_length))
    return arena.counted + matmul.SCRATCH_BYTES + logits + states + ropes + tables + BESIDE
