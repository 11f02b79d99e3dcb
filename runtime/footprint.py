"""What a model takes in memory: mapped weights, KV pages, and the activations of a step."""

from ..models.architecture import Placement
from ..models.weights import Weights, expected_tensors
from ..quant import format_of
from .cache import kv_bytes_per_page
from .config import EngineConfig, num_pages_for
from .kernels.records import ACTIVATION_ORDER, FLOAT, MAX_ROWS, SPLIT_PAGES, TILE_ROWS
from .memory import MemoryNeed
from .step import slots_of


def memory_need(weights: Weights, config: EngineConfig) -> MemoryNeed:
    """Bytes that a model takes with these sizes."""
    page = kv_bytes_per_page(weights.hyperparameters, config.cache_type)
    return MemoryNeed(
        weights=weights.gguf.num_bytes,
        kv=config.num_pages * page,
        arena=arena_bytes(weights, config),
    )


def arena_bytes(weights: Weights, config: EngineConfig) -> int:
    """Memory of a program beside KV that may come to be touched: activations, logits, tables.

    It follows what build_program and runtime/lowering*.py allocate; a test compares them.
    """
    from ..quant.target import target
    from .forward import MAX_LOGITS

    n, lanes = weights.hyperparameters, target().lanes
    exact = config.activations == "float32"
    plain = exact or config.deterministic or config.max_sequences <= 2
    rows = MAX_ROWS if plain else MAX_ROWS + _FEWER_ROWS
    slots = 0
    if not config.deterministic:
        slots = slots_of(-(-config.max_tokens // lanes) * lanes, lanes)
    first = n.layers[0]
    q_dim, kv_dim = first.num_heads * first.key_dim, first.num_kv_heads * first.key_dim
    rotations = {id(r): r for layer in n.layers if (r := layer.rotation) is not None}
    angles = sum(r.dim for r in rotations.values())
    sandwich = weights.architecture.placement is Placement.SANDWICH
    hidden = n.dim * (2 if sandwich else 1)
    floats = hidden + q_dim + 2 * kv_dim + 2 * first.ffn_dim
    splits = -(-num_pages_for(config.max_sequence_length) // SPLIT_PAGES)
    attention = 4 * splits * first.num_heads * (first.key_dim + 16)  # pieces that are merged
    packed = min(slots, config.max_sequences * lanes)  # tokens of a step whose attention is split
    token = 4 * floats + _input_bytes(weights, exact=exact)
    in_rows = rows * (token + attention + 6 * n.dim)
    in_lanes = slots * (token + 4 * (2 * q_dim + angles)) + packed * attention
    logits = 4 * n.vocab_size * MAX_LOGITS
    scratch = config.num_threads * (TILE_ROWS * 4 + 16) * max(n.dim, first.ffn_dim, q_dim)
    tables = 4 * angles * config.max_sequence_length
    return in_rows + in_lanes + logits + scratch + tables + _small(weights)


# Tokens of the layouts for 2, 4 and 8 tokens together.
_FEWER_ROWS = 14

# Matrices of a layer that read the same input.
_READERS = (("attn_q", "attn_k", "attn_v"), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",))


def _input_bytes(weights: Weights, *, exact: bool) -> int:
    """Bytes a token takes as input of matmuls: a buffer for each set of orders that occurs."""
    n, inputs = weights.hyperparameters, set()
    for layer in range(n.num_layers):
        for parts in _READERS:
            infos = [weights.tensor(f"blk.{layer}.{part}.weight") for part in parts]
            names = (format_of(info.type_id, info.name).name.lower() for info in infos)
            orders = {FLOAT if exact else ACTIVATION_ORDER.get(name, FLOAT) for name in names}
            inputs.add((parts, infos[0].shape[1], frozenset(orders)))
    total = 0
    for _, columns, orders in inputs:
        total += columns * (4 if FLOAT in orders else 0)  # as it is
        total += columns * 11 // 8 if orders - {FLOAT} else 0  # int8, scales, sums
    return total


def _small(weights: Weights) -> int:
    """Norms and biases as float32, for both layouts."""
    tensors = expected_tensors(weights.architecture, weights.hyperparameters)
    return 2 * sum(4 * shape[0] for _, shape, needed in tensors if needed and len(shape) == 1)
