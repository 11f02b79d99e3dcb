"""One step's work as a value: the flat arrays that go from the scheduler to what runs it."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
    """What the engine needs of a Program; tests put 20 lines in its place."""

    num_pages: int
    max_tokens: int
    max_logits: int

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Logits, float32 (rows, vocab_size), a view valid until the next run."""
        ...

    def hidden_states(self, segment: int, tokens: slice = ...) -> NDArray[np.float32]:
        """Of a segment of the last run whose `logits` was HIDDEN: float32 (tokens, dim), a copy."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page's K and V of all layers."""
        ...
