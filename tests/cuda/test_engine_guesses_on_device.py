"""Guesses on a device: whatever becomes of them, they change no answer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rig import EXACT, SIZES, Watch, ids, open_llm

from llamba import LLM, SamplingParams
from llamba.errors import DeviceError
from llamba.runtime.outputs import RequestOutput

GUESSED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.3, "seed": 4, "top_k": 30, "top_p": 0.9, "min_p": 0.0},
    {"temperature": 0.7, "seed": 8, "n": 2},
    {"temperature": 1.0, "seed": 11, "logprobs": 2},
    {"temperature": 0.6, "seed": 12, "logit_bias": {65: 3.0, 66: -100}},
]
OTHERS: list[dict[str, Any]] = [
    {"temperature": 1.2, "seed": 6, "repeat_penalty": 1.2, "logprobs": 3},
    {"temperature": 1.0, "seed": 9, "n": 2, "best_of": 3},
    {"temperature": 0.8, "seed": 13, "dry_multiplier": 1.0},
    {"temperature": 0.8, "seed": 14, "structured_outputs": {"regex": "[a-z]{9}x?"}},
    {"temperature": 0.8, "seed": 15, "max_tokens": 5, "structured_outputs": {"json": True}},
]


@pytest.fixture(scope="module")
def model(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf(weights="Q8_0", **{**SIZES, "num_layers": 1})


def params(kinds: list[dict[str, Any]], seed: int) -> list[SamplingParams]:
    rng = np.random.default_rng(seed)
    return [SamplingParams(**{"max_tokens": int(rng.integers(3, 15)), **kind}) for kind in kinds]


def seen(outputs: list[RequestOutput]) -> list[Any]:
    """All that a caller sees of answers."""
    return [
        (tuple(a.token_ids), a.text, a.finish_reason, [sorted(x) for x in a.logprobs or []])
        for each in outputs
        for a in each.outputs
    ]


@pytest.fixture
def llm(late_device: Any, model: Path) -> Iterator[LLM]:
    """Without a prefix cache: all that runs runs again."""
    with open_llm(model, late_device, prefix_cache=False, **EXACT) as opened:
        yield opened


def test_wrong_guesses_change_nothing(llm: LLM) -> None:
    """Right ones, some wrong ones, only wrong ones, and none at all."""
    asked, prompts = params(GUESSED, 0), [ids(n, 5 + n) for n in range(len(GUESSED))]
    program: Any = llm.program
    run, start = program.run, program._start
    found = []
    rng = np.random.default_rng(1)
    for share in (0.0, 0.4, 1.0):
        watch = Watch(program, lambda share=share: bool(rng.random() < share))
        found.append(seen(llm.generate(prompts, asked)))
        program.run, program._start = run, start
        assert watch.started_ahead > 5
        assert watch.taken > 3 if share < 1 else watch.wrong > 5
        assert watch.wrong == 0 or share > 0
    watch = Watch(program, ahead=False)
    assert seen(llm.generate(prompts, asked)) == found[0] == found[1] == found[2]
    assert watch.started_ahead == 0


def test_in_the_company_of_what_can_not_be_guessed(llm: LLM) -> None:
    """Penalties, constraints and the like, made on the device, beside the others."""
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    kinds = [*OTHERS, *GUESSED[1:3]]
    asked, prompts = params(kinds, 2), [ids(n, 5 + n) for n in range(len(kinds))]
    together = llm.generate(prompts, asked)
    rng = np.random.default_rng(1)
    Watch(llm.program, lambda: bool(rng.random() < 0.5))
    alone = [llm.generate(p, each)[0] for p, each in zip(prompts, asked, strict=True)]
    assert seen(together) == seen(alone)
    words = [each.outputs[0].text for each in together]
    form = words[3]
    assert form.isalpha() and form == form.lower() and len(form) <= 10


@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_error_ends_its_requests_alone(llm: LLM, at: int) -> None:
    """At a prompt, at the first and at a later step; the engine goes on with all pages."""
    program: Any = llm.program
    asked = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = seen(llm.generate([ids(1, 40)], asked))
    launched = program._launch
    further = program._launch_further
    count = 0

    def fail(launch: Any) -> Any:
        def maybe(*arguments: Any) -> None:
            nonlocal count
            count += 1
            if count == at + 1:
                raise DeviceError("an illegal address")
            launch(*arguments)

        return maybe

    program._launch, program._launch_further = fail(launched), fail(further)
    outputs = llm.generate([ids(1, 40), ids(2, 3)], asked)
    assert any(isinstance(each.error, DeviceError) for each in outputs)
    assert llm.stats.failures >= 1 and llm.stats.running == llm.stats.pages_used == 0
    assert seen(llm.generate([ids(1, 40)], asked)) == expected


def test_an_error_that_comes_late(llm: LLM, late_device: Any) -> None:
    """Of a launch that was given long ago, as a GPU tells them."""
    if not hasattr(late_device, "broken"):
        pytest.skip("a GPU has no error on purpose")
    asked = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    expected = seen(llm.generate([ids(1, 40)], asked))
    for number in range(3):
        late_device.broken = DeviceError("an illegal address")
        [output] = llm.generate([ids(number, 4)], asked)
        assert isinstance(output.error, DeviceError)
        assert seen(llm.generate([ids(1, 40)], asked)) == expected
