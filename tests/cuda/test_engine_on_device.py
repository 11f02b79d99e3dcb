"""The engine on a device, end to end: who is beside whom changes no answer.

float32 throughout, so that sums differ in their order alone and greedy answers don't.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rig import EXACT, SIZES, Watch, greedy, ids, open_llm, tokens

from llamba import LLM, SamplingParams
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.kernels.reference import Reference

NEAR = 1e-3  # of logits that differ less either token may come


@pytest.fixture(scope="module")
def model(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf(weights="Q8_0", **{**SIZES, "num_layers": 1})


class Oracle:
    """What the float64 reference says of answers."""

    def __init__(self, path: Path) -> None:
        self.weights = Weights.open(GGUFFile.open(path))

    def rows(self, context: list[int]) -> np.ndarray:
        return Reference(self.weights, keep=True).run(np.array(context, np.int32))

    def check_greedy(
        self,
        prompt: dict[str, list[int]],
        answer: list[int],
        edit: Callable[[np.ndarray, list[int]], None] = lambda row, context: None,
    ) -> None:
        """Each token is the likeliest after those before it, nearly; edit: of a row."""
        context = [*prompt["prompt_token_ids"], *answer]
        first = len(context) - len(answer)
        rows = self.rows(context)
        for i, token in enumerate(answer, first):
            row = rows[i - 1].astype(np.float64)
            row[2] = -np.inf  # ignore_eos
            edit(row, context[:i])
            assert row[token] >= row.max() - NEAR, (i, token, row.argmax())


@pytest.fixture(scope="module")
def oracle(model: Path) -> Oracle:
    return Oracle(model)


def ask(llm: LLM, prompts: list[Any], params: Any) -> list[list[list[int]]]:
    return tokens(llm.generate(prompts, params))


def test_many_at_once_equal_the_reference(late_device: Any, model: Path, oracle: Oracle) -> None:
    """More than run at once, short and long, with ends in different steps: and run ahead."""
    prompts = [ids(n, length) for n, length in enumerate((1, 5, 33, 64, 7, 40))]
    params = [greedy(n) for n in (9, 3, 12, 1, 8, 6)]
    with open_llm(model, late_device, max_sequences=4, **EXACT) as llm:
        watch = Watch(llm.program)
        found = ask(llm, prompts, params)
        assert watch.taken > 5 and watch.wrong == 0
    for prompt, [answer], each in zip(prompts, found, params, strict=True):
        assert len(answer) == each.max_tokens
        oracle.check_greedy(prompt, answer)


def test_prefixes_are_found_and_copied(
    late_device: Any, model: Path, oracle: Oracle, tmp_path: Path
) -> None:
    """Whole pages are shared, a part of one is copied; saved and put back, too."""
    prompt = ids(1, 70)
    shared: Any = {
        "prompt_token_ids": prompt["prompt_token_ids"][:50] + ids(2, 9)["prompt_token_ids"]
    }
    with open_llm(model, late_device, **EXACT) as llm:
        copied: list[tuple[int, int]] = []
        copy = llm.program.copy_page
        llm.program.copy_page = lambda a, b: (copied.append((a, b)), copy(a, b))[1]  # type: ignore
        [[first]] = ask(llm, [prompt], greedy(4))
        [second] = llm.generate([shared], greedy(4))
        assert second.metrics.cached_tokens == 50 and len(copied) == 1
        [again] = llm.generate([prompt], greedy(4))
        assert again.metrics.cached_tokens >= 64 and tokens([again]) == [[first]]
        saved = llm.save_prefix_cache(tmp_path / "prefixes")
        assert saved.num_pages >= 3
    oracle.check_greedy(prompt, first)
    oracle.check_greedy(shared, tokens([second])[0][0])
    with open_llm(model, late_device, **EXACT) as llm:
        assert llm.load_prefix_cache(tmp_path / "prefixes").num_pages == saved.num_pages
        [again] = llm.generate([prompt], greedy(4))
        assert again.metrics.cached_tokens >= 64 and tokens([again]) == [[first]]


def test_preemption_computes_again(late_device: Any, model: Path, oracle: Oracle) -> None:
    """Six pages for three answers that need nine; nothing is left over afterwards."""
    prompts = [ids(n, 28) for n in range(3)]
    options = {"kv_tokens": 6 * 32, "context_length": 128, "max_sequences": 3, **EXACT}
    with open_llm(model, late_device, **options) as llm:
        found = ask(llm, prompts, greedy(45))
        assert llm.stats.preemptions > 0 and llm.stats.pages_used == 0
    for prompt, [answer] in zip(prompts, found, strict=True):
        assert len(answer) == 45
        oracle.check_greedy(prompt, answer)


def test_answers_that_end_by_surprise(late_device: Any, model: Path) -> None:
    """What ran ahead held them too: the others' rows are used."""
    prompts = [ids(n, 6 + n) for n in range(3)]
    with open_llm(model, late_device, **EXACT) as llm:
        whole = [answer for [answer] in ask(llm, prompts, greedy(12))]
        last = [next(i for i in (4, 7, 9, 11) if t[i] not in t[:i]) for t in whole]
        ends = [greedy(12, stop_token_ids=[t[i]]) for t, i in zip(whole, last, strict=True)]
        ends[1] = greedy(12)
        watch = Watch(llm.program)
        found = llm.generate(prompts, ends)
        assert watch.subsets > 0 and watch.wrong == 0
        for n, each in enumerate(found):
            [answer] = each.outputs
            count = 12 if n == 1 else last[n] + 1
            assert list(answer.token_ids)[:count] == whole[n][:count]
            assert len(answer.token_ids) <= count
            assert answer.finish_reason == ("length" if n == 1 else "stop")
        text = llm.tokenizer.decode(whole[0])
        word = text[4:7]
        [stopped] = llm.generate(prompts[:1], greedy(12, stop=[word]))
        assert stopped.outputs[0].text == text[: text.index(word)]


