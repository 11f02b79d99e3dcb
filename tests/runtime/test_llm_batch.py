"""LLM over a real model: many at once, cached prefixes, several answers, deadlines, figures."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llamba import LLM, SamplingParams
from llamba.runtime.prompts import Prompt

pytestmark = pytest.mark.model("smollm2")
PREFIX = "The quick brown fox jumps over the lazy dog. " * 20


@pytest.fixture(scope="module")
def llm(models: object) -> Iterator[LLM]:
    path = models("smollm2")  # type: ignore[operator]
    with LLM(path, context_length=1024, seed=1) as model:
        yield model


def greedy(count: int, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, seed=0, **more)  # type: ignore[arg-type]


def test_many_prompts(llm: LLM) -> None:
    """Order kept, a bad one alone fails, everything ran together."""
    prompts = [f"Count from {i}: {i}, {i + 1}," for i in range(12)]
    before = llm.stats
    outputs = llm.generate([*prompts, "x " * 4000], greedy(16))
    assert [o.prompt for o in outputs[:-1]] == prompts
    assert all(len(o.outputs[0].token_ids) == 16 and o.error is None for o in outputs[:-1])
    assert outputs[-1].error is not None and "context_length" in str(outputs[-1].error)
    stats = llm.stats
    assert stats.steps - before.steps < 60 and stats.finished - before.finished == 12
    assert stats.pages_used == stats.running == stats.waiting == 0
    assert stats.pages_cached + stats.pages_free == llm.program.num_pages


def test_a_shared_prefix_runs_once(llm: LLM) -> None:
    [first] = llm.generate(PREFIX + "One", greedy(4))
    before = llm.stats.prefill_tokens
    [second] = llm.generate(PREFIX + "Two and three", greedy(4))
    common = 0
    for a, b in zip(first.prompt_token_ids, second.prompt_token_ids, strict=False):
        if a != b:
            break
        common += 1
    assert second.metrics.cached_tokens == common > 150
    assert llm.stats.prefill_tokens - before == second.metrics.prompt_tokens - common


def test_several_answers(llm: LLM) -> None:
    prompt = "Once upon a time there was"
    hot = SamplingParams(temperature=1.2, max_tokens=12, n=3, seed=11)
    [output] = llm.generate(prompt, hot)
    assert [c.seed for c in output.outputs] == [11, 12, 13]
    assert len({c.text for c in output.outputs}) == 3
    items = list(llm.submit(prompt, hot))
    for i, completion in enumerate(output.outputs):
        assert "".join(item.outputs[i].delta for item in items) == items[-1].outputs[i].text
        assert len(completion.token_ids) <= 12
    [best] = llm.generate(
        prompt, SamplingParams(temperature=1.2, max_tokens=12, best_of=4, n=2, seed=11)
    )
    first, second = (c.cumulative_logprob for c in best.outputs)
    assert first is not None and second is not None and first >= second


def test_a_timeout(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up when a few steps have run, however long they took."""
    before, core, clock = llm.stats.expirations, llm.engine.core, llm.engine.core.clock
    steps = llm.stats.steps + 5
    monkeypatch.setattr(core, "clock", lambda: clock() + 1e6 * (core.counters.steps >= steps))
    output = llm.submit("Once upon a time", greedy(900, ignore_eos=True), timeout_s=1e5).result()
    completion = output.outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("abort", "timeout")
    assert 0 < len(completion.token_ids) < 900 and completion.text
    assert llm.stats.expirations == before + 1 and llm.stats.pages_used == 0


def test_asyncio(llm: LLM) -> None:
    async def answer(prompt: str) -> str:
        return "".join([item.delta async for item in llm.submit(prompt, greedy(8))])

    async def main() -> list[str]:
        return await asyncio.gather(*(answer(f"{i} is a number and") for i in range(4)))

    assert all(asyncio.run(main()))


def test_prompt_logprobs(llm: LLM) -> None:
    """As the sum of probabilities demands, and as the program's own logits say."""
    prompt = "The capital of France is Paris, and that of Italy is Rome."
    [output] = llm.generate(prompt, greedy(1, prompt_logprobs=3, logprobs=1))
    scores, ids = output.prompt_logprobs, output.prompt_token_ids
    assert scores is not None and len(scores) == len(ids) and scores[0] is None
    for token_id, position in zip(ids[1:], scores[1:], strict=True):
        assert position is not None and token_id in position
        assert 3 <= len(position) <= 4 and all(p.logprob <= 0 for p in position.values())
        assert sum(np.exp(p.logprob) for p in position.values()) <= 1 + 1e-5


def test_prompt_logprobs_against_llama_cpp(llm: LLM, shared: Path) -> None:
    """A greedy answer of llama.cpp, read as a prompt: the log-probabilities are those it gave."""
    golden = json.loads((shared / "open" / "logits_smollm2-135m.json").read_text())
    cases = [c for c in golden["cases"] if len(c["prompt_ids"]) < 900]
    prompts: list[Prompt] = [
        {"prompt_token_ids": c["prompt_ids"] + [i for i, _ in c["greedy"]]} for c in cases
    ]
    outputs = llm.generate(prompts, greedy(0, prompt_logprobs=0))
    distances = []
    for case, output in zip(cases, outputs, strict=True):
        assert output.prompt_logprobs is not None and output.outputs[0].token_ids == []
        answer = output.prompt_logprobs[len(case["prompt_ids"]) :]
        for (token_id, logprob), position in zip(case["greedy"], answer, strict=True):
            assert position is not None
            distances.append(abs(position[token_id].logprob - logprob))
    assert len(distances) > 200 and np.mean(distances) < 0.1  # llama.cpp from itself: 0.05-0.13


def test_saved_prefixes(llm: LLM, tmp_path: Path) -> None:
    llm.generate(PREFIX, greedy(1))
    path = tmp_path / "prefixes"
    stream = llm.submit("Meanwhile", greedy(200, ignore_eos=True))  # saving waits for a step only
    saved = llm.save_prefix_cache(path)
    stream.close()
    assert saved.num_pages > 0 and path.stat().st_size == saved.num_bytes
    assert llm.load_prefix_cache(path).num_saved == saved.num_pages
