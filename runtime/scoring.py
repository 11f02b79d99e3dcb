"""Scorer: a loaded model that only gives logits, of chunks of a text or of steps of one's own."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .adapter_set import Lora
from .batch import PAGE_SIZE, Batch, Logits, Segment
from .candidates import Rows
from .load import Progress, load
from .request_builder import no_text

# Rows of logits a step: as many as a program can give on every device, so that the blocks of
# two models lie side by side. A row of 262,144 tokens takes a megabyte.
BLOCK_ROWS = 64


class Scorer:
    """A model with its program and no engine: the caller says what a step holds.

    The arguments are LLM's; so are the errors, and UnsupportedTaskError for an encoder. Not
    thread-safe. `close` it, or use it in a `with` statement.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        context_length: int | None = None,
        max_sequences: int | None = 1,
        lora: Lora | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        self._loaded = load(
            model,
            context_length=context_length,
            max_sequences=max_sequences,
            lora=lora,
            progress=progress,
            **options,
        )
        self.path, self.weights = self._loaded.path, self._loaded.weights
        self.tokenizer, self.config = self._loaded.tokenizer, self._loaded.config
        self.program = self._loaded.program
        self.adapters = self._loaded.adapters.choose(None)
        self.vocab_size = self.weights.hyperparameters.vocab_size
        if not self.weights.architecture.causal:
            name, labels = self.weights.architecture.name, self.weights.hyperparameters.num_labels
            self.close()
            raise no_text(name, labels)

    @property
    def bos_id(self) -> int | None:
        """The token that every text of this model begins with, if there is one."""
        return self.tokenizer.bos_id if self.tokenizer.add_bos else None

    @property
    def chat_template(self) -> Any:
        """The model's chat template, or None."""
        return self._loaded.chat_template

    def encode(self, text: str) -> list[int]:
        """The ids of a whole text, with the special tokens that the model puts around it."""
        return list(self.tokenizer.encode(text))

    def chunk_logits(self, token_ids: NDArray[np.int32], count: int) -> Iterator[Rows]:
        """Run a chunk from an empty cache; the logits of its last `count` tokens.

        Yields at most BLOCK_ROWS rows, in order; they are valid until the next.
        """
        first, end = len(token_ids) - count, len(token_ids)
        step = min(BLOCK_ROWS, self.program.max_tokens)
        bounds = [*range(0, first, self.program.max_tokens), *range(first, end, step), end]
        pages = np.arange(-(-end // PAGE_SIZE), dtype=np.int32)
        for start, stop in zip(bounds, bounds[1:], strict=False):
            which = Logits.ALL if start >= first else Logits.NONE
            rows = self.run([self.segment(token_ids[start:stop], start, pages, which)])
            if start >= first:
                yield rows

    def segment(
        self, token_ids: NDArray[np.int32], start: int, pages: NDArray[np.int32], which: Logits
    ) -> Segment:
        """Part of a step: tokens at positions from `start` on, with the model's adapters."""
        return Segment(token_ids, start, pages, which, self.adapters)

    def run(self, segments: Sequence[Segment]) -> Rows:
        """One step; the rows that its segments ask for, in order, valid until the next step."""
        return self.program.run(Batch(tuple(segments)))

    def close(self) -> None:
        """Stop the threads and unmap the file."""
        self._loaded.close()

    def __enter__(self) -> "Scorer":
        """For `with Scorer(...) as scorer`."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()
