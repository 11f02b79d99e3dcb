"""What the engine itself costs a step: schedule, segments, sampling, text, with nothing to compute.

    python benchmarks/engine_overhead.py MODEL [--sequences 1 8 32 128] [--depth 4000] [--rows]

The program gives rows of logits at once: the best tokens of each, as one on a device does; with
--rows whole ones of the model's vocabulary. MODEL's file gives the tokenizer alone.
"""

import argparse
import gc
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from report import Bar, heading, show_bars, show_heading, write_bars

from llamba.models.tokenizer import Tokenizer
from llamba.runtime.batch import Batch, Logits
from llamba.runtime.core import EngineCore
from llamba.runtime.params import SamplingParams
from llamba.runtime.request import Request

LIMITS = {1: 150.0, 128: 6000.0}  # us a step
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "default": {},
    "logprobs": {"logprobs": 5, "ignore_eos": False},
}
NUM_ROWS = 509  # different ones that it gives in turn


class Instant:
    """A program that gives rows and computes nothing."""

    num_pages, max_tokens, max_logits = 1 << 16, 4096, 512

    def __init__(self, vocab_size: int, whole: bool) -> None:
        self.gives_candidates = not whole
        rng = np.random.default_rng(0)
        self._at = 0
        if whole:
            self._rows = rng.normal(0, 2, (self.max_logits, vocab_size)).astype(np.float32)
            return
        logits = np.sort(rng.normal(6, 2, (NUM_ROWS * 3, 64)).astype(np.float32))[:, ::-1]
        ids = np.array([rng.choice(vocab_size, 64, replace=False) for _ in range(NUM_ROWS * 3)])
        self._logits, self._ids = np.ascontiguousarray(logits), ids.astype(np.int32)

    def run(self, batch: Batch) -> Any:
        """As many as are asked for."""
        count = sum(s.logits is Logits.LAST for s in batch.segments)
        self._at = at = (self._at + 131) % NUM_ROWS
        if not self.gives_candidates:
            return self._rows[:count]
        from llamba.runtime.candidates import CandidateRows

        logits, ids = self._logits[at : at + count], self._ids[at : at + count]
        norms = np.full(count, 13.0, np.float32)
        return CandidateRows(ids, logits, norms, norms > 0, lambda *_: np.zeros(1, np.float32))

    def copy_page(self, source: int, target: int) -> None:
        """There are none."""

    def hidden_states(self, segment: int, tokens: slice = slice(None)) -> Any:
        """There are none."""
        raise NotImplementedError


def step_us(
    tokenizer: Tokenizer, program: Any, count: int, depth: int, steps: int, **params: Any
) -> float:
    """Median CPU time of a step in which so many sequences get a token; it waits for nothing."""
    core = EngineCore(program, tokenizer, max_sequences=count)
    rng = np.random.default_rng(1)
    for _ in range(count):
        prompt = rng.integers(0, tokenizer.vocab_size, depth + int(rng.integers(32))).tolist()
        options = {"max_tokens": steps + 40, "ignore_eos": True, **params}
        request = Request(
            None, prompt, SamplingParams(**options), tokenizer, seed=0, max_new_tokens=steps + 40
        )
        core.submit(request)
    stats = SimpleNamespace(num_decode=0)
    while stats.num_decode < count:
        core.step()
        stats = core.counters.last_step or stats
    times = []
    gc.collect()
    for _ in range(steps):
        started = time.thread_time()
        core.step()
        times.append(time.thread_time() - started)
    return 1e6 * statistics.median(times)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("model", type=Path)
    options.add_argument("--sequences", type=int, nargs="*", default=[1, 8, 32, 128])
    options.add_argument("--depth", type=int, default=100, help="tokens of the prompts")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--rows", action="store_true", help="whole rows of logits")
    options.add_argument("--json", type=Path)
    args = options.parse_args()
    tokenizer = Tokenizer.from_file(args.model)
    program = Instant(tokenizer.vocab_size, args.rows)
    bars = []
    for name, params in KINDS.items():
        for count in args.sequences:
            us = step_us(tokenizer, program, count, args.depth, args.steps, **params)
            limit = None if args.rows else LIMITS.get(count)
            bars.append(Bar(f"{name}, {count} sequences", us, " us", limit))
    first = heading(1, args.steps)
    show_heading(first)
    show_bars("a step", bars)
    write_bars(args.json, first, bars)


if __name__ == "__main__":
    main()
