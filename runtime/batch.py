"""One step's work as a value: the flat arrays that go from the scheduler to what runs it."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .candidates import CandidateRows, Guess, RowEdits
from .kernels.records import PAGE

PAGE_SIZE = PAGE  # KV positions in a page


class Logits(Enum):
    """For which tokens of a segment the logits are wanted; HIDDEN: hidden states instead, of all.

    Those are no rows of what Program.run returns: Program.hidden_states gives them afterwards.
    """

    NONE = 0
    LAST = 1
    ALL = 2
    HIDDEN = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of consecutive tokens of one sequence: a prefill chunk or one decoded token."""

    token_ids: NDArray[np.int32]  # (num_tokens,)
    start: int  # position of the first of them = KV positions already cached
    block_table: NDArray[np.int32]  # page ids, covering start + num_tokens positions
    logits: Logits = Logits.LAST
    adapters: tuple[float, ...] = ()  # a scale for each of the model's adapters; none: all 0
    sequence_id: int = -1  # whose tokens these are
    table_version: int = 0  # changes when entries of its block table do, but not with new ones
    edits: RowEdits | None = None  # of the row that it gets, which is LAST
    guess: Guess | None = None  # of the token that will be chosen from it

    @property
    def num_tokens(self) -> int:
        """Tokens run in this step."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """The segments of one step; logits come back row after row in this order."""

    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all segments."""
        return sum(s.num_tokens for s in self.segments)


class Runs(Protocol):
    """What the engine needs of a Program; tests put 20 lines in its place.

    One whose logits stay on a device has an attribute `gives_candidates` that is True: it returns
    CandidateRows, and segments come with edits, which it makes, and guesses. If a batch has
    guesses, the next one is expected to be the segments with a guess, each a token further. The
    program may run that ahead, before it is asked: of each such segment one token, the guessed
    one, with the block table, adapters and edits as they were (the table has a place for it),
    logits LAST.

    When the next batch comes it is compared by sequence_id, start and token_ids. If each of its
    segments has run ahead, their rows are the result; it may be fewer, in whatever order: answers
    end by surprise. Else what ran ahead is forgotten, and the batch is run. Nothing is to be
    undone: KV of a wrong guess is written again before anybody reads it, as long as everything
    that is asked later (runs, copies of pages) is done later. Full pages in a block table may have
    been exchanged for equal ones meanwhile.
    """

    num_pages: int
    max_tokens: int
    max_logits: int

    def run(self, batch: Batch) -> NDArray[np.float32] | CandidateRows:
        """Logits, float32 (rows, vocab_size), or their candidates; valid until the next run."""
        ...

    def hidden_states(self, segment: int, tokens: slice = ...) -> NDArray[np.float32]:
        """Of a segment of the last run whose `logits` was HIDDEN: float32 (tokens, dim), a copy."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page's K and V of all layers."""
        ...
