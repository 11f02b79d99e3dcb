"""Collects the importance matrix of a model on a text, chunk by chunk.

What is summed, and how a text is cut, is llama-imatrix's (llama.cpp, tools/imatrix/imatrix.cpp):
chunks of as many tokens as the context, each from an empty cache and, where the model adds a BOS,
with that in the place of its first token.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidParameterError
from ..models.importance import Importance, Sums
from ..models.weights import Weights
from ..quant.target import target
from .arena import Arena
from .batch import PAGE_SIZE, Batch, Logits, Segment
from .cache import KVCache
from .checked_sizes import check_sizes
from .config import MAX_STEP_TOKENS, STEP_TOKENS, EngineConfig
from .footprint import memory_need
from .forward import assemble
from .importance_lowering import CollectingLowering
from .kernels.records import MAX_ROWS, SPLIT_PAGES
from .layouts import Layouts, row_layouts, scratch_bytes
from .lowering import Lowering
from .memory import available_memory, check_memory
from .perplexity import token_losses
from .program import LANES, Program
from .rope_table import RopeTables
from .step import slots_of

MIN_CONTEXT = 16  # llama-imatrix collects nothing of shorter chunks
CACHE_TYPE = ("f16", "f32")  # of the fast path, of the exact one


class Collector:
    """A model that collects while it runs. Close it at the end.

    Args:
        n_ctx: tokens of a chunk.
        bos_id: that stands in the place of each chunk's first token; None: none does.
        process_output: whether the output matrix is collected as well.
        with_losses: whether `run` gives them; not of encoders.
        activations: "int8", or "float32" for the exact path: as forward.build_program.
        progress: called with (compiled, to compile) when kernels must be compiled.

    Raises:
        InvalidParameterError: n_ctx is too small, or more than the model was made for.
        Those of build_program.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        n_ctx: int,
        num_threads: int,
        bos_id: int | None = None,
        process_output: bool = False,
        with_losses: bool = False,
        activations: str = "int8",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        numbers = weights.hyperparameters
        if not MIN_CONTEXT <= n_ctx <= numbers.context_length:
            raise InvalidParameterError(
                f"a context of {n_ctx} tokens: must be {MIN_CONTEXT} to {numbers.context_length}, "
                "the length that the model was made for"
            )
        weights = replace(weights, hyperparameters=numbers.for_context(n_ctx))
        check_sizes(weights)
        _check_memory(weights, n_ctx, num_threads, activations)
        self.n_ctx, self._bos_id = n_ctx, bos_id
        causal = weights.architecture.causal
        self._with_losses = with_losses and causal
        self._step_tokens = STEP_TOKENS if causal else max(n_ctx, STEP_TOKENS)
        self.chunks_at_once = max(1, self._step_tokens // n_ctx)
        self._pages = -(-n_ctx // PAGE_SIZE)
        self._lowering, self._program = _build(
            weights,
            num_pages=self._pages * self.chunks_at_once,
            num_chunks=self.chunks_at_once,
            max_tokens=min(self._step_tokens, n_ctx * self.chunks_at_once),
            num_threads=num_threads,
            exact=activations == "float32",
            progress=progress,
        )
        self.num_tokens = 0
        self._output = weights.output.name if process_output and causal else ""
        self._output_sums = np.zeros((2, 1, numbers.dim), np.float64)

    def run(self, chunks: NDArray[np.int32]) -> NDArray[np.float64] | None:
        """Collect of chunks, (at most chunks_at_once, n_ctx) tokens.

        Returns:
            float64 (chunks, n_ctx - 1 - n_ctx // 2), if they are wanted: -log p of each token after
            the middle one, as llama-imatrix's perplexity takes them.
        """
        inputs = np.ascontiguousarray(chunks, np.int32).copy()
        if self._bos_id is not None:
            inputs[:, 0] = self._bos_id
        tables = np.arange(self._pages * len(inputs), dtype=np.int32).reshape(len(inputs), -1)
        first = self.n_ctx // 2
        losses = np.zeros((len(inputs), self.n_ctx - 1 - first)) if self._with_losses else None
        room = self._step_tokens if len(inputs) == 1 else self.n_ctx
        for start in range(0, self.n_ctx, room):
            stop = min(start + room, self.n_ctx)
            segments = [
                Segment(ids[start:stop], start, table, Logits.HIDDEN)
                for ids, table in zip(inputs, tables, strict=True)
            ]
            self._program.run(Batch(tuple(segments)))
            self._lowering.take()
            for number, chunk in enumerate(chunks):
                if self._output:
                    self._add_output(self._program.hidden_states(number))
                for at in range(max(first, start), min(stop, self.n_ctx - 1), MAX_ROWS):
                    if losses is None:
                        break
                    end = min(at + MAX_ROWS, stop, self.n_ctx - 1)
                    logits = self._program.logits_of(number, slice(at - start, end - start))
                    found = token_losses(logits, chunk[at + 1 : end + 1])
                    losses[number, at - first : end - first] = found
        self.num_tokens += inputs.size
        return losses

    def _add_output(self, hidden: NDArray[np.float32]) -> None:
        exact = hidden.astype(np.float64)
        self._output_sums += np.stack([np.square(exact), exact]).sum(axis=1, keepdims=True)

    def importance(self, datasets: Sequence[str] = ()) -> Importance:
        """What was collected so far.

        InvalidModelFileError: a sum is not finite.
        """
        tokens = self.num_tokens
        entries = {name: self._lowering.sums(name, tokens) for name in self._lowering.inputs}
        if self._output:
            squares, values = self._output_sums.astype(np.float32)
            entries[self._output] = Sums(squares, np.array([tokens], np.int64), values)
        return Importance(entries, tuple(datasets), tokens // self.n_ctx, self.n_ctx)

    def close(self) -> None:
        """End the threads and let the memory go."""
        self._program.close()


def _check_memory(weights: Weights, n_ctx: int, num_threads: int, activations: str) -> None:
    """ResourceError if KV, activations and sums do not fit.

    Sums are at most two float32 and two float64 a column of each matrix, and the inputs that are
    kept in float32 a step's tokens of every kind of matrix.
    """
    whole = not weights.architecture.causal
    config = EngineConfig(
        context_length=n_ctx,
        num_threads=num_threads,
        max_tokens=min(max(n_ctx, STEP_TOKENS), MAX_STEP_TOKENS) if whole else STEP_TOKENS,
        activations=activations,
        max_sequences=1,
        kv_tokens=max(n_ctx, STEP_TOKENS),
        cache_type=CACHE_TYPE[activations == "float32"],
        whole_prompts=whole,
    )
    need = memory_need(weights, config)
    matrices = [t for n, t in weights.gguf.tensors.items() if n[:4] == "blk." and len(t.shape) > 1]
    sums = sum(24 * prod(t.shape[:-2]) * t.shape[-1] for t in matrices)
    inputs = sum(4 * config.max_tokens * columns for columns in {t.shape[-1] for t in matrices})
    check_memory(
        replace(need, arena=need.arena + sums + inputs),
        available_memory(),
        setting="context_length",
        num_tokens=n_ctx,
    )


def _build(
    weights: Weights,
    *,
    num_pages: int,
    num_chunks: int,
    max_tokens: int,
    num_threads: int,
    exact: bool,
    progress: Callable[[int, int], None] | None,
) -> tuple[CollectingLowering, Program]:
    """A program of lanes alone, as all steps are chunks, and what it collects."""
    numbers, lanes, causal = weights.hyperparameters, target().lanes, weights.architecture.causal
    cache, arena, ropes = KVCache(numbers, num_pages, CACHE_TYPE[exact]), Arena(), RopeTables()
    logits = np.empty((MAX_ROWS if causal else 0, numbers.vocab_size), np.float32)
    slots = slots_of(max_tokens, lanes)
    common = (weights, arena, cache, ropes, logits.ctypes.data)
    settings = {"exact": exact, "max_splits": -(-num_pages // SPLIT_PAGES)}
    many = CollectingLowering(
        *common,
        capacity=slots,
        lanes=lanes,
        packed=min(slots, num_chunks * lanes),
        **settings,
    )
    layouts = Layouts(-(-max_tokens // lanes) * lanes)
    layouts.bodies[LANES], layouts.hidden_in_lanes = many.body(), many.hidden
    widest = many.widest
    if causal:
        width = 0 if exact else row_layouts(lanes)[MAX_ROWS]
        rows = Lowering(*common, capacity=MAX_ROWS, width=width, **settings)
        layouts.tails[-MAX_ROWS] = rows.tail(many.hidden, lanes=True)
        widest = max(widest, rows.widest)
    layouts.scratch_bytes = max(scratch_bytes(numbers, lanes, widest), many.scratch_bytes)
    program = assemble(
        weights,
        layouts,
        arena=arena,
        cache=cache,
        ropes=ropes,
        logits=logits,
        num_threads=num_threads,
        progress=progress,
    )
    return many, program
