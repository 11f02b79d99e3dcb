"""Perplexity as llama-perplexity defines it: chunks of a text, the second half of each scored."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidParameterError
from .candidates import CandidateRows, on_host

MIN_CTX = 4  # of which one token is scored
# (token ids of one chunk, how many of the last ones' logits are wanted) -> (that many, vocab_size),
# at once or as blocks of rows one after another
LogitsFn = Callable[[NDArray[np.int32], int], NDArray | Iterable[NDArray | CandidateRows]]


@dataclass(frozen=True)
class Perplexity:
    """The figure, its standard error, and the running figure after each chunk."""

    value: float
    error: float
    running: list[float]
    losses: NDArray[np.float64] = field(repr=False)  # -log p of each scored token, in order


@dataclass(frozen=True)
class Running:
    """What is known after so many chunks."""

    done: int
    total: int
    value: float
    error: float


def cut(
    token_ids: Sequence[int], *, n_ctx: int = 512, max_chunks: int | None = None
) -> NDArray[np.int32]:
    """The whole chunks of a tokenized text, int32 (chunks, n_ctx); what is left over is dropped.

    InvalidParameterError for less than two chunks of text, an n_ctx < 4, or no chunks wanted.
    """
    if n_ctx < MIN_CTX:
        raise InvalidParameterError(f"n_ctx is {n_ctx}, expected at least {MIN_CTX}")
    check_chunks(max_chunks)
    if len(token_ids) < 2 * n_ctx:
        raise InvalidParameterError(
            f"perplexity needs at least {2 * n_ctx} tokens of text, there are {len(token_ids)}: "
            f"two chunks of n_ctx={n_ctx}; give a longer text or a smaller n_ctx"
        )
    num_chunks = len(token_ids) // n_ctx
    num_chunks = num_chunks if max_chunks is None else min(num_chunks, max_chunks)
    return np.array(token_ids[: num_chunks * n_ctx], np.int32).reshape(num_chunks, n_ctx)


def check_chunks(max_chunks: int | None) -> None:
    """InvalidParameterError: less than one chunk is wanted; None is all."""
    if max_chunks is not None and max_chunks < 1:
        raise InvalidParameterError(f"chunks is {max_chunks}, expected at least 1")


def inputs_of(chunk: NDArray[np.int32], bos_id: int | None) -> NDArray[np.int32]:
    """What is run for a chunk: BOS, if the model has one, takes the place of its first token."""
    if bos_id is None:
        return chunk
    inputs = chunk.copy()
    inputs[0] = bos_id
    return inputs


def first_scored(n_ctx: int) -> int:
    """The position whose logits predict the first scored token: n_ctx - 1 - this are scored."""
    return n_ctx // 2


def perplexity(
    logits_of: LogitsFn,
    token_ids: Sequence[int],
    *,
    n_ctx: int = 512,
    bos_id: int | None = None,
    max_chunks: int | None = None,
    keep: Callable[[NDArray], None] | None = None,
    progress: Callable[[Running], None] | None = None,
) -> Perplexity:
    """Score a tokenized text.

    The text is cut into whole chunks of n_ctx tokens, each run from an empty cache; what is left
    over is dropped. Of each chunk the tokens after the middle one are scored, so that all of them
    have at least n_ctx / 2 tokens of context. `token_ids` are those of the whole text with special
    tokens added; `bos_id` is given for models that add a BOS, and then takes the place of every
    chunk's first token. `keep` gets the logits that score, block of rows after block; `progress`
    is called after each chunk. Errors are those of `cut`.
    """
    chunks = cut(token_ids, n_ctx=n_ctx, max_chunks=max_chunks)
    first = first_scored(n_ctx)
    losses: list[NDArray[np.float64]] = []
    running: list[float] = []
    sums = Sums()
    for done, chunk in enumerate(chunks):
        blocks = logits_of(inputs_of(chunk, bos_id), n_ctx - first)
        at = first + 1
        for block in (blocks,) if isinstance(blocks, np.ndarray) else blocks:
            rows = block[: n_ctx - at]  # the last one predicts the next chunk
            if keep is not None and len(rows):
                rows = on_host(rows)
                keep(rows)
            losses.append(token_losses(rows, chunk[at : at + len(rows)]))
            sums.add(losses[-1])
            at += len(rows)
        value, error = sums.exp_mean()
        running.append(value)
        if progress is not None:
            progress(Running(done + 1, len(chunks), value, error))
    return Perplexity(*sums.exp_mean(), running, np.concatenate(losses))


class Sums:
    """Mean and spread of numbers that come part by part (Chan, Golub and LeVeque, 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0  # of the distances from the mean

    def add(self, values: NDArray[np.float64]) -> None:
        """Some more numbers, or none."""
        if not (count := len(values)):
            return
        total = self.count + count
        apart = float(values.mean()) - self.mean
        self._squares += float(values.var()) * count + apart * apart * self.count * count / total
        self.mean += apart * count / total
        self.count = total

    def exp_mean(self) -> tuple[float, float]:
        """exp of the mean loss, and its standard error; 0 for a single token."""
        value = float(np.exp(self.mean))
        if self.count < 2:
            return value, 0.0
        return value, float(np.sqrt(self._squares / self.count / (self.count - 1))) * value


def exp_mean(losses: NDArray[np.float64]) -> tuple[float, float]:
    """`Sums.exp_mean` of losses that are all there."""
    sums = Sums()
    sums.add(losses)
    return sums.exp_mean()


def token_losses(
    logits: NDArray | CandidateRows, targets: NDArray[np.integer]
) -> NDArray[np.float64]:
    """-log p of each row's target: (rows, vocab_size), (rows,) -> float64 (rows,)."""
    if isinstance(logits, CandidateRows):  # which need not come from the device for that
        return logits.losses(targets)
    losses = np.empty(len(logits), np.float64)
    for i, (row, target) in enumerate(zip(logits, targets, strict=True)):  # a row stays in cache
        highest = row.max()
        total = np.exp(row - highest).sum(dtype=np.float64)
        losses[i] = np.log(total) - (float(row[target]) - float(highest))
    return losses
