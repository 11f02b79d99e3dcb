"""The one transformer forward pass: an Architecture and weights become a Program."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..errors import InvalidParameterError
from ..models.lora import Adapter
from ..models.weights import Weights
from ..quant import jit
from ..quant.target import target
from .adapters import AdapterScales, AdapterWeights
from .arena import Arena
from .cache import KVCache
from .checked_sizes import check_sizes
from .hidden import HiddenStates
from .kernels.records import MAX_ROWS, SPLIT_PAGES, STEP
from .layouts import Layouts, lower
from .program import Program
from .rope_table import RopeTables
from .step import slots_of
from .team import Team

MAX_LOGITS = MAX_ROWS  # rows of logits a step can return
INTERPRETER = _RUN, _WORK = tuple(
    f"runtime.kernels.cpu.interpreter:{name}" for name in ("run_program", "work")
)


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
    layers: range | None = None,
    adapters: Sequence[Adapter] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Program:
    """Lower a model, or some of its layers.

    Args:
        num_pages: pages of 32 KV positions.
        max_tokens: tokens a step.
        max_sequences: that decode in one step. More than that work as well, only slower: kernels
            that few sequences never need are not compiled.
        activations: "int8", or "float32" for the exact path.
        cache_type: "f16", "f32" or "q8_0": how K and V are kept.
        deterministic: a token's results never depend on what else runs in the step, bit for bit;
            steps of causal models then have at most MAX_ROWS tokens.
        context_length: of the longest sequence, for rotations that depend on it; the file's by
            default.
        layers: that it runs, such as range(0, 8) of a model that is split (split.py); all by
            default. KV pages are theirs only.
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
    check_sizes(weights)
    cache = KVCache(numbers, num_pages, cache_type, layers)
    arena, ropes = Arena(), RopeTables()
    logits = np.empty((MAX_LOGITS, numbers.vocab_size), np.float32)
    scales = adapted = states = None
    slots = slots_of(max(max_tokens, MAX_ROWS), target().lanes)
    if layers is not None and layers.start:
        states = np.empty((slots, numbers.dim), np.float32)
    if adapters:
        scales = AdapterScales(len(adapters), slots, MAX_LOGITS)
        adapted = AdapterWeights(adapters, arena, scales)
    layouts = lower(
        weights,
        arena,
        cache,
        ropes,
        logits,
        exact=activations == "float32",
        deterministic=deterministic,
        max_tokens=max_tokens,
        max_sequences=max_sequences,
        max_splits=-(-num_pages // SPLIT_PAGES),
        layers=layers,
        states=0 if states is None else states.ctypes.data,
        adapters=adapted,
    )
    whole = layers is None or len(layers) == numbers.num_layers
    if adapted is not None and whole:
        adapted.check_used()
    return assemble(
        weights,
        layouts,
        arena=arena,
        cache=cache,
        ropes=ropes,
        logits=logits,
        num_threads=num_threads,
        layers=layers,
        states=states,
        scales=scales,
        progress=progress,
    )


def assemble(
    weights: Weights,
    layouts: Layouts,
    *,
    arena: Arena,
    cache: KVCache,
    ropes: RopeTables,
    logits: np.ndarray,
    num_threads: int,
    layers: range | None = None,
    states: np.ndarray | None = None,
    scales: AdapterScales | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Program:
    """A program of ops that were lowered into these memories; arguments and errors as above."""
    step = np.zeros(len(STEP), np.int64)
    addresses = jit.load([*INTERPRETER, *layouts.kernels], progress=progress)
    return Program(
        bodies=layouts.bodies,
        tails=layouts.tails,
        step=step,
        addresses=addresses,
        arena=arena,
        cache=cache,
        ropes=ropes,
        team=Team(addresses[_RUN], addresses[_WORK], step, num_threads),
        num_lanes=target().lanes,
        logits=logits,
        hidden=_hidden_states(weights, layouts, layers),
        states=states,
        causal=weights.architecture.causal,
        scales=scales,
        max_tokens=layouts.max_tokens,
        scratch_bytes=layouts.scratch_bytes,
    )


def _hidden_states(weights: Weights, layouts: Layouts, layers: range | None) -> HiddenStates:
    """What bodies leave: after the output norm, if the last layer is among them."""
    numbers, normed = weights.hyperparameters, weights.architecture.output_norm
    normed = normed and (layers is None or layers.stop == numbers.num_layers)
    bias = normed and weights.optional("output_norm.bias") is not None
    return HiddenStates(
        rows=layouts.hidden,
        in_lanes=layouts.hidden_in_lanes,
        num_lanes=target().lanes,
        dim=numbers.dim,
        norm=weights.f32("output_norm.weight") if normed else None,
        bias=weights.f32("output_norm.bias") if bias else None,
        kind=weights.architecture.norm,
        eps=float(numbers.norm_eps),
    )
