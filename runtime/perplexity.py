"""Perplexity as llama-perplexity defines it: chunks of a text, the second half of each scored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidParameterError

# (token ids of one chunk, how many of the last ones' logits are wanted) -> (that many, vocab_size)
LogitsFn = Callable[[NDArray[np.int32], int], NDArray]


@dataclass(frozen=True)
class Perplexity:
    """The figure, its standard error, and the running figure after each chunk."""

    value: float
    error: float
    running: list[float]


def perplexity(
    logits_of: LogitsFn,
    token_ids: Sequence[int],
    *,
    n_ctx: int = 512,
    bos_id: int | None = None,
    max_chunks: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Score a tokenized text.

    The text is cut into whole chunks of n_ctx tokens, each run from an empty cache; what is left
    over is dropped. Of each chunk the tokens after the middle one are scored, so that all of them
    have at least n_ctx / 2 tokens of context. `token_ids` are those of the whole text with special
    tokens added; `bos_id` is given for models that add a BOS, and then takes the place of every
    chunk's first token. InvalidParameterError for less than two chunks of text or an n_ctx < 4.
    """
    if n_ctx < 4:
        raise InvalidParameterError(f"n_ctx is {n_ctx}, expected at least 4")
    if len(token_ids) < 2 * n_ctx:
        raise InvalidParameterError(
            f"perplexity needs at least {2 * n_ctx} tokens of text, there are {len(token_ids)}"
        )
    num_chunks = len(token_ids) // n_ctx
    num_chunks = num_chunks if max_chunks is None else min(num_chunks, max_chunks)
    chunks = np.array(token_ids[: num_chunks * n_ctx], np.int32).reshape(num_chunks, n_ctx)
    first = n_ctx // 2
    losses: list[NDArray[np.float64]] = []
    running: list[float] = []
    for done, chunk in enumerate(chunks):
        inputs = chunk.copy()
        if bos_id is not None:
            inputs[0] = bos_id
        logits = logits_of(inputs, n_ctx - first)[:-1]  # the last one predicts the next chunk
        losses.append(token_losses(logits, chunk[first + 1 :]))
        running.append(float(np.exp(np.concatenate(losses).mean())))
        if progress is not None:
            progress(done + 1, num_chunks)
    all_losses = np.concatenate(losses)
    spread = float(np.sqrt(all_losses.var() / (len(all_losses) - 1)))
    return Perplexity(running[-1], spread * running[-1], running)


def token_losses(logits: NDArray, targets: NDArray[np.integer]) -> NDArray[np.float64]:
    """-log p of each row's target: (rows, vocab_size), (rows,) -> float64 (rows,)."""
    highest = logits.max(axis=-1)
    total = np.exp(logits - highest[:, None]).sum(axis=-1, dtype=np.float64)
    chosen = np.take_along_axis(logits, np.asarray(targets)[:, None], axis=-1)[:, 0]
    return np.log(total) - (chosen.astype(np.float64) - highest)
