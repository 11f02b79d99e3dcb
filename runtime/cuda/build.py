"""From weights to a program on a GPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ...errors import InvalidParameterError
from ...models.weights import Weights
from ..checked_sizes import check_sizes
from ..config import num_pages_for
from ..kernels.cuda.launches import matmul
from .arena import DeviceArena
from .cache import DeviceKVCache
from .hidden import DeviceHiddenStates
from .inventory import kernels_of
from .lowering import DeviceLowering, two_tails
from .plan import MAX_PIECES, Modes, Planner
from .program import DeviceProgram
from .ropes import DeviceRopes
from .sampling import DeviceSampling
from .steps import PageTables, StepArrays
from .weights import SLICE_BYTES, DeviceWeights

if TYPE_CHECKING:
    from ..program import Op
    from .device import Device
    from .forms import Forms

TILES_LIMIT = 40  # tokens of a step up to which tensor cores read tiles, not cuBLAS float16


def build_program(
    weights: Weights,
    device: "Device",
    *,
    num_pages: int,
    max_tokens: int,
    max_sequences: int,
    forms: "Forms",
    activations: str = "int8",
    cache_type: str = "f16",
    context_length: int | None = None,
    layers: range | None = None,
    owned: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> DeviceProgram:
    """Lower a model, or some of its layers, and bring it to a device, which is the program's own.

    Args:
        forms: what is kept of quantized matrices beside their planes.
        owned: closing the program closes the device.
        progress: called with ("compile" or "upload", done, total).

    The other arguments and the errors are those of forward.build_program.
    """
    if activations not in ("int8", "float32"):
        raise InvalidParameterError(f"activations={activations!r}: must be 'int8' or 'float32'")
    numbers = weights.hyperparameters
    longest = context_length or numbers.context_length
    numbers = numbers.for_context(longest)
    weights = replace(weights, hyperparameters=numbers)
    check_sizes(weights)
    exact, causal = activations == "float32", weights.architecture.causal
    whole = range(numbers.num_layers) if layers is None else layers
    with_tail = causal and whole.stop == numbers.num_layers
    modes = Modes(tiles=TILES_LIMIT if forms.tiles and numbers.experts is None else 0)
    max_tokens = modes.fill_up(max(max_tokens, max_sequences))
    max_logits = modes.fill_up(max(64, max_sequences)) if with_tail else 0
    arena = DeviceArena(device)
    try:
        cache = DeviceKVCache(numbers, num_pages, cache_type, arena, device, whole)
        scratch = arena.allocate(max(matmul.SCRATCH_BYTES, SLICE_BYTES, 2 * _longest_row(weights)))
        matrices = DeviceWeights(device, arena, forms, exact=exact, staging=scratch)
        logits_bytes = 4 * max_logits * numbers.vocab_size
        logits = arena.allocate(logits_bytes), arena.allocate(logits_bytes)
        states = arena.allocate(4 * max_tokens * numbers.dim) if whole.start else 0
        lowering = DeviceLowering(
            weights,
            arena,
            cache,
            DeviceRopes(arena, num_pages_for(longest) * 32),
            matrices,
            logits[0],
            exact=exact,
            capacity=max_tokens,
            max_pieces=MAX_PIECES,
            layers=whole,
            states=states,
        )
        body = lowering.body()
        tails = two_tails(lowering, logits) if with_tail else ()
        every: list[Op] = [*body, *(op for tail in tails for op in tail)]
        planner = Planner(
            modes,
            used=numbers.experts.used if numbers.experts is not None else 1,
            scratch=scratch,
        )
        uploaded = None if progress is None else partial(progress, "upload")
        matrices.make_forms(every, uploaded)
        body = [matrices.complete(op) for op in body]
        tails = [[matrices.complete(op) for op in tail] for tail in tails]
        compiled = None if progress is None else partial(progress, "compile")
        device.load(kernels_of(planner, body, tails, modes, max_tokens, max_logits), compiled)
        width = num_pages_for(longest)
        rows = 2 * max_tokens if causal else max_tokens
        tables = PageTables(
            device,
            arena.allocate(PageTables.num_bytes(rows, width)),
            rows=rows,
            width=width,
            spare_page=cache.spare_page,
        )
        step_bytes = StepArrays.num_bytes(max_tokens, max_logits, width)
        step_base = arena.allocate(step_bytes)
        return DeviceProgram(
            device,
            arena,
            cache,
            body=body,
            tails=tails,
            planner=planner,
            modes=modes,
            tables=tables,
            arrays=StepArrays(
                device,
                step_base,
                tables,
                step_bytes,
                largest=StepArrays.largest(max_tokens, max_logits),
                causal=causal,
            ),
            step_base=step_base,
            sampling=DeviceSampling(device, arena, logits, max_logits, numbers.vocab_size)
            if with_tail
            else None,
            hidden=_hidden_states(weights, device, lowering.hidden, whole),
            states=states,
            num_heads=_num_heads(weights, whole),
            max_tokens=max_tokens,
            max_singles=modes.fill_up(min(max_tokens, max(64, max_sequences))),
            max_pieces=MAX_PIECES,
            max_logits=max(
                max_logits, 1
            ),  # a scheduler counts with rows, also where there are none
            causal=causal,
            owned=owned,
        )
    except BaseException:
        arena.clear()
        raise


def _hidden_states(
    weights: Weights, device: "Device", rows: int, layers: range
) -> DeviceHiddenStates:
    """What the body leaves: after the output norm, if the last layer is among its own."""
    numbers, normed = weights.hyperparameters, weights.architecture.output_norm
    normed = normed and layers.stop == numbers.num_layers
    bias = normed and weights.optional("output_norm.bias") is not None
    return DeviceHiddenStates(
        device,
        rows,
        numbers.dim,
        norm=weights.f32("output_norm.weight") if normed else None,
        bias=weights.f32("output_norm.bias") if bias else None,
        kind=weights.architecture.norm,
        eps=float(numbers.norm_eps),
    )


def _longest_row(weights: Weights) -> int:
    """Bytes of the widest row of a matrix, as float32."""
    return max(4 * info.shape[-1] for info in weights.gguf.tensors.values())


def _num_heads(weights: Weights, layers: range) -> tuple[int, int]:
    """Of queries and keys, in the layer with the fewest of keys: what attention is divided by."""
    found = [weights.hyperparameters.layers[i] for i in layers]
    return min(((n.num_heads, n.num_kv_heads) for n in found), key=lambda n: n[1])
