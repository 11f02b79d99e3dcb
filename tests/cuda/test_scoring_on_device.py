"""Perplexity and multiple choice on a device: what the CPU's exact path says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rig import EXACT, SIZES, only_gpu

from llamba.runtime import choices
from llamba.runtime.cuda.program import DeviceProgram
from llamba.runtime.perplexity import perplexity
from llamba.runtime.questions import parse
from llamba.runtime.scoring import Scorer


@pytest.mark.kernels
def test_equal_to_the_cpu(tiny_gguf: Callable[..., Path], late_device: Any) -> None:
    path = tiny_gguf(weights="Q8_0", **{**SIZES, "num_layers": 1})
    row = {"prompt": "the " * 36, "choices": ["in", "other", "on an or"], "answer": 0}
    ids = np.random.default_rng(0).integers(3, 250, 32).tolist()

    def score(where: str) -> tuple[list[float], list[tuple[float, ...]]]:
        options: Any = {"device": where, "context_length": 96, "kv_tokens": 512, **EXACT}
        with Scorer(path, max_sequences=8, **options) as scorer:
            assert isinstance(scorer.program, DeviceProgram) == (where == "cuda")
            found = perplexity(scorer.chunk_logits, ids, n_ctx=16)
            answered = choices.answer(scorer, choices.encode(scorer, [parse(row, 1)]))
        if where == "cuda":
            program: Any = scorer.program
            program._arena.clear()  # closing the device would have
        return found.losses.tolist(), [each.log_probs for each in answered]

    with only_gpu(late_device):
        losses, log_probs = score("cuda")
    expected_losses, expected = score("cpu")
    assert losses == pytest.approx(expected_losses, abs=1e-4)
    assert np.array(log_probs) == pytest.approx(np.array(expected), abs=1e-3)
