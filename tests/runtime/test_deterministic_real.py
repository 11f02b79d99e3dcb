"""Deterministic mode with a real model: 64 requests that must share 24 pages answer as if alone."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from llamba import LLM, SamplingParams
from llamba.runtime.prompts import Prompt

pytestmark = [pytest.mark.kernels, pytest.mark.model("smollm2")]

PAGES = 24
TEXT = (
    "The harbour was quiet when the last boat came in. Nobody had expected it before morning, and "
    "the lamps along the quay had already been put out. A man with a bag stepped ashore, looked "
    "around as if he had been there before, and asked the only person in sight for the inn. "
)


def requests(llm: LLM) -> tuple[list[Prompt], list[SamplingParams]]:
    """Prompts of 3 to 190 tokens, some of which begin alike; greedy and seeded ones."""
    rng = np.random.default_rng(5)
    ids = llm.tokenizer.encode(TEXT * 3, add_special=False)
    prompts: list[Prompt] = []
    params: list[SamplingParams] = []
    for i in range(64):
        start = 0 if i % 3 == 0 else int(rng.integers(0, 40))
        length = int(rng.integers(120, 190)) if i % 16 == 5 else int(rng.integers(3, 50))
        prompts.append({"prompt_token_ids": ids[start : start + length]})
        temperature = 0.0 if i % 4 else 0.9
        tokens = int(rng.integers(4, 16))
        params.append(
            SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True)
        )
    return prompts, params


def test_as_if_alone(models: Callable[[str], Path]) -> None:
    path = models("smollm2")
    options = {"context_length": 512, "deterministic": True}
    with LLM(path, num_threads=2, prefix_cache=False, max_sequences=1, **options) as llm:
        prompts, params = requests(llm)
        pairs = zip(prompts, params, strict=True)
        alone = [llm.generate(prompt, p)[0].outputs[0] for prompt, p in pairs]
    with LLM(path, num_threads=1, kv_tokens=32 * PAGES, max_sequences=32, **options) as llm:
        ticks = count()  # how much of a prompt a step takes would follow what steps before it took
        llm.engine.core.clock = lambda: next(ticks) * 1e-3
        together = [o.outputs[0] for o in llm.generate(prompts, params)]
        again = [o.outputs[0] for o in llm.generate(prompts, params)]  # with other prefix hits
        stats = llm.stats
    assert stats.preemptions > 0 and stats.cached_tokens > 0 and stats.evictions > 0
    assert stats.finished == 128 and stats.pages_used == 0
    for first, second, third in zip(alone, together, again, strict=True):
        assert first.token_ids == second.token_ids == third.token_ids
        assert first.text == second.text and first.finish_reason == second.finish_reason