def test_cancelled_in_mid_flight(late_device: Any, model: Path) -> None:
    """Whoever stays goes on as if the other had never been."""
    with open_llm(model, late_device, **EXACT) as llm:
        [[kept]] = ask(llm, [ids(1, 9)], greedy(30))
        gone = llm.submit(ids(2, 9), greedy(200))
        stays = llm.submit(ids(1, 9), greedy(30))
        next(iter(gone))
        gone.close()
        assert tokens([stays.result()]) == [[kept]]
        assert llm.stats.cancellations == 1 and llm.stats.pages_used == 0


def test_penalties_and_biases(late_device: Any, model: Path, oracle: Oracle) -> None:
    """Made on the device; beside an answer that has none."""
    prompts = [ids(n, 12) for n in range(3)]
    params = [
        greedy(8, repeat_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2),
        greedy(8),
        greedy(8, logit_bias={30: 2.5, 31: -100, 77: 1.0}),
    ]

    def penalize(row: np.ndarray, context: list[int]) -> None:
        seen, counts = np.unique(context[-64:], return_counts=True)
        row[seen] = np.where(row[seen] <= 0, row[seen] * 1.4, row[seen] / 1.4)
        row[seen] -= 0.2 * counts + 0.3

    def bias(row: np.ndarray, context: list[int]) -> None:
        row[30], row[31], row[77] = row[30] + 2.5, -np.inf, row[77] + 1.0

    with open_llm(model, late_device, **EXACT) as llm:
        found = [answer for [answer] in ask(llm, prompts, params)]
    oracle.check_greedy(prompts[0], found[0], penalize)
    oracle.check_greedy(prompts[1], found[1])
    oracle.check_greedy(prompts[2], found[2], bias)


def test_log_probabilities_equal_the_references(
    late_device: Any, model: Path, oracle: Oracle
) -> None:
    """Of the answer, and of more tokens of a prompt than a step has rows of logits."""
    prompt = ids(3, 150)
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    with open_llm(model, late_device, **EXACT) as llm:
        assert llm.program.max_logits < 150
        [found] = llm.generate([prompt], params)
    [answer] = found.outputs
    context = [*prompt["prompt_token_ids"], *answer.token_ids]
    rows = oracle.rows(context)
    expected = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    every = [*(found.prompt_logprobs or []), *(answer.logprobs or [])]
    assert len(every) == len(context) and every[0] is None
    for i, (row, scores) in enumerate(zip(expected, every[1:], strict=False), 1):
        assert scores is not None and context[i] in scores
        for token, score in scores.items():
            assert abs(score.logprob - row[token]) < 1e-3, (i, token)
