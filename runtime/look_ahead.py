"""What a step's batch tells a program whose rows stay on a device: edits, and guesses."""

from collections.abc import Mapping, Sequence

import numpy as np

from .batch import Batch, Logits, Segment
from .candidates import Guess
from .chunks import Chunk
from .request import Completion
from .scheduler import Scheduler


def make_batch(
    chunks: Sequence[Chunk],
    live: Mapping[int, Completion],
    scheduler: Scheduler | None = None,
) -> Batch:
    """The segments of a step's chunks.

    Args:
        chunks: of the schedule.
        live: the answers being made, by sequence id.
        scheduler: the program gives candidates, and this one has made the schedule.
    """
    if scheduler is None:
        return Batch(tuple([_segment(chunk, live[chunk.sequence.sequence_id]) for chunk in chunks]))
    completions = [live[chunk.sequence.sequence_id] for chunk in chunks]
    guesses = _guesses(chunks, completions, scheduler)
    return Batch(tuple(map(_with_edits, chunks, completions, guesses)))


def _segment(chunk: Chunk, completion: Completion) -> Segment:
    sequence, start = chunk.sequence, chunk.start
    return Segment(
        np.array(sequence.token_ids[start : start + chunk.num_tokens], np.int32),
        start,
        completion.block_table(),
        chunk.logits,
        completion.request.adapters,
    )


def _with_edits(chunk: Chunk, completion: Completion, guess: Guess | None) -> Segment:
    sequence, start, logits = chunk.sequence, chunk.start, chunk.logits
    return Segment(
        np.array(sequence.token_ids[start : start + chunk.num_tokens], np.int32),
        start,
        completion.block_table(),
        logits,
        completion.request.adapters,
        sequence.sequence_id,
        sequence.table_version,
        completion.sampler.edits() if logits is Logits.LAST else None,
        guess,
    )


def _guesses(
    chunks: Sequence[Chunk], completions: Sequence[Completion], scheduler: Scheduler
) -> Sequence[Guess | None]:
    """A guess for each that goes on after this step; none at all if the next step is not theirs.

    Who goes on has a place for its next token then, which it would get in the next step.
    """
    none: list[Guess | None] = [None] * len(chunks)
    if len(chunks) != scheduler.num_running:
        return none
    guesses: list[Guess | None] = []
    crowded = scheduler.num_waiting > 0  # who waits takes the place of one that ends
    if crowded and scheduler.num_running < scheduler.max_sequences:
        return none
    for chunk, completion in zip(chunks, completions, strict=True):
        if chunk.logits is not Logits.LAST:
            return none
        request = completion.request
        if chunk.sequence.num_new + 1 >= request.max_new_tokens or request.cancelled:
            if crowded:
                return none
            guesses.append(None)
            continue
        guess = completion.sampler.guess()
        if guess is None:
            return none
        guesses.append(guess)
    going_on = [c for c, guess in zip(chunks, guesses, strict=True) if guess is not None]
    return guesses if scheduler.reserve(going_on) else none
