"""Whole engines on a device of the tests: an LLM there, and what its program did."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba import LLM, SamplingParams
from llamba.runtime.batch import Batch
from llamba.runtime.cuda.driver import DeviceInfo
from llamba.runtime.cuda.program import DeviceProgram
from llamba.runtime.gpus import Gpus
from llamba.runtime.outputs import RequestOutput

SIZES = {"num_layers": 2, "dim": 64, "ffn_dim": 96, "context_length": 256}
EXACT = {"activations": "float32", "cache_type": "f32"}  # sums differ in their order alone
INFO = DeviceInfo(0, "of the tests", 90, 16, 8 << 30, "0000:01:00.0", "GPU-0", 13000)


@contextmanager
def open_llm(path: Path, device: Any, **options: Any) -> Iterator[LLM]:
    """An LLM on a device that stays open."""
    options = {"context_length": 256, "max_sequences": 8, "kv_tokens": 1024, **options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gpus, "has_driver", lambda self: True)
        patch.setattr(Gpus, "usable", lambda self: ([INFO], ""))
        patch.setattr(Gpus, "check_libraries", lambda self, gpu: None)
        patch.setattr(Gpus, "_open", lambda self, number: device)
        patch.setattr(device, "close", lambda: None)
        with LLM(path, device="cuda", **options) as llm:
            assert isinstance(llm.program, DeviceProgram)
            yield llm


class Watch:
    """Counts what a program runs, runs ahead, and takes of that; and may spoil guesses.

    Args:
        spoil: whether a guess is to be another token. Of a step that is about to run.
        ahead: False: nothing is guessed.
    """

    def __init__(
        self, program: Any, spoil: Callable[[], bool] = lambda: False, *, ahead: bool = True
    ) -> None:
        self.runs = self.started_ahead = self.taken = self.wrong = self.subsets = 0
        self.program = program
        self._spoil = spoil
        self._start, self._run, self._finish = program._start, program.run, program._finish
        program._start, program.run, program._finish = self.start, self.run, self.finish
        if not ahead:
            program._run_ahead = lambda *_: None

    def run(self, batch: Batch) -> Any:
        """A batch of the engine's."""
        self.runs += 1
        before = self.program._ahead
        number = self.started = 0
        del number
        rows = self._run(batch)
        if before is not None and not self.started:
            self.taken += 1
            self.subsets += len(batch.segments) < len(before.batch.segments)
        self.wrong += before is not None and self.started > 0
        return rows

    def start(self, batch: Batch, guesses: Any = None) -> Any:
        """A step that is given to the device."""
        if guesses is None:
            self.started += 1
            return self._start(batch)
        self.started_ahead += 1
        sampling = self.program._sampling
        if not self._spoil():
            return self._start(batch, guesses)
        listed = sampling.list_guesses

        def spoiled(source: Batch, kept: Any, rows: Any, places: Any) -> int:
            """The least likely candidate of the first few, with nearly no choice."""
            segments = list(source.segments)
            from dataclasses import replace

            for i in kept:
                guess = segments[i].guess
                worse = guess._replace(temperature=1e30, top_k=64, top_p=1.0, min_p=0.0, point=0.9)
                segments[i] = replace(segments[i], guess=worse)
            return listed(Batch(tuple(segments)), kept, rows, places)

        sampling.list_guesses = spoiled
        try:
            return self._start(batch, guesses)
        finally:
            sampling.list_guesses = listed

    def finish(self, *arguments: Any) -> Any:
        """As it is."""
        return self._finish(*arguments)


def ids(seed: int, count: int) -> dict[str, list[int]]:
    """A prompt."""
    rng = np.random.default_rng(seed)
    return {"prompt_token_ids": rng.integers(3, 280, count).tolist()}


def greedy(max_tokens: int = 8, **more: Any) -> SamplingParams:
    """The likeliest tokens."""
    return SamplingParams(
        **{"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, **more}
    )


def tokens(outputs: Sequence[RequestOutput]) -> list[list[list[int]]]:
    """Of all answers."""
    return [[list(answer.token_ids) for answer in each.outputs] for each in outputs]
