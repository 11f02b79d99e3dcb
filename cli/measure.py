"""Timing of prefill and decode on a Program: random tokens, no sampling, as llama-bench does."""

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..runtime.batch import PAGE_SIZE, Batch, Logits, Segment

if TYPE_CHECKING:
    from ..runtime.split import ModelProgram


@dataclass(frozen=True)
class Case:
    """A prompt of `num_prompt` tokens, then `num_gen` decoded ones, after `depth` in the cache.

    `num_parallel` sequences do so together, each with its own tokens and pages.
    """

    num_prompt: int
    num_gen: int
    depth: int = 0
    num_parallel: int = 1

    @property
    def name(self) -> str:
        """llama-bench's: pp512, tg128, pp512+tg128, pp512 @ d2048; tg32 x8 for 8 sequences."""
        parts = [f"pp{self.num_prompt}"] if self.num_prompt else []
        parts += [f"tg{self.num_gen}"] if self.num_gen else []
        times = f" x{self.num_parallel}" if self.num_parallel > 1 else ""
        return "+".join(parts) + times + (f" @ d{self.depth}" if self.depth else "")

    @property
    def num_tokens(self) -> int:
        """Tokens that count for the speed, of all sequences."""
        return (self.num_prompt + self.num_gen) * self.num_parallel

    @property
    def pages_each(self) -> int:
        """Pages of KV that one sequence fills."""
        return -(-(self.depth + self.num_prompt + self.num_gen) // PAGE_SIZE)

    @property
    def num_pages(self) -> int:
        """Pages of KV that it fills."""
        return self.pages_each * self.num_parallel


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
    """Runs tests on one program; adapters: the scales of all tokens."""

    def __init__(
        self,
        program: "ModelProgram",
        vocab_size: int,
        *,
        seed: int = 0,
        adapters: tuple[float, ...] = (),
    ) -> None:
        self.program, self.adapters = program, adapters
        self.tokens = np.random.default_rng(seed).integers(0, vocab_size, 1 << 14, dtype=np.int32)
        self.pages = np.arange(program.num_pages, dtype=np.int32)

    def measure(self, test: Case, repetitions: int, *, warmup: bool = True) -> Samples:
        """Warm up as llama-bench does (the whole prompt, one decoded token), then repeat."""
        tables = self.pages[: test.num_pages].reshape(test.num_parallel, test.pages_each)
        if test.depth:
            self.prefill(tables, 0, test.depth)
        if warmup:
            self._once(replace(test, num_gen=min(test.num_gen, 1)), tables)
        return Samples(test, [self._once(test, tables) for _ in range(repetitions)])

    def _once(self, test: Case, tables: NDArray[np.int32]) -> int:
        started = time.perf_counter_ns()
        self.prefill(tables, test.depth, test.num_prompt)
        for position in range(test.depth, test.depth + test.num_gen):
            at = position + test.num_prompt
            each = (self._segment(i, table, at, 1, Logits.LAST) for i, table in enumerate(tables))
            self.program.run(Batch(tuple(each)))
        return time.perf_counter_ns() - started

    def prefill(self, tables: NDArray[np.int32], start: int, num_tokens: int) -> None:
        """Sequence after sequence in steps of the program's size; logits of last tokens only.

        tables: int32 (sequences, pages of each).
        """
        step: list[Segment] = []
        room, rows = self.program.max_tokens, self.program.max_logits
        for i, table in enumerate(tables):
            at, end = start, start + num_tokens
            while at < end:
                count = min(end - at, room)
                last = at + count == end
                step.append(self._segment(i, table, at, count, (Logits.NONE, Logits.LAST)[last]))
                at, room, rows = at + count, room - count, rows - last
                if not (room and rows):
                    self.program.run(Batch(tuple(step)))
                    step, room, rows = [], self.program.max_tokens, self.program.max_logits
        if step:
            self.program.run(Batch(tuple(step)))

    def _segment(
        self, sequence: int, table: NDArray[np.int32], start: int, num_tokens: int, logits: Logits
    ) -> Segment:
        at = (start + 997 * sequence) % (len(self.tokens) // 2)
        ids: NDArray[np.int32] = self.tokens[at : at + num_tokens]
        pages = table[: -(-(start + num_tokens) // PAGE_SIZE)]
        return Segment(ids, start, pages, logits, self.adapters)
