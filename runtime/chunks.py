"""Chunk and Schedule: what a step does, as the scheduler says it."""

from dataclasses import dataclass

from .batch import Logits
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` to `start + num_tokens` of a sequence run in this step."""

    sequence: Sequence
    start: int
    num_tokens: int
    logits: Logits

    @property
    def end(self) -> int:
        """Behind its last token."""
        return self.start + self.num_tokens

    @property
    def num_rows(self) -> int:
        """Rows of logits that come of it."""
        if self.logits is Logits.LAST:
            return 1
        return self.num_tokens if self.logits is Logits.ALL else 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one step does: first the copies, in their order, then all chunks at once.

    `copies` are pairs (source page, target page). `preempted` lost their pages and wait again;
    nothing is to be done about them.
    """

    chunks: tuple[Chunk, ...]
    copies: tuple[tuple[int, int], ...]
    preempted: tuple[Sequence, ...]


def fit(sequence: Sequence, start: int, tokens: int, rows: int) -> tuple[int, Logits]:
    """How many tokens from `start` on fit into so many tokens and rows, and what is wanted."""
    num_tokens = min(tokens, len(sequence.token_ids) - start)
    if sequence.wants_all:
        if start < sequence.num_logits:  # computed for the second time
            return min(num_tokens, sequence.num_logits - start), Logits.NONE
        if sequence.hidden:
            return min(num_tokens, sequence.num_prompt - start), Logits.HIDDEN
        return min(num_tokens, sequence.num_prompt - start, rows), Logits.ALL
    if start + num_tokens < len(sequence.token_ids) or not sequence.max_new_tokens:
        last = sequence.hidden and start + num_tokens == len(sequence.token_ids)
        return num_tokens, Logits.HIDDEN if last else Logits.NONE
    if rows:
        return num_tokens, Logits.LAST
    return num_tokens - 1, Logits.NONE
