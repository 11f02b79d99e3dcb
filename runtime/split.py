"""A model whose first layers run in one program and the others in another, such as on a GPU."""

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..models.architecture import Hyperparameters
from .batch import Batch, Logits, Runs
from .candidates import CandidateRows


class ModelProgram(Runs, Protocol):
    """A whole model's program, wherever it runs."""

    causal: bool

    @property
    def page_nbytes(self) -> int:
        """Bytes of a KV page, its layers."""
        ...

    @property
    def waiting_share(self) -> float:
        """The share of all steps' time that threads waited for the last."""
        ...

    def read_page(self, page: int) -> bytes:
        """A KV page's bytes, `page_nbytes`."""
        ...

    def write_page(self, page: int, data: bytes) -> None:
        """Put back what read_page gave."""
        ...

    def lower_priority(self, nice: int) -> None:
        """Of the threads beside the caller's."""
        ...

    def close(self) -> None:
        """Let everything go."""
        ...


class Part(ModelProgram, Protocol):
    """What a SplitProgram needs of its programs: program.Program, or a GPU's."""

    def run_hidden(
        self, batch: Batch, states: NDArray[np.float32]
    ) -> NDArray[np.float32] | CandidateRows:
        """`run` from the states that the layers before gave; asked of the second part only."""
        ...

    def last_states(self) -> NDArray[np.float32]:
        """The states after the last run, whose segments were HIDDEN; of the first part only."""
        ...


class SplitProgram:
    """Two programs as one: hidden states cross once a step, as float32 rows in the batch's order.

    Both have pages for their own layers, under the same numbers.

    Args:
        first: has the layers up to the cut.
        second: has the others and the output.
    """

    def __init__(self, first: Part, second: Part) -> None:
        assert first.num_pages == second.num_pages, "both hold every sequence's pages"
        self.first, self.second = first, second
        self.num_pages, self.causal = second.num_pages, second.causal
        self.max_tokens = min(first.max_tokens, second.max_tokens)
        self.max_logits = second.max_logits
        self.gives_candidates = getattr(second, "gives_candidates", False)

    def run(self, batch: Batch) -> NDArray[np.float32] | CandidateRows:
        """As Program.run."""
        hidden = (replace(segment, logits=Logits.HIDDEN) for segment in batch.segments)
        self.first.run(Batch(tuple(hidden)))
        return self.second.run_hidden(batch, self.first.last_states())

    def hidden_states(self, segment: int, tokens: slice = slice(None)) -> NDArray[np.float32]:
        """As Program.hidden_states."""
        return self.second.hidden_states(segment, tokens)

    @property
    def page_nbytes(self) -> int:
        """Bytes of a KV page, all layers."""
        return self.first.page_nbytes + self.second.page_nbytes

    def copy_page(self, source: int, target: int) -> None:
        """Copy a KV page, between steps."""
        self.first.copy_page(source, target)
        self.second.copy_page(source, target)

    def read_page(self, page: int) -> bytes:
        """A KV page's bytes: the first part's, then the second's."""
        return self.first.read_page(page) + self.second.read_page(page)

    def write_page(self, page: int, data: bytes) -> None:
        """Put back what read_page gave."""
        assert len(data) == self.page_nbytes, f"{len(data)} bytes, a page has {self.page_nbytes}"
        self.first.write_page(page, data[: self.first.page_nbytes])
        self.second.write_page(page, data[self.first.page_nbytes :])

    @property
    def waiting_share(self) -> float:
        """The first part's: its threads are the CPU's."""
        return self.first.waiting_share

    def lower_priority(self, nice: int) -> None:
        """Of the threads beside the caller's."""
        self.first.lower_priority(nice)
        self.second.lower_priority(nice)

    def close(self) -> None:
        """Close both."""
        try:
            self.first.close()
        finally:
            self.second.close()


def can_split(numbers: Hyperparameters, cut: int) -> bool:
    """Whether layers from `cut` on need nothing of those before it but their hidden states.

    They do where they read an earlier layer's keys and values, or vectors that are made for all
    layers at once (both Gemma 4's). No layers on one side is no split, and always possible.
    """
    if cut in (0, numbers.num_layers):
        return True
    return not numbers.per_layer_dim and all(n.cache >= cut for n in numbers.layers[cut:])


def nearest_cut(numbers: Hyperparameters, wanted: int) -> int:
    """The first cut from `wanted` on that is possible: at worst there is no second part."""
    return next(cut for cut in range(wanted, numbers.num_layers + 1) if can_split(numbers, cut))
