"""Timing of prefill and decode on a Program: random tokens, no sampling, as llama-bench does."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..runtime.batch import PAGE_SIZE, Batch, Logits, Segment

if TYPE_CHECKING:
    from ..runtime.program import Program


@dataclass(frozen=True)
class Case:
    """A prompt of `num_prompt` tokens, then `num_gen` decoded ones, after `depth` in the cache."""

    num_prompt: int
    num_gen: int
    depth: int = 0

    @property
    def name(self) -> str:
        """llama-bench's: pp512, tg128, pp512+tg128, pp512 @ d2048."""
        parts = [f"pp{self.num_prompt}"] if self.num_prompt else []
        parts += [f"tg{self.num_gen}"] if self.num_gen else []
        return "+".join(parts) + (f" @ d{self.depth}" if self.depth else "")

    @property
    def num_tokens(self) -> int:
        """Tokens that count for the speed."""
        return self.num_prompt + self.num_gen

    @property
    def num_pages(self) -> int:
        """Pages of KV that it fills."""
        return -(-(self.depth + self.num_tokens) // PAGE_SIZE)


@dataclass(frozen=True)
class Samples:
    """One duration a repetition, in ns."""

    test: Case
    ns: list[int]

    @property
    def ts(self) -> list[float]:
        """Tokens a second of every repetition."""
        return [self.test.num_tokens * 1e9 / ns for ns in self.ns]

    @property
    def avg_ns(self) -> float:
        """Mean duration."""
        return sum(self.ns) / len(self.ns)

    @property
    def stddev_ns(self) -> float:
        """Sample standard deviation; 0 for one repetition."""
        return _stddev([float(ns) for ns in self.ns])

    @property
    def avg_ts(self) -> float:
        """Mean of the speeds (llama-bench's; not the speed of the mean duration)."""
        return sum(self.ts) / len(self.ts)

    @property
    def stddev_ts(self) -> float:
        """Sample standard deviation; 0 for one repetition."""
        return _stddev(self.ts)


def _stddev(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


class Bench:
    """Runs tests on one program."""

    def __init__(self, program: "Program", vocab_size: int, *, seed: int = 0) -> None:
        self.program = program
        self.tokens = np.random.default_rng(seed).integers(0, vocab_size, 1 << 14, dtype=np.int32)
        self.pages = np.arange(program.num_pages, dtype=np.int32)

    def measure(self, test: Case, repetitions: int, *, warmup: bool = True) -> Samples:
        """Warm up as llama-bench does (the whole prompt, one decoded token), then repeat."""
        if test.depth:
            self.prefill(0, test.depth)
        if warmup:
            self._once(Case(test.num_prompt, min(test.num_gen, 1), test.depth))
        return Samples(test, [self._once(test) for _ in range(repetitions)])

    def _once(self, test: Case) -> int:
        started = time.perf_counter_ns()
        self.prefill(test.depth, test.num_prompt)
        position = test.depth + test.num_prompt
        for batch in self._decodes(position, test.num_gen):
            self.program.run(batch)
        return time.perf_counter_ns() - started

    def prefill(self, start: int, num_tokens: int) -> None:
        """Chunks of the program's size; logits of the last token only."""
        end = start + num_tokens
        for at in range(start, end, self.program.max_tokens):
            stop = min(at + self.program.max_tokens, end)
            logits = Logits.LAST if stop == end else Logits.NONE
            self.program.run(self._batch(at, stop - at, logits))

    def _decodes(self, start: int, num_tokens: int) -> Iterator[Batch]:
        for position in range(start, start + num_tokens):
            yield self._batch(position, 1, Logits.LAST)

    def _batch(self, start: int, num_tokens: int, logits: Logits) -> Batch:
        at = start % (len(self.tokens) // 2)
        ids: NDArray[np.int32] = self.tokens[at : at + num_tokens]
        pages = self.pages[: -(-(start + num_tokens) // PAGE_SIZE)]
        return Batch((Segment(ids, start, pages, logits),))
