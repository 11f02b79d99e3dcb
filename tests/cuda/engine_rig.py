"""Whole engines on a device of the tests: an LLM there, and what its program did."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba import LLM, SamplingParams
from llamba.runtime.batch import Batch
from llamba.runtime.candidates import Guess
from llamba.runtime.cuda.driver import DeviceInfo
from llamba.runtime.cuda.program import DeviceProgram
from llamba.runtime.gpus import Gpus
from llamba.runtime.outputs import RequestOutput

SIZES = {"num_layers": 2, "dim": 64, "ffn_dim": 96, "context_length": 256}
EXACT = {"activations": "float32", "cache_type": "f32"}  # sums differ in their order alone
INFO = DeviceInfo(0, "of the tests", 90, 16, 8 << 30, "0000:01:00.0", "GPU-0", 13000)


@contextmanager
def only_gpu(device: Any) -> Iterator[None]:
    """What is loaded with device="cuda" gets this device, which stays open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gpus, "has_driver", lambda self: True)
        patch.setattr(Gpus, "usable", lambda self: ([INFO], ""))
        patch.setattr(Gpus, "check_libraries", lambda self, gpu: None)
        patch.setattr(Gpus, "_open", lambda self, number: device)
        patch.setattr(device, "close", lambda: None)
        yield


@contextmanager
def open_llm(path: Path, device: Any, **options: Any) -> Iterator[LLM]:
    """An LLM on a device that stays open."""
    options = {"context_length": 256, "max_sequences": 8, "kv_tokens": 1024, **options}
    with only_gpu(device):
        with LLM(path, device="cuda", **options) as llm:
            assert isinstance(llm.program, DeviceProgram)
            yield llm
        llm.program._arena.clear()  # closing the device would have


class Watch:
    """Counts what a program runs, runs ahead, and takes of that; and may spoil guesses.

    Args:
        spoil: whether a step's guesses are to be other tokens.
        ahead: False: nothing is guessed.
    """

    def __init__(
        self, program: Any, spoil: Callable[[], bool] = lambda: False, *, ahead: bool = True
    ) -> None:
        self.runs = self.started_ahead = self.taken = self.wrong = self.subsets = 0
        self.program = program
        self._spoil = spoil
        self._random = np.random.default_rng(0)
        self._start, self._run = program._start, program.run
        program._start, program.run = self.start, self.run
        if not ahead:
            program._run_ahead = lambda *_: None

    def run(self, batch: Batch) -> Any:
        """A batch of the engine's."""
        self.runs += 1
        before, self.started = self.program._ahead, 0
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
            """Nearly any of the candidates."""
            segments = list(source.segments)
            for i in kept:
                point = float(self._random.random()) * 0.99
                segments[i] = replace(segments[i], guess=Guess(1e30, 64, 1.0, 0.0, point))
            return listed(Batch(tuple(segments)), kept, rows, places)

        sampling.list_guesses = spoiled
        try:
            return self._start(batch, guesses)
        finally:
            sampling.list_guesses = listed


def ids(seed: int, count: int) -> Any:
    """A prompt: {"prompt_token_ids": ...}."""
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
