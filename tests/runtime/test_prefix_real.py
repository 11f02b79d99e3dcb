"""The prefix cache with real models: turns, sliding windows (PAINS P65), and a restart."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llamba import LLM, SamplingParams
from llamba.errors import PrefixFileError
from llamba.runtime.request import RequestOutput

pytestmark = pytest.mark.kernels

TEXT = (
    "The lighthouse keeper wrote down the weather every morning, the wind, the height of the waves "
    "and the ships that passed. In the evening he lit the lamp and read until the oil was low. "
)
QUESTION = "When the storm came, the first thing he did was to"


@pytest.fixture(scope="module")
def gemma(models: Callable[[str], Path]) -> Iterator[LLM]:
    with LLM(models("gemma3"), context_length=2048, deterministic=True) as llm:
        yield llm


def ask(llm: LLM, ids: list[int], max_tokens: int = 8) -> RequestOutput:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    [output] = llm.generate([{"prompt_token_ids": ids}], params)
    return output


def encode(llm: LLM, text: str, *, first: bool = False) -> list[int]:
    return llm.tokenizer.encode(text, add_special=first)


@pytest.mark.parametrize("num_repeats", [3, 16])  # within the sliding window of 512, and beyond it
def test_p65_turns_prefill_only_what_is_new(gemma: LLM, num_repeats: int) -> None:
    """Also on sliding-window layers: all KV is kept, only attention leaves out what is behind."""
    ids = encode(gemma, f"{num_repeats}. " + TEXT * num_repeats, first=True)
    assert (len(ids) > 560) == (num_repeats > 3)
    known, answer = 0, []
    for turn in range(3):
        ids += encode(gemma, f" Turn {turn}: {QUESTION}")
        output = ask(gemma, ids)
        metrics = output.metrics
        assert metrics.prompt_tokens == len(ids)
        if turn:
            # The last token of an answer was chosen, but not run.
            assert metrics.cached_tokens == known - 1
        known = len(ids) + 8
        answer = output.outputs[0].token_ids
        ids += answer
    again = ask(gemma, ids[: known - 8])
    assert again.metrics.cached_tokens == known - 8 - 1  # the last one's logits are wanted
    assert again.outputs[0].token_ids == answer


def test_an_edit_in_the_middle_keeps_what_is_before_it(gemma: LLM) -> None:
    ids = encode(gemma, "An edit. " + TEXT * 7, first=True)
    ask(gemma, ids)
    edited = ids[:205] + encode(gemma, " Then it rained.") + ids[205:]
    assert edited[205] != ids[205]
    assert ask(gemma, edited).metrics.cached_tokens == 205


def test_hits_do_not_change_the_answer(gemma: LLM, models: Callable[[str], Path]) -> None:
    ids = encode(gemma, "Equal. " + TEXT * 6 + QUESTION, first=True)
    first, second = ask(gemma, ids, 16), ask(gemma, ids, 16)
    assert first.metrics.cached_tokens <= 1  # the BOS token of the prompts before
    assert second.metrics.cached_tokens == len(ids) - 1
    with LLM(
        models("gemma3"), context_length=2048, deterministic=True, prefix_cache=False
    ) as fresh:
        third, fourth = ask(fresh, ids, 16), ask(fresh, ids, 16)
    assert third.metrics.cached_tokens == fourth.metrics.cached_tokens == 0
    for other in (second, third, fourth):
        assert other.outputs[0].token_ids == first.outputs[0].token_ids


SCRIPT = """
import json, sys
from pathlib import Path
from llamba import LLM, SamplingParams

model, file, ids, kind = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
with LLM(model, context_length=2048, deterministic=True, cache_type=kind) as llm:
    restored = llm.load_prefix_cache(file).num_tokens if file.exists() else 0
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    [output] = llm.generate([{"prompt_token_ids": ids}], params)
    saved = llm.save_prefix_cache(file)
    print(json.dumps([restored, output.metrics.cached_tokens, output.outputs[0].token_ids]))
"""


def run(model: Path, file: Path, ids: list[int], cache_type: str) -> tuple[int, int, list[int]]:
    """What a process of its own restored, found in the cache, and answered."""
    arguments = [sys.executable, "-c", SCRIPT, str(model), str(file), json.dumps(ids), cache_type]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


@pytest.mark.parametrize(("name", "cache_type"), [("gemma3", "f16"), ("smollm2", "q8_0")])
def test_a_restart(
    models: Callable[[str], Path], tmp_path: Path, name: str, cache_type: str
) -> None:
    model, file = models(name), tmp_path / "prefixes"
    with LLM(model, context_length=64) as llm:
        ids = encode(llm, TEXT * 6 + QUESTION, first=True)
    restored, cached, answer = run(model, file, ids, cache_type)
    assert (restored, cached) == (0, 0)
    restored, cached, again = run(model, file, ids, cache_type)
    assert restored >= len(ids) and cached == len(ids) - 1
    assert again == answer


def test_a_file_of_other_settings_is_refused(models: Callable[[str], Path], tmp_path: Path) -> None:
    file = tmp_path / "prefixes"
    with LLM(models("smollm2"), context_length=512) as llm:
        ids = encode(llm, TEXT, first=True)
        ask(llm, ids)
        assert llm.save_prefix_cache(file).num_pages == -(-(len(ids) + 7) // 32)
    others: list[dict[str, Any]] = [
        {"deterministic": True}, {"cache_type": "q8_0"}, {"activations": "float32"}
    ]  # fmt: skip
    for options in others:
        with LLM(models("smollm2"), context_length=512, **options) as llm:
            with pytest.raises(PrefixFileError, match="saved prefixes of .* other settings"):
                llm.load_prefix_cache(file)
            assert ask(llm, ids).metrics.cached_tokens == 0
    with LLM(models("smollm2"), context_length=512, kv_tokens=64) as llm:
        assert llm.load_prefix_cache(file).num_pages == 2  # as many as there are
