"""One step's work as a value: the flat arrays that go from the scheduler to the program."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .kernels.records import PAGE

PAGE_SIZE = PAGE  # KV positions in a page


class Logits(Enum):
    """For which tokens of a segment the logits are wanted."""

    NONE = 0
    LAST = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of consecutive tokens of one sequence: a prefill chunk or one decoded token."""

    token_ids: NDArray[np.int32]  # (num_tokens,)
    start: int  # position of the first of them = KV positions already cached
    block_table: NDArray[np.int32]  # page ids, covering start + num_tokens positions
    logits: Logits = Logits.LAST

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
